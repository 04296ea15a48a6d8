"""Names of torchmetrics for metrics of featfold: change the import, and nothing else.

Options are those of torchmetrics, numbers are ours. They differ where torchmetrics gives a class
that is only predicted a recall of 0, or one that is nowhere an average or a value: an undefined
number is NaN with a reason and is left out of averages. ``average=None`` also gives the mean.
:func:`MeanIoU` alone has the numbers of torchmetrics 1.9, so that a curve does not jump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from pipeline import metrics as ours
from pipeline.ddp.collection import Collection
from pipeline.errors import ConfigError

__all__ = [
    "BinaryAccuracy",
    "BinaryF1Score",
    "BinaryJaccardIndex",
    "BinaryPrecision",
    "BinaryRecall",
    "BinarySpecificity",
    "MeanIoU",
    "MetricCollection",
    "MulticlassAccuracy",
    "MulticlassConfusionMatrix",
    "MulticlassF1Score",
    "MulticlassJaccardIndex",
    "MulticlassPrecision",
    "MulticlassRecall",
    "MulticlassSpecificity",
]

AVERAGES = {None: ("macro", "none"), "none": ("macro", "none"), "macro": "macro"}
AVERAGES |= {"micro": "micro", "weighted": "weighted"}


@dataclass(frozen=True)
class Named:
    """A metric under the name that torchmetrics has for it."""

    name: str
    metric: Any
    classes: int
    task: str = "multiclass"

    def alone(self, *given: Any, **options: Any) -> NoReturn:
        """Raise :class:`ConfigError`: batches are counted by collections."""
        raise ConfigError(
            f"{self.name}: a metric alone takes no batches here; put it into a collection, "
            f"MetricCollection([{self.name}(...)])"
        )

    update = compute = reset = forward = __call__ = alone


class _Multiclass(Protocol):
    def __call__(
        self,
        num_classes: int,
        top_k: int = 1,
        average: str | None = "macro",
        ignore_index: int | Sequence[int] | None = None,
    ) -> Named: ...


def _multiclass(name: str, metric: Any) -> _Multiclass:
    def make(
        num_classes: int,
        top_k: int = 1,
        average: str | None = "macro",
        ignore_index: int | Sequence[int] | None = None,
    ) -> Named:
        if average not in AVERAGES:
            raise ConfigError(
                f"average: {average!r} is unknown; choose macro, micro, weighted, None"
            )
        made = metric(average=AVERAGES[average], top_k=top_k, ignore=_ignored(ignore_index))
        return Named(name, made, num_classes)

    make.__name__ = name
    return make


def _ignored(given: int | Sequence[int] | None) -> tuple[int, ...]:
    given = () if given is None else given
    return (given,) if isinstance(given, int) else tuple(given)


class _Binary(Protocol):
    def __call__(self, threshold: float = 0.5, *, ignore_index: int | None = None) -> Named: ...


def _binary(name: str, metric: Any) -> _Binary:
    def make(threshold: float = 0.5, *, ignore_index: int | None = None) -> Named:
        ignore = _ignored(ignore_index)
        return Named(name, metric(task="binary", threshold=threshold, ignore=ignore), 2, "binary")

    make.__name__ = name
    return make


BinaryAccuracy = _binary("BinaryAccuracy", ours.Accuracy)
BinaryF1Score = _binary("BinaryF1Score", ours.F1)
BinaryJaccardIndex = _binary("BinaryJaccardIndex", ours.IoU)
BinaryPrecision = _binary("BinaryPrecision", ours.Precision)
BinaryRecall = _binary("BinaryRecall", ours.Recall)
BinarySpecificity = _binary("BinarySpecificity", ours.Specificity)
MulticlassAccuracy = _multiclass("MulticlassAccuracy", ours.Accuracy)
MulticlassF1Score = _multiclass("MulticlassF1Score", ours.F1)
MulticlassJaccardIndex = _multiclass("MulticlassJaccardIndex", ours.IoU)
MulticlassPrecision = _multiclass("MulticlassPrecision", ours.Precision)
MulticlassRecall = _multiclass("MulticlassRecall", ours.Recall)
MulticlassSpecificity = _multiclass("MulticlassSpecificity", ours.Specificity)


def MulticlassConfusionMatrix(  # noqa: N802
    num_classes: int, ignore_index: int | None = None
) -> Named:
    """Return the counts of every label and prediction: a :class:`ConfusionTable`.

    Shares of labels, predictions or all are ``table.normalised(by)``.
    """
    metric = ours.ConfusionMatrix(ignore=_ignored(ignore_index))
    return Named("MulticlassConfusionMatrix", metric, num_classes)


def MeanIoU(  # noqa: N802
    num_classes: int,
    include_background: bool = True,
    per_class: bool = False,
    input_format: str = "index",
) -> Named:
    """Return the mean over images and classes that ``segmentation.MeanIoU`` of torchmetrics is.

    Numbers of classes are there too, -1 for one that no image has. Differs from it in that sums
    are exact, that numbers of classes are there whatever ``per_class`` says, and that masks are
    classes, its ``input_format="index"``: others raise :class:`ConfigError`, and so does a mean
    without background: leave its number out of what is shown.
    """
    if input_format != "index":
        raise ConfigError(
            f"input_format: {input_format!r}; masks are classes here, 'index': give argmax(1)"
        )
    if not include_background:
        raise ConfigError("include_background: False; all classes have a number here, 0 as well")
    return Named("MeanIoU", ours.ImageIoU(preset="torchmetrics-1.9"), num_classes)


def MetricCollection(  # noqa: N802
    metrics: Named | Sequence[Named] | Mapping[str, Named],
    *additional: Named,
    prefix: str | None = None,
    compute_groups: bool = True,
    **options: Any,
) -> Collection:
    """Return the :class:`~pipeline.ddp.Collection` of some metrics, under their names.

    ``options`` are those of the collection. Compute groups are always on: states are shared by
    what metrics declare, never by comparing values. Raises :class:`ConfigError` for metrics of
    different numbers of classes.
    """
    if isinstance(metrics, Mapping):
        named = dict(metrics)
    else:
        several = [metrics] if isinstance(metrics, Named) else list(metrics)
        named = {one.name: one for one in (*several, *additional)}
    classes = {name: one.classes for name, one in named.items()}
    if len({(one.classes, one.task) for one in named.values()}) > 1:
        raise ConfigError(f"num_classes differ within one collection: {classes}; make one for each")
    return Collection(
        {name: one.metric for name, one in named.items()},
        classes=next(iter(classes.values())), task=next(iter(named.values())).task,
        prefix=prefix or "", **options,
    )  # fmt: skip
