"""Metrics that are one number for all classes: balanced accuracy, MCC, kappa, exact match..."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, final

import numpy as np

from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics import ratios
from pipeline.metrics.coefficients import (
    KAPPA_WEIGHTINGS,
    balanced_accuracy,
    check_weighting,
    generalised_dice,
    kappa_of,
    mcc_of,
)
from pipeline.metrics.counting import Counting, Inputs
from pipeline.metrics.estimates import entries, exactly, quotient, undefined, whole_numbers
from pipeline.metrics.per_class import Averaged
from pipeline.metrics.ratios import NO_ROWS, Cells, averaged, cells
from pipeline.procedure import Estimate
from pipeline.statistics import Distances, ExactRows, LabelCounts
from pipeline.statistics.image_means import DICE_WEIGHTINGS

__all__ = [
    "MCC",
    "BalancedAccuracy",
    "ExactMatch",
    "FrequencyWeightedIoU",
    "GeneralisedDice",
    "Kappa",
]


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
        check_weighting(self.weighting, DICE_WEIGHTINGS)

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
        return mcc_of(found)


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
        check_weighting(self.weighting, KAPPA_WEIGHTINGS)

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
        return kappa_of(found, results.get("distances"), weighting)


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


def _weighted_name(name: str, weighting: str, usual: str) -> str:
    return name if weighting == usual else f"{name}_{weighting}"
