"""Metrics that are a quotient of counts per class: precision, recall, F, Dice, IoU and kin."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, final

from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics import ratios
from pipeline.metrics.counting import Counting, Inputs
from pipeline.metrics.ratios import AVERAGES, BY_CLASS, Ratio, averaged, cells, check_options, fbeta
from pipeline.procedure import Estimate

__all__ = [
    "F1",
    "NPV",
    "Accuracy",
    "Averaged",
    "Dice",
    "FBeta",
    "Hamming",
    "IoU",
    "Precision",
    "Recall",
    "Specificity",
    "TopKAccuracy",
    "class_metric",
]

RATIOS = {
    "precision": ratios.PRECISION,
    "recall": ratios.RECALL,
    "specificity": ratios.SPECIFICITY,
    "npv": ratios.NPV,
    "f1": ratios.DICE,
    "dice": ratios.DICE,
    "iou": ratios.IOU,
}


def class_metric(
    name: str,
    counts: Any,
    average: str = "macro",
    absent: str = "nan",
    ignore: Collection[int] = (),
) -> dict[str, Estimate]:
    """Return precision, recall, specificity, npv, f1, dice or iou of counts of classes.

    See :func:`pipeline.metrics.ratios.averaged` for averages and keys.
    """
    check_options(average, absent)
    if name not in RATIOS:
        raise ConfigError(f"metric: {name!r} is unknown; choose {', '.join(RATIOS)}")
    return averaged(name, RATIOS[name], cells(counts, ignore), average, absent)


@value
class Averaged(Counting):
    """A metric with a number for each class: an abstract base.

    ``average``: one or several of macro, micro, weighted, none and binary. Where none is named, it
    is the number of all elements for metrics that have one, binary for a binary task, and macro
    otherwise. ``absent``: what a class is given whose number is 0 / 0: nan (left out of averages),
    zero or one.
    """

    average: str | tuple[str, ...] | None = None
    absent: str = "nan"
    has_whole: ClassVar[bool] = False
    """Whether it has a number of all elements that is no average over classes."""
    known: ClassVar[tuple[str, ...]] = AVERAGES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average == ():
            raise ConfigError("average: none is named; leave it out, or name one")
        check_options(self.averages, self.absent, self.known)
        if "binary" in self.averages and self.task == "multilabel":
            raise ConfigError("average: binary has no meaning for a multilabel task; choose macro")

    @property
    def averages(self) -> tuple[str, ...]:
        """Averages that are asked for; none for the number of all elements."""
        if self.average is not None:
            return self.average if isinstance(self.average, tuple) else (self.average,)
        if self.has_whole:
            return ()
        return ("binary",) if self.task == "binary" else ("macro",)


@value
class ClassMetric(Averaged):
    """A metric that is one quotient of counts for each class: an abstract base."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What keys of numbers begin with."""

    @property
    @abstractmethod
    def ratio(self) -> Ratio:
        """The quotient."""

    @final
    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        if "binary" in self.averages and inputs.classes != 2:
            raise ConfigError(f"average: binary needs 2 classes, there are {inputs.classes}")
        return {"marginals": inputs.margins}

    @final
    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        ignored = () if self.task == "multilabel" else self.ignored
        found = cells(results["marginals"], ignored)
        if not self.averages:
            return {
                self.name: averaged(self.name, self.ratio, found, "micro")[f"{self.name}_micro"]
            }
        numbers: dict[str, Estimate] = {}
        for average in self.averages:
            numbers |= averaged(self.name, self.ratio, found, average, self.absent)
        return numbers


@final
@value
class Precision(ClassMetric):
    """Share of the predictions of a class that are right: tp / p."""

    @property
    def name(self) -> str:
        return "precision"

    @property
    def ratio(self) -> Ratio:
        return ratios.PRECISION


@final
@value
class Recall(ClassMetric):
    """Share of the elements of a class that are predicted as such: tp / t.

    Also called sensitivity, and accuracy per class.
    """

    @property
    def name(self) -> str:
        return "recall"

    @property
    def ratio(self) -> Ratio:
        return ratios.RECALL


