"""Metrics of scores as values: which numbers, of which class, and how exactly."""

from __future__ import annotations

from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.intervals import BOOTSTRAP, DELONG
from pipeline.metrics.of_scores import OOD, Numbers
from pipeline.metrics.tallies import (
    AreaUnderROC,
    AveragePrecisionSum,
    Tallies,
    Tally,
    Totals,
    TrapezoidSum,
)
from pipeline.metrics.thresholds import (
    BestF1,
    BestSeparation,
    FalsePositiveRate,
    TruePositiveRate,
    decimal,
)

__all__ = [
    "AUROC",
    "AUPRTrapezoid",
    "AveragePrecision",
    "DetectionAccuracy",
    "FPRAtTPR",
    "MaxF1",
    "Ranking",
    "TPRAtFPR",
]


@value
class AUROC(Numbers):
    """Area under the ROC curve: ``auroc``; see :func:`~pipeline.metrics.auroc`.

    Differs from torchmetrics, which turns scores outside [0, 1] into sigmoids, batch by batch:
    here a score is what it is.
    """

    @property
    def intervals(self) -> tuple[str, ...]:
        return BOOTSTRAP, DELONG

    def tally(self, totals: Totals) -> Tally:
        return AreaUnderROC(totals)


@value
class AveragePrecision(Numbers):
    """``average_precision_ood`` or ``_id``, ``average_precision`` of a binary task.

    See :func:`~pipeline.metrics.average_precision`.
    """

    def tally(self, totals: Totals) -> Tally:
        return AveragePrecisionSum(totals, f"average_precision{self.side}", low=self.low)


@value
class AUPRTrapezoid(Numbers):
    """``aupr_trapezoid_ood`` or ``_id``, ``aupr_trapezoid`` of a binary task.

    See :func:`~pipeline.metrics.aupr_trapezoid`.
    """

    def tally(self, totals: Totals) -> Tally:
        return TrapezoidSum(totals, f"aupr_trapezoid{self.side}", low=self.low)


@value
class FPRAtTPR(Numbers):
    """False positive rate at a true positive rate: ``fpr_at_95tpr_ood`` or ``_id``.

    ``fpr_at_95tpr`` of a binary task. See :func:`~pipeline.metrics.fpr_at_tpr`.
    """

    tpr: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tpr <= 1:
            raise ConfigError(f"tpr: expected a share above 0 and up to 1, got {self.tpr}")

    @property
    def name(self) -> str:
        """Name of the number."""
        return f"fpr_at_{_percent(self.tpr)}tpr{self.side}"

    def tally(self, totals: Totals) -> Tally:
        return FalsePositiveRate(totals, self.name, self.tpr, low=self.low)


@value
class TPRAtFPR(Numbers):
    """True positive rate at a false positive rate: ``tpr_at_5fpr_ood`` or ``_id``.

    ``tpr_at_5fpr`` of a binary task. See :func:`~pipeline.metrics.tpr_at_fpr`.
    """

    fpr: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fpr < 1:
            raise ConfigError(f"fpr: expected a share from 0 to below 1, got {self.fpr}")

    @property
    def name(self) -> str:
        """Name of the number."""
        return f"tpr_at_{_percent(self.fpr)}fpr{self.side}"

    def tally(self, totals: Totals) -> Tally:
        return TruePositiveRate(totals, self.name, self.fpr, low=self.low)


@value
class DetectionAccuracy(Numbers):
    """``detection_accuracy``, (1 + max(TPR - FPR)) / 2, and ``detection_accuracy_threshold``.

    That is the accuracy of the best threshold where both classes are equally likely; rows with at
    least that score are found. Of equal thresholds it is the highest. The positive class is moot.

    Reference: Liang, Li and Srikant 2018, "Enhancing the reliability of out-of-distribution image
    detection in neural networks", arXiv 1706.02690.
    """

    def tally(self, totals: Totals) -> Tally:
        keys = "detection_accuracy", "detection_accuracy_threshold"
        return BestSeparation(totals, keys, low=False)


@value
class MaxF1(Numbers):
    """``max_f1_ood`` or ``_id``, the largest F1 of all thresholds, and ``max_f1_threshold_ood``.

    Rows at the threshold and beyond, above or with ``positive="id"`` below it, are found. Of equal
    thresholds it is the one that finds the fewest rows.
    """

    def tally(self, totals: Totals) -> Tally:
        keys = f"max_f1{self.side}", f"max_f1_threshold{self.side}"
        return BestF1(totals, keys, low=self.low)


@value
class Ranking(Numbers):
    """The numbers of a table of detectors: auroc, aupr_in, aupr_out and fpr95.

    As :func:`~pipeline.metrics.ranking_metrics`, from one statistic. ``aupr`` is the average
    precision.
    """

    @property
    def tasks(self) -> tuple[str, ...]:
        return (OOD,)

    def tally(self, totals: Totals) -> Tally:
        return Tallies(
            AreaUnderROC(totals),
            AveragePrecisionSum(totals, "aupr_in", low=True),
            AveragePrecisionSum(totals, "aupr_out", low=False),
            FalsePositiveRate(totals, "fpr95", 0.95, low=False),
        )


def _percent(share: float) -> str:
    return format(float(decimal(share) * 100), ".15g")
