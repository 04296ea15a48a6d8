"""Names of torchmetrics for metrics of featfold: change the import, and nothing else.

Options are those of torchmetrics, numbers are ours. They differ where torchmetrics gives a class
that is only predicted a recall of 0, or one that is nowhere an average or a value: an undefined
number is NaN with a reason and is left out of averages. ``average=None`` also gives the mean.
:func:`MeanIoU` alone has the numbers of torchmetrics 1.9, so that a curve does not jump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pipeline import metrics as ours
from pipeline.ddp.collection import Collection
from pipeline.errors import ConfigError

__all__ = [
    "MeanIoU",
    "MetricCollection",
    "MulticlassAccuracy",
    "MulticlassF1Score",
    "MulticlassJaccardIndex",
    "MulticlassPrecision",
    "MulticlassRecall",
    "MulticlassSpecificity",
]

AVERAGES = {None: ("macro", "none"), "none": ("macro", "none"), "macro": "macro"}
AVERAGES |= {"micro": "micro", "weighted": "weighted"}


class Named(NamedTuple):
    """A metric under the name that torchmetrics has for it."""

    name: str
    metric: Any
    classes: int


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
        given = () if ignore_index is None else ignore_index
        ignore = (given,) if isinstance(given, int) else tuple(given)
        made = metric(average=AVERAGES[average], top_k=top_k, ignore=ignore)
        return Named(name, made, num_classes)

    make.__name__ = name
    return make


MulticlassAccuracy = _multiclass("MulticlassAccuracy", ours.Accuracy)
MulticlassF1Score = _multiclass("MulticlassF1Score", ours.F1)
MulticlassJaccardIndex = _multiclass("MulticlassJaccardIndex", ours.IoU)
MulticlassPrecision = _multiclass("MulticlassPrecision", ours.Precision)
MulticlassRecall = _multiclass("MulticlassRecall", ours.Recall)
MulticlassSpecificity = _multiclass("MulticlassSpecificity", ours.Specificity)


def MeanIoU(num_classes: int, include_background: bool = True) -> Named:  # noqa: N802
    """Return the mean over images and classes that ``segmentation.MeanIoU`` of torchmetrics is.

    Numbers of classes are there too, -1 for one that no image has. Differs from it in that sums
    are exact, and that masks are classes, its ``input_format="index"``. Raises
    :class:`ConfigError` without background: leave its number out of what is shown.
    """
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
    if len(set(classes.values())) > 1:
        raise ConfigError(f"num_classes differ within one collection: {classes}; make one for each")
    return Collection(
        {name: one.metric for name, one in named.items()},
        classes=next(iter(classes.values())), prefix=prefix or "", **options,
    )  # fmt: skip