@final
@value
class Specificity(ClassMetric):
    """Share of the elements of other classes that are not predicted as a class: tn / (tn + fp)."""

    @property
    def name(self) -> str:
        return "specificity"

    @property
    def ratio(self) -> Ratio:
        return ratios.SPECIFICITY


@final
@value
class NPV(ClassMetric):
    """Negative predictive value: tn / (tn + fn), the share of what is predicted as other classes
    that is of other classes.
    """

    @property
    def name(self) -> str:
        return "npv"

    @property
    def ratio(self) -> Ratio:
        return ratios.NPV


@final
@value
class F1(ClassMetric):
    """Harmonic mean of precision and recall: 2 tp / (t + p).

    Differs from the mean of F1 over batches or images: counts are pooled first.
    """

    @property
    def name(self) -> str:
        return "f1"

    @property
    def ratio(self) -> Ratio:
        return ratios.DICE


@final
@value
class FBeta(ClassMetric):
    """Weighted harmonic mean of precision and recall: (1 + b²) tp / (b² t + p).

    Above 1 ``beta`` favours recall. Reference: van Rijsbergen 1979, "Information Retrieval".
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.beta < math.inf:
            raise ConfigError(f"beta: {self.beta}; expected a number above 0, such as 2")

    @property
    def name(self) -> str:
        return "fbeta"

    @property
    def ratio(self) -> Ratio:
        return fbeta(self.beta)


@final
@value
class Dice(ClassMetric):
    """Dice coefficient of a class, its F1 by another name: 2 tp / (t + p).

    Pooled over all elements, not a mean over images. Reference: Dice 1945, "Measures of the amount
    of ecologic association between species".
    """

    @property
    def name(self) -> str:
        return "dice"

    @property
    def ratio(self) -> Ratio:
        return ratios.DICE


@final
@value
class IoU(ClassMetric):
    """Intersection over union (Jaccard index) of a class: tp / (t + p - tp).

    Pooled over all elements, as in VOC, Cityscapes and ADE20K; ``iou_mean`` is their mIoU.
    Differs from ``segmentation.MeanIoU`` of torchmetrics, a mean over images.
    """

    @property
    def name(self) -> str:
        return "iou"

    @property
    def ratio(self) -> Ratio:
        return ratios.IOU


@final
@value
class Accuracy(ClassMetric):
    """Share of elements predicted right: ``accuracy``; of all entries for a multilabel task.

    With an average by class: recall, and for labels (tp + tn) / n. Differs from
    ``MulticlassAccuracy`` of torchmetrics, an average of recalls by default, in which a class that
    is only predicted counts as zero.
    """

    has_whole: ClassVar[bool] = True
    known: ClassVar[tuple[str, ...]] = BY_CLASS

    @property
    def name(self) -> str:
        return "accuracy"

    @property
    def ratio(self) -> Ratio:
        return ratios.ONE_AGAINST_REST if self.task == "multilabel" else ratios.RECALL


@final
@value
class Hamming(ClassMetric):
    """Hamming distance, the share of elements predicted wrong: ``hamming``, 1 - accuracy."""

    has_whole: ClassVar[bool] = True
    known: ClassVar[tuple[str, ...]] = BY_CLASS

    @property
    def name(self) -> str:
        return "hamming"

    @property
    def ratio(self) -> Ratio:
        return ratios.ERRORS if self.task == "multilabel" else ratios.MISSES


@final
@value
class TopKAccuracy(ClassMetric):
    """Share of elements whose label is among the ``top_k`` largest scores: ``top_5_accuracy``.

    Equal scores are in the order of their classes, so that the number does not depend on a sort.
    Differs from libraries in which any class that ties counts as found, or none does.
    """

    top_k: int = 5

    has_whole: ClassVar[bool] = True
    known: ClassVar[tuple[str, ...]] = BY_CLASS

    @property
    def name(self) -> str:
        return f"top_{self.top_k}_accuracy"

    @property
    def ratio(self) -> Ratio:
        return ratios.RECALL
