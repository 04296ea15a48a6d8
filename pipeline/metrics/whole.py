"""Metrics of the whole matrix, from its margins: balanced accuracy, MCC, kappa and others."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np

from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics import ratios
from pipeline.metrics.counting import Counting, Inputs
from pipeline.metrics.estimates import (
    GUARD_BITS,
    added,
    dot,
    entries,
    exactly,
    quotient,
    root_quotient,
    scaled_sum,
    undefined,
    whole_numbers,
)
from pipeline.metrics.per_class import Averaged
from pipeline.metrics.ratios import NO_ROWS, Cells, averaged, cells
from pipeline.procedure import Estimate
from pipeline.statistics import Distances, ExactRows, LabelCounts

__all__ = [
    "MCC",
    "BalancedAccuracy",
    "ExactMatch",
    "FrequencyWeightedIoU",
    "GeneralisedDice",
    "Kappa",
    "accuracy",
    "balanced_accuracy",
    "generalised_dice",
    "kappa",
    "mcc",
]

ONE_CLASS = "all labels, or all predictions, are of one class"
KAPPA_WEIGHTINGS = ("none", "linear", "quadratic")
DICE_WEIGHTINGS = ("square", "simple", "uniform")


def accuracy(counts: Any) -> Estimate:
    """Return the share of elements predicted right, sum of tp / elements."""
    found = cells(counts)
    return quotient(added(found.tp), added(found.t), NO_ROWS)


def balanced_accuracy(counts: Any, *, adjusted: bool = False) -> Estimate:
    """Return the mean recall of the classes that are the label of some element.

    ``adjusted`` for chance: (b - 1/c) / (1 - 1/c) with c such classes; undefined for one.
    """
    found = cells(counts)
    labelled = found.t != 0
    present = int(np.count_nonzero(labelled))
    recalls = scaled_sum(found.tp[labelled], found.t[labelled], np.ones(present, np.int64))
    if not adjusted or not present:
        return quotient(recalls, present << GUARD_BITS, NO_ROWS)
    chance = "all labels are of one class, so that chance is always right"
    return quotient(recalls - (1 << GUARD_BITS), present - 1 << GUARD_BITS, chance)


def mcc(counts: Any) -> Estimate:
    """Return the Matthews correlation coefficient of k classes, correctly rounded.

    (n sum tp - sum t p) / sqrt((n² - sum p²) (n² - sum t²)), in whole numbers of any size.
    Undefined where all labels or all predictions are of one class.

    Reference: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation
    coefficient". Differs from torchmetrics, which gives numbers where there is none.
    """
    return _mcc(cells(counts))


def _mcc(found: Cells) -> Estimate:
    n, predicted = added(found.t), added(found.p) + found.undecided
    spread_t = n * n - dot(found.t, found.t)
    spread_p = predicted * predicted - dot(found.p, found.p) - found.undecided**2
    covariance = predicted * added(found.tp) - dot(found.t, found.p)
    return root_quotient(covariance, spread_p, spread_t, ONE_CLASS if n else NO_ROWS)


def kappa(counts: Any, distances: Any = None, weighting: str = "none") -> Estimate:
    """Return Cohen's kappa, exactly: 1 - n sum w_ij K_ij / sum w_ij t_i p_j.

    ``weighting``: w_ij is [i != j] for none, |i - j| for linear, (i - j)² for quadratic; these two
    need ``distances`` (k,), the elements with each |i - j|. Undefined where nothing can differ.

    Reference: Cohen 1960, "A coefficient of agreement for nominal scales"; 1968, "Weighted kappa".
    """
    return _kappa(cells(counts), distances, weighting)


def _kappa(found: Cells, distances: Any, weighting: str) -> Estimate:
    n = added(found.t)
    reason = ONE_CLASS if n else NO_ROWS
    if weighting == "none":
        by_chance = dot(found.t, found.p)
        return quotient(n * added(found.tp) - by_chance, n * n - by_chance, reason)
    (apart,) = whole_numbers(distances)
    steps = np.arange(len(apart), dtype=np.int64)
    observed = dot(steps if weighting == "linear" else steps * steps, apart)
    # Shares of their own totals: sums of weights are whole numbers of different units.
    observed, expected = (observed * n * added(found.p), _expected(found, weighting) * added(apart))
    return quotient(expected - observed, expected, reason)


def _expected(found: Cells, weighting: str) -> int:
    """Return the sum of w_ij t_i p_j over all pairs of classes."""
    if weighting == "linear":
        t, p, total = 0, 0, 0
        all_t, all_p = added(found.t), added(found.p)
        for one, other in entries(found.t, found.p):
            t, p = t + one, p + other
            total += t * (all_p - p) + p * (all_t - t)
        return total
    steps = np.arange(len(found.t), dtype=np.int64)
    squares = steps * steps
    return (
        dot(squares, found.t) * added(found.p)
        - 2 * dot(steps, found.t) * dot(steps, found.p)
        + dot(squares, found.p) * added(found.t)
    )


def generalised_dice(
    counts: Any, weighting: str = "square", ignore: Iterable[int] = ()
) -> Estimate:
    """Return the generalised Dice score of pooled counts: 2 sum w tp / sum w (t + p).

    ``weighting``: w is 1 / t² for square, 1 / t for simple, 1 for uniform. A class without elements
    has the weight of the rarest class that has some, so that predicting it lowers the score.

    Reference: Sudre et al. 2017, "Generalised Dice overlap as a deep learning loss function for
    highly unbalanced segmentations", arXiv 1707.03237. Differs from torchmetrics, where an absent
    class has the largest weight among the images of its batch, whatever the batches are.
    """
    found = cells(counts, ignore)
    present = found.t[found.t != 0]
    if not len(present):
        return undefined(NO_ROWS if not found.rows else "no class that counts has rows")
    power = {"square": 2, "simple": 1, "uniform": 0}[weighting]
    size = np.where(found.t != 0, found.t, present.min())
    places = GUARD_BITS + power * int(size.max()).bit_length()
    numerator = denominator = 0
    for tp, both, t in entries(found.tp, found.combined((0, 1, 1, 0)), size):
        numerator += (2 * tp << places) // t**power
        denominator += (both << places) // t**power
    return quotient(numerator, denominator, NO_ROWS)


@final
@value
class BalancedAccuracy(Counting):
    """Mean recall of the classes that are the label of some element: ``balanced_accuracy``.

    ``adjusted`` for chance, ``balanced_accuracy_adjusted`` is 0 where a guess would be as good.
    Differs from macro accuracy elsewhere, which counts a class that is only predicted as zero.
    """

    adjusted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "multilabel":
            raise ConfigError("balanced_accuracy: not for a multilabel task; take recall")

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        return {"marginals": inputs.margins}

    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        name = "balanced_accuracy_adjusted" if self.adjusted else "balanced_accuracy"
        return {name: balanced_accuracy(results["marginals"], adjusted=self.adjusted)}


@final
@value
class FrequencyWeightedIoU(Counting):
    """IoU of classes weighted by their elements: ``frequency_weighted_iou``, sum t IoU / n."""

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        return {"marginals": inputs.margins}

    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        ignored = () if self.task == "multilabel" else self.ignored
        found = averaged("iou", ratios.IOU, cells(results["marginals"], ignored), "weighted")
        return {"frequency_weighted_iou": found["iou_weighted"]}


@final
@value
class ExactMatch(Counting):
    """Share of rows all of whose elements that count are right: ``exact_match``.

    For a multilabel task the share of places where all labels are right, also called subset
    accuracy. A row none of whose elements counts has no part in it; elsewhere it counts as right.
    """

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        whole = "labels" if self.task == "multilabel" else "row"
        of, by, where, ignore, weights = inputs[2:]
        return {"rows": ExactRows(of, by, where, ignore, weights, whole)}

    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        (found,) = whole_numbers(results["rows"])
        exact, rows = found.tolist()
        return {"exact_match": quotient(exact, rows, NO_ROWS)}


@final
@value
class GeneralisedDice(Averaged):
    """Generalised Dice score of pooled counts: ``generalised_dice``; see :func:`generalised_dice`.

    ``weighting``: square, simple or uniform; others than square end the name of the number. Of a
    class alone (``average="none"``) its weight cancels, and what is left is its Dice coefficient.
    """

    weighting: str = "square"
    has_whole: ClassVar[bool] = True
    known: ClassVar[tuple[str, ...]] = ("none",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_weighting(self.weighting, DICE_WEIGHTINGS)

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        return {"marginals": inputs.margins}

    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        counts = results["marginals"]
        ignored = () if self.task == "multilabel" else self.ignored
        name = _weighted_name("generalised_dice", self.weighting, "square")
        if self.averages:
            return averaged(name, ratios.DICE, cells(counts, ignored), "none", self.absent)
        return {name: generalised_dice(counts, self.weighting, ignored)}


@value
class Agreement(Averaged):
    """A coefficient of agreement: an abstract base.

    It is one number for the classes of a task. Labels that a row may have several of each have
    their own, of which ``average`` is macro (their mean) or none.
    """

    has_whole: ClassVar[bool] = True
    known: ClassVar[tuple[str, ...]] = ("macro", "none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.averages and self.task != "multilabel":
            raise ConfigError(
                f"average: {self.name} is one number of all classes of a {self.task} task; leave "
                "average out"
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """What keys of numbers begin with."""

    @abstractmethod
    def agreement(self, found: Cells, results: Mapping[str, Any]) -> Estimate:
        """Return the number of some classes."""

    @final
    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        counts = results["marginals"]
        if self.task != "multilabel":
            return {self.name: self._filled(self.agreement(cells(counts), results), cells(counts))}
        each = {}
        for label, found in enumerate(_two_by_two(counts)):
            each[f"{self.name}_{label}"] = self._filled(self.agreement(found, results), found)
        numbers = each if "none" in self.averages else {}
        return numbers if self.averages == ("none",) else numbers | _mean_of(self.name, each)

    def _filled(self, found: Estimate, of: Cells) -> Estimate:
        if of.rows and math.isnan(found.value) and self.absent != "nan":
            return exactly(float(self.absent == "one"))
        return found


@final
@value
class MCC(Agreement):
    """Matthews correlation coefficient, R_K for k classes: ``mcc``; see :func:`mcc`."""

    @property
    def name(self) -> str:
        return "mcc"

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        return {"marginals": inputs.margins}

    def agreement(self, found: Cells, results: Mapping[str, Any]) -> Estimate:
        return _mcc(found)


@final
@value
class Kappa(Agreement):
    """Cohen's kappa: ``kappa``, ``kappa_linear`` or ``kappa_quadratic``; see :func:`kappa`.

    ``weighting``: none, or linear or quadratic in the distance of classes whose order means
    something. Of labels that a row may have several of all three are the same.
    """

    weighting: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_weighting(self.weighting, KAPPA_WEIGHTINGS)

    @property
    def name(self) -> str:
        return _weighted_name("kappa", self.weighting, "none")

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        if self.weighting == "none" or self.task == "multilabel":
            return {"marginals": inputs.margins}
        of, by, where, ignore, weights = inputs[2:]
        distances = Distances(of, by, where, ignore, weights)
        return {"marginals": inputs.margins, "distances": distances}

    def agreement(self, found: Cells, results: Mapping[str, Any]) -> Estimate:
        weighting = self.weighting if "distances" in results else "none"
        return _kappa(found, results.get("distances"), weighting)


def _two_by_two(counts: Any) -> Iterator[Cells]:
    """Yield the two classes, absent and present, of each label."""
    for tp, missed, raised, rest in entries(*whole_numbers(*counts)):
        one = np.array([[tp], [missed], [raised], [rest]], object)
        swapped = np.array([[rest], [raised], [missed], [tp]], object)
        yield cells(LabelCounts(*np.concatenate((swapped, one), axis=1)))


def _mean_of(name: str, each: Mapping[str, Estimate]) -> dict[str, Estimate]:
    numbers = [found.value for found in each.values() if not math.isnan(found.value)]
    reason = next((found.reason for found in each.values() if found.reason), NO_ROWS)
    mean = exactly(math.fsum(numbers) / len(numbers)) if numbers else undefined(reason)
    return {f"{name}_mean": mean, f"{name}_classes_averaged": exactly(float(len(numbers)))}


def _check_weighting(given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ConfigError(f"weighting: {given!r} is unknown; choose {', '.join(known)}")


def _weighted_name(name: str, weighting: str, usual: str) -> str:
    return name if weighting == usual else f"{name}_{weighting}"
