"""Metrics of scores, exact with ties, from the ranks: counts per distinct score.

A score orders rows and does nothing else: it is never transformed, and its range is never looked
at. Higher means more out-of-distribution. ``positive`` names the class that counts as found:
``ood`` reads scores from the top, ``id`` from the bottom (the same scores negated).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.chunk import Schema
from pipeline.errors import ConfigError
from pipeline.metrics.tallies import (
    AreaUnderROC,
    AveragePrecisionSum,
    Tally,
    Totals,
    TrapezoidSum,
    added_up,
)
from pipeline.metrics.thresholds import FalsePositiveRate, TruePositiveRate, decimal
from pipeline.procedure import Estimate, MetricResult
from pipeline.statistics import Bins, ExactRanks, Ranks
from pipeline.views import IsOOD, View

__all__ = [
    "SUFFIXES",
    "aupr_trapezoid",
    "auroc",
    "average_precision",
    "check_positive",
    "fpr_at_tpr",
    "from_the_top",
    "full_spectrum",
    "missing_side",
    "operating_point",
    "ranking_metrics",
    "ranks_of",
    "tpr_at_fpr",
]

Counts = np.ndarray[Any, np.dtype[np.int64]]

SUFFIXES = {"ood": "out", "id": "in"}
"""Positive classes, and what columns of tables of detectors call them."""
FULL = "_full"
"""What names of numbers end in where covariate-shifted rows count as in-distribution."""
LEAST_ROWS = 2**16
"""Distinct scores that ranks have room for in any case: 1 MiB of state."""


def ranks_of(
    schema: Schema,
    of: View,
    is_ood: View = IsOOD(),  # noqa: B008 - a value: it never changes
    max_rows: int | None = None,
) -> ExactRanks:
    """Return the statistic of the scores ``of``, with room for the rows of ``schema``.

    The room is a power of two, so that a few more rows leave the statistic, and what is cached of
    it, as it was. Give ``max_rows`` where several concatenations must share it.
    """
    room = 1 << (max(schema.rows, LEAST_ROWS) - 1).bit_length()
    return ExactRanks(of=of, positive=is_ood, max_rows=max_rows or room)


def auroc(ranks: Ranks) -> Estimate:
    """Return the area under the ROC curve: P(OOD score > ID score) + P(equal) / 2.

    2 P N AUROC = sum over scores of p (2 N_< + n), an integer; p and n count OOD and ID rows with
    the score, N_< ID rows below it. Positive class and sign flip together, so the side is moot.
    """
    return _number(ranks, lambda totals: AreaUnderROC(totals, ""))


def average_precision(ranks: Ranks, positive: str = "ood") -> Estimate:
    """Return the average precision: sum over thresholds of (recall step) x (precision there).

    Ties enter whole; no interpolation. The terms are added without rounding error, so the value
    is right to about two units in the last place of float64.
    Differs from the trapezoid over precision-recall points in OpenOOD and pytorch-ood, which is
    too high under ties: 0.50005 for one positive in 10,000 equal scores, where AP is 0.0001.
    """
    low = check_positive(positive) == "id"
    return _number(ranks, lambda totals: AveragePrecisionSum(totals, "", low=low))


def aupr_trapezoid(ranks: Ranks, positive: str = "ood") -> Estimate:
    """Return the area under straight lines between the points of the precision-recall curve.

    The curve begins at recall 0 with precision 1. It is what tables of OpenOOD and pytorch-ood call
    AUPR, and optimistic: precision is not linear between two points (Davis and Goadrich 2006, "The
    relationship between precision-recall and ROC curves"). :func:`average_precision` is not.
    """
    low = check_positive(positive) == "id"
    return _number(ranks, lambda totals: TrapezoidSum(totals, "", low=low))


def fpr_at_tpr(ranks: Ranks, tpr: float = 0.95, positive: str = "ood") -> Estimate:
    """Return the false positive rate at the first threshold that finds a share ``tpr``.

    The share is compared in integers, ties enter whole, and nothing is interpolated. With
    ``positive="id"`` it is the share of OOD rows accepted while ``tpr`` of the ID rows are kept,
    the convention of the MSP and ODIN tables (Hendrycks and Gimpel 2017, Liang et al. 2018).
    Differs from OpenOOD, which looks among the corners of the curve only and steps past groups of
    ties that lie on a straight piece of it.
    """
    low = check_positive(positive) == "id"
    return _number(ranks, lambda totals: FalsePositiveRate(totals, "", tpr, low=low))


def tpr_at_fpr(ranks: Ranks, fpr: float = 0.05, positive: str = "ood") -> Estimate:
    """Return the true positive rate at the last threshold that raises at most a share ``fpr``.

    As :func:`fpr_at_tpr`: shares in integers, ties whole, nothing interpolated; 0 where even the
    first threshold raises more.
    """
    low = check_positive(positive) == "id"
    return _number(ranks, lambda totals: TruePositiveRate(totals, "", fpr, low=low))


def ranking_metrics(ranks: Ranks) -> MetricResult:
    """Return what tables of detectors show: auroc, aupr_in, aupr_out and fpr95 (OOD positive)."""
    return {
        "auroc": auroc(ranks),
        "aupr_in": average_precision(ranks, "id"),
        "aupr_out": average_precision(ranks, "ood"),
        "fpr95": fpr_at_tpr(ranks),
    }


def full_spectrum(ranks: Ranks, shifted: Sequence[Ranks]) -> MetricResult:
    """Return ``auroc_full``, ``fpr95_full``, ...: covariate-shifted rows count as in-distribution.

    ``shifted`` are the ranks of such sets against the same in-distribution rows, as if they were
    out-of-distribution: their positive rows become negatives here.

    Reference: Yang, Zhou and Liu 2023, "Full-spectrum out-of-distribution detection", arXiv
    2204.05306.
    """
    values = [arrays.to_host(one.values) for one in (ranks, *shifted)]
    inside = [arrays.to_host(ranks.negatives), *(arrays.to_host(s.positives) for s in shifted)]
    distinct, places = np.unique(np.concatenate(values), return_inverse=True)
    negatives, positives = np.zeros((2, len(distinct)), np.int64)
    np.add.at(negatives, places, np.concatenate(inside))
    positives[places[: len(values[0])]] = arrays.to_host(ranks.positives)
    found = ranking_metrics(Ranks(distinct, negatives, positives))
    return {f"{name}{FULL}": number for name, number in found.items()}


def from_the_top(ranks: Ranks, positive: str = "ood") -> tuple[Counts, Counts]:
    """Return the rows of the positive and of the other class per score, surest positive first."""
    check_positive(positive)
    negatives, positives = _counts(ranks)
    return (negatives, positives) if positive == "id" else (positives[::-1], negatives[::-1])


def operating_point(hits: Counts, tpr: float) -> int:
    """Return the first index up to which ``hits`` hold at least a share ``tpr`` of their sum."""
    needed = math.ceil(decimal(tpr) * int(hits.sum()))
    return int(np.searchsorted(np.cumsum(hits), needed))


def missing_side(ranks: Ranks) -> str:
    """Return why two classes cannot be told apart: which of them has no row; else nothing."""
    sides = zip(("in-distribution", "out-of-distribution"), _counts(ranks), strict=True)
    return " and ".join(f"no {side} row" for side, rows in sides if not rows.any())


def check_positive(positive: str) -> str:
    """Return the positive class; raise :class:`ConfigError` for one that is unknown."""
    if positive not in SUFFIXES:
        raise ConfigError(f"positive: {positive!r} is unknown; choose {' or '.join(SUFFIXES)}")
    return positive


def _counts(ranks: Ranks) -> tuple[Counts, Counts]:
    return arrays.to_host(ranks.negatives), arrays.to_host(ranks.positives)


def _number(ranks: Ranks, make: Callable[[Totals], Tally]) -> Estimate:
    """Return the one number that a tally makes of ranks."""
    negatives, positives = _counts(ranks)
    tally = make(Totals(int(negatives.sum()), int(positives.sum()), missing_side(ranks)))
    order = np.arange(len(negatives))
    (number,) = added_up(tally, [Bins(negatives, positives, order, order)]).values()
    return number
