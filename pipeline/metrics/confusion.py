"""Metrics of predicted classes, all finalised from the integer marginals of one confusion matrix.

Marginals of k classes: tp right predictions, t rows with the label, p rows with the prediction.
Rows without a label and rows whose label is ignored do not count. A prediction of an ignored class
on a row that does count is wrong: a miss for the label of the row. An ignored class has no value
of its own and enters no average.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.estimates import exactly, mean, quotient
from pipeline.metrics.ignoring import labelled_rows
from pipeline.procedure import Estimate, MetricResult, Passes
from pipeline.statistics import ClassCounts, Marginals
from pipeline.statistics import ConfusionMatrix as ConfusionCounts
from pipeline.views import Predicted, View

__all__ = [
    "F1",
    "Accuracy",
    "BalancedAccuracy",
    "ConfusionMatrix",
    "ConfusionTable",
    "Dice",
    "IoU",
    "Precision",
    "Recall",
    "accuracy",
    "balanced_accuracy",
    "class_metric",
]

AVERAGES = ("macro", "micro", "weighted", "none")
ABSENT = {"nan": (0, 0), "zero": (0, 1), "one": (1, 1)}
NO_ROWS = "no row with a label counts"


class _Ratio(NamedTuple):
    """A metric of one class: numerator and denominator of (tp, t, p), and what it is made of."""

    of: Callable[[int, int, int], tuple[int, int]]
    made_of: str


RATIOS = {
    "precision": _Ratio(lambda tp, t, p: (tp, p), "predictions"),
    "recall": _Ratio(lambda tp, t, p: (tp, t), "rows"),
    "f1": _Ratio(lambda tp, t, p: (2 * tp, t + p), "rows or predictions"),
    "iou": _Ratio(lambda tp, t, p: (tp, t + p - tp), "rows or predictions"),
    "dice": _Ratio(lambda tp, t, p: (2 * tp, t + p), "rows or predictions"),
}


def accuracy(counts: ClassCounts) -> Estimate:
    """Return the share of rows predicted right, sum of tp / rows."""
    return quotient(_total(counts.true_positive), _total(counts.truth), NO_ROWS)


def balanced_accuracy(counts: ClassCounts) -> Estimate:
    """Return the mean recall of the classes that are the label of some row."""
    pairs = zip(counts.true_positive.tolist(), counts.truth.tolist(), strict=True)
    return mean(((1, tp, t) for tp, t in pairs if t), NO_ROWS)


def class_metric(
    name: str,
    counts: ClassCounts,
    average: str = "macro",
    absent: str = "nan",
    ignore: Collection[int] = (),
) -> MetricResult:
    """Return precision, recall, f1, iou or dice of the classes, or an average of them.

    ``macro``: ``{name}``, the mean over the classes where the metric is defined, and their number
    ``{name}_classes_averaged``. ``weighted``: ``{name}_weighted``, the same mean with the rows of
    each label as weights. ``micro``: ``{name}_micro``, the metric of the summed counts. ``none``:
    ``{name}_0``, ``{name}_1`` ... Where a class is 0 / 0 it is NaN and left out of averages;
    ``absent="zero"`` or ``"one"`` gives it that value instead. Without any row all is undefined.
    """
    _check(average, absent, name)
    ratio = RATIOS[name]
    classes = _per_class(counts, ignore)
    rows = _total(counts.truth)
    if average == "micro":
        tp, t, p = (sum(triple[i] for triple in classes.values()) for i in range(3))
        reason = f"no class that counts has {ratio.made_of}" if rows else NO_ROWS
        return {f"{name}_micro": quotient(*ratio.of(tp, t, p), reason)}
    quotients = {c: ratio.of(*triple) for c, triple in classes.items()}
    if rows:
        quotients = {c: pair if pair[1] else ABSENT[absent] for c, pair in quotients.items()}
    if average == "none":
        reasons = {c: f"class {c} has no {ratio.made_of}" for c in quotients}
        return {
            f"{name}_{c}": quotient(*pair, reasons[c] if rows else NO_ROWS)
            for c, pair in quotients.items()
        }
    return _averaged(name, average, quotients, {c: classes[c][1] for c in classes})


def _per_class(counts: ClassCounts, ignore: Collection[int]) -> dict[int, tuple[int, int, int]]:
    """Return (tp, t, p) of the classes that have a value, as Python integers."""
    triples = zip(*(column.tolist() for column in counts), strict=True)
    return {c: triple for c, triple in enumerate(triples) if c not in ignore}


def _averaged(
    name: str, average: str, quotients: Mapping[int, tuple[int, int]], rows: Mapping[int, int]
) -> MetricResult:
    """Return the mean of the quotients that are defined, each class alike or by its rows."""
    defined = {c: pair for c, pair in quotients.items() if pair[1]}
    some = f"no class that counts has {RATIOS[name].made_of}"
    reason = some if any(rows.values()) else NO_ROWS
    if average == "weighted":
        return {f"{name}_weighted": mean(((rows[c], *defined[c]) for c in defined), reason)}
    return {
        name: mean(((1, *pair) for pair in defined.values()), reason),
        f"{name}_classes_averaged": exactly(float(len(defined))),
    }


class ConfusionTable(NamedTuple):
    """A confusion matrix; normalising it is a view, the counts stay whole numbers."""

    counts: np.ndarray[Any, np.dtype[np.int64]]
    """Rows of the data per label (down) and prediction (across): (k, k) int64."""

    @property
    def marginals(self) -> ClassCounts:
        """Counts per class, from which every other metric of this module follows."""
        return ClassCounts(self.counts.diagonal(), self.counts.sum(1), self.counts.sum(0))

    def normalised(self, by: str = "label") -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return shares (k, k) of each ``label`` (rows sum to 1), ``prediction`` (columns) or
        of ``all``; NaN where a label or prediction never occurs.
        """
        axes = {"label": 1, "prediction": 0, "all": None}
        if by not in axes:
            raise ConfigError(f"by: {by!r} is unknown; choose {', '.join(axes)}")
        total = self.counts.sum(axis=axes[by], keepdims=True)
        return np.where(total > 0, self.counts / np.maximum(total, 1), np.nan)


def _total(counts: Any) -> int:
    return sum(counts.tolist())


def _marginals(of: View, ignore: tuple[int, ...]) -> Passes[ClassCounts]:
    labels, where = labelled_rows(ignore)
    results = yield {"marginals": Marginals(of=of, by=labels, where=where)}
    counts: ClassCounts = results["marginals"]
    return counts


def _check(average: str, absent: str, name: str = "iou") -> None:
    for option, given, known in (
        ("metric", name, RATIOS),
        ("average", average, AVERAGES),
        ("absent", absent, ABSENT),
    ):
        if given not in known:
            raise ConfigError(f"{option}: {given!r} is unknown; choose {', '.join(known)}")


@value
class Accuracy:
    """Share of rows predicted right: ``accuracy``."""

    ignore: tuple[int, ...] = ()
    of: View = Predicted()

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        counts = yield from _marginals(self.of, self.ignore)
        return {"accuracy": accuracy(counts)}


@value
class BalancedAccuracy:
    """Mean recall of the classes that are the label of some row: ``balanced_accuracy``.

    Differs from macro accuracy elsewhere, which counts a class that is only predicted as zero.
    """

    ignore: tuple[int, ...] = ()
    of: View = Predicted()

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        counts = yield from _marginals(self.of, self.ignore)
        return {"balanced_accuracy": balanced_accuracy(counts)}


@value
class Precision:
    """Share of the predictions of a class that are right: tp / p; see :func:`class_metric`."""

    average: str = "macro"
    absent: str = "nan"
    ignore: tuple[int, ...] = ()
    of: View = Predicted()

    def __post_init__(self) -> None:
        _check(self.average, self.absent)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        counts = yield from _marginals(self.of, self.ignore)
        return class_metric("precision", counts, self.average, self.absent, self.ignore)


@value
class Recall:
    """Share of the rows of a class that are predicted right: tp / t; see :func:`class_metric`."""

    average: str = "macro"
    absent: str = "nan"
    ignore: tuple[int, ...] = ()
    of: View = Predicted()

    def __post_init__(self) -> None:
        _check(self.average, self.absent)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        counts = yield from _marginals(self.of, self.ignore)
        return class_metric("recall", counts, self.average, self.absent, self.ignore)


@value
class F1:
    """Harmonic mean of precision and recall: 2 tp / (t + p); see :func:`class_metric`."""

    average: str = "macro"
    absent: str = "nan"
    ignore: tuple[int, ...] = ()
    of: View = Predicted()

    def __post_init__(self) -> None:
        _check(self.average, self.absent)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        counts = yield from _marginals(self.of, self.ignore)
        return class_metric("f1", counts, self.average, self.absent, self.ignore)


@value
class IoU:
    """Intersection over union (Jaccard) of a class: tp / (t + p - tp); see :func:`class_metric`.

    Pooled over all rows, as in VOC, Cityscapes and ADE20K; not a mean of per-image values.
    """

    average: str = "macro"
    absent: str = "nan"
    ignore: tuple[int, ...] = ()
    of: View = Predicted()

    def __post_init__(self) -> None:
        _check(self.average, self.absent)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        counts = yield from _marginals(self.of, self.ignore)
        return class_metric("iou", counts, self.average, self.absent, self.ignore)


@value
class Dice:
    """Dice coefficient of a class, the F1 by another name: 2 tp / (t + p)."""

    average: str = "macro"
    absent: str = "nan"
    ignore: tuple[int, ...] = ()
    of: View = Predicted()

    def __post_init__(self) -> None:
        _check(self.average, self.absent)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        counts = yield from _marginals(self.of, self.ignore)
        return class_metric("dice", counts, self.average, self.absent, self.ignore)


@value
class ConfusionMatrix:
    """Counts of predictions per label: a :class:`ConfusionTable`; a state of k x k integers."""

    ignore: tuple[int, ...] = ()
    of: View = Predicted()

    def passes(self, schema: Schema) -> Passes[ConfusionTable]:
        labels, where = labelled_rows(self.ignore)
        results = yield {"confusion": ConfusionCounts(of=self.of, by=labels, where=where)}
        return ConfusionTable(results["confusion"])
