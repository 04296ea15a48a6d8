"""Metrics of scores, exact with ties, from the ranks: counts per distinct score.

A score orders rows and does nothing else: it is never transformed, and its range is never looked
at. Higher means more out-of-distribution. ``positive`` names the class that counts as found:
``ood`` reads scores from the top, ``id`` from the bottom (the same scores negated).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.estimates import exactly, undefined
from pipeline.procedure import Estimate, MetricResult, Passes
from pipeline.statistics import BoundedRanks, ExactRanks, RankHistogram, Ranks, refined_edges
from pipeline.statistics.bins import Bins
from pipeline.views import IsOOD, Stored, View

__all__ = [
    "AUROC",
    "AveragePrecision",
    "FPRAtTPR",
    "Ranking",
    "auroc",
    "auroc_within",
    "average_precision",
    "fpr_at_tpr",
    "from_the_top",
    "full_spectrum",
    "missing_side",
    "operating_point",
    "ranking_metrics",
    "ranks_of",
]

Counts = np.ndarray[Any, np.dtype[np.int64]]

SUFFIXES = {"ood": "out", "id": "in"}
"""Positive classes, and what names of numbers call them."""

FULL = "_full"
"""What names of numbers end in where covariate-shifted rows count as in-distribution."""
LARGEST_BINS = 2**24
LEAST_ROWS = 2**16
"""Distinct scores that ranks have room for in any case: 1.5 MiB of state."""


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
    if lacks := missing_side(ranks):
        return undefined(lacks)
    negatives, positives = _counts(ranks)
    below = np.cumsum(negatives) - negatives
    pairs = int(negatives.sum()) * int(positives.sum())
    doubled = _dot(positives, 2 * below + negatives, limit=2 * pairs)
    return exactly(doubled / (2 * pairs))


def auroc_within(bins: Bins) -> Estimate:
    """Return the area under the ROC curve between its bounds, from scores counted in bins.

    The order of two scores is known where their bins differ, or where all scores of a bin are
    equal; the pairs that are left count as half, and all or none of them make the bounds. So the
    bounds are sum_b p_b n_b / (P N) apart, over bins b of several scores.
    """
    if lacks := missing_side(bins):
        return undefined(lacks)
    negatives, positives = _counts(bins)
    below = np.cumsum(negatives) - negatives
    pairs = int(negatives.sum()) * int(positives.sum())
    tied = np.where(bins.least == bins.greatest, negatives, 0)
    sure = _dot(positives, 2 * below + tied, limit=2 * pairs)
    unsure = 2 * _dot(positives, negatives - tied, limit=pairs)
    if not unsure:
        return exactly(sure / (2 * pairs))
    return Estimate(
        (2 * sure + unsure) / (4 * pairs),
        math.nextafter(sure / (2 * pairs), 0.0),  # outwards: quotients are rounded
        math.nextafter((sure + unsure) / (2 * pairs), 1.0),
        exact=False,
    )


def average_precision(ranks: Ranks, positive: str = "ood") -> Estimate:
    """Return the average precision: sum over thresholds of (recall step) x (precision there).

    Ties enter whole; no interpolation. The terms are added without rounding error, so the value
    is right to about two units in the last place of float64.
    Differs from the trapezoid over precision-recall points in OpenOOD and pytorch-ood, which is
    too high under ties: 0.50005 for one positive in 10,000 equal scores, where AP is 0.0001.
    """
    hits, misses = from_the_top(ranks, positive)
    if lacks := missing_side(ranks):
        return undefined(lacks)
    found, raised = np.cumsum(hits), np.cumsum(misses)
    step = hits > 0
    weighted = hits[step].astype(np.float64) * found[step]
    terms = weighted / (found[step] + raised[step])
    return exactly(math.fsum(terms.tolist()) / int(found[-1]))


def fpr_at_tpr(ranks: Ranks, tpr: float = 0.95, positive: str = "ood") -> Estimate:
    """Return the false positive rate at the first threshold that finds a share ``tpr``.

    The share is compared in integers, ties enter whole, and nothing is interpolated. With
    ``positive="id"`` it is the share of OOD rows accepted while ``tpr`` of the ID rows are kept,
    the convention of the MSP and ODIN tables (Hendrycks and Gimpel 2017, Liang et al. 2018).
    Differs from OpenOOD, which looks among the corners of the curve only and steps past groups of
    ties that lie on a straight piece of it.
    """
    hits, misses = from_the_top(ranks, positive)
    if lacks := missing_side(ranks):
        return undefined(lacks)
    point = operating_point(hits, tpr)
    return exactly(int(misses[: point + 1].sum()) / int(misses.sum()))


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
    _check_positive(positive)
    negatives, positives = _counts(ranks)
    return (negatives, positives) if positive == "id" else (positives[::-1], negatives[::-1])


def operating_point(hits: Counts, tpr: float) -> int:
    """Return the first index up to which ``hits`` hold at least a share ``tpr`` of their sum."""
    share = Fraction(str(tpr))  # the decimal that was written, not its binary neighbour
    needed = math.ceil(share * int(hits.sum()))
    return int(np.searchsorted(np.cumsum(hits), needed))


def _counts(ranks: Ranks | Bins) -> tuple[Counts, Counts]:
    return arrays.to_host(ranks.negatives), arrays.to_host(ranks.positives)


def _dot(x: Counts, y: Counts, limit: int) -> int:
    """Return the exact sum of x * y, which is at most ``limit``."""
    if limit < 2**63:
        return int(np.dot(x, y))
    step = 65_536  # lists of Python integers are 10 times the size of their array
    slices = (slice(start, start + step) for start in range(0, len(x), step))
    return sum(sum(map(operator.mul, x[part].tolist(), y[part].tolist())) for part in slices)


def missing_side(ranks: Ranks | Bins) -> str:
    """Return why two classes cannot be told apart: which of them has no row; else nothing."""
    sides = zip(("in-distribution", "out-of-distribution"), _counts(ranks), strict=True)
    return " and ".join(f"no {side} row" for side, rows in sides if not rows.any())


def _check_positive(positive: str) -> None:
    if positive not in SUFFIXES:
        raise ConfigError(f"positive: {positive!r} is unknown; choose {' or '.join(SUFFIXES)}")


@value
class AUROC:
    """Area under the ROC curve of scores: ``auroc``; see :func:`auroc`.

    Exact ranks take 24 bytes for each distinct score. With ``bins`` the memory does not depend on
    the rows, the scores are read twice, and the value comes with bounds: see :func:`auroc_within`.
    """

    of: View = Stored("scores")
    is_ood: View = IsOOD()
    max_rows: int | None = None
    bins: int | None = None

    def __post_init__(self) -> None:
        if self.bins is not None and not 1 <= self.bins <= LARGEST_BINS:
            raise ConfigError(f"bins: {self.bins}; expected 1 to {LARGEST_BINS:,}, such as 65536")
        if self.bins is not None and self.max_rows is not None:
            raise ConfigError("bins: their memory does not depend on rows; leave out max_rows")

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        if self.bins is None:
            results = yield {"ranks": ranks_of(schema, self.of, self.is_ood, self.max_rows)}
            return {"auroc": auroc(results["ranks"])}
        coarse = yield {"coarse": BoundedRanks(self.of, self.is_ood)}
        edges = refined_edges(coarse["coarse"].bins(), self.bins)
        fine = yield {"ranks": RankHistogram(self.of, edges, self.is_ood)}
        return {"auroc": auroc_within(fine["ranks"])}


@value
class AveragePrecision:
    """Average precision: ``aupr_out`` (OOD positive) or ``aupr_in``; see
    :func:`average_precision`.
    """

    positive: str = "ood"
    of: View = Stored("scores")
    is_ood: View = IsOOD()
    max_rows: int | None = None

    def __post_init__(self) -> None:
        _check_positive(self.positive)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        results = yield {"ranks": ranks_of(schema, self.of, self.is_ood, self.max_rows)}
        return {
            f"aupr_{SUFFIXES[self.positive]}": average_precision(results["ranks"], self.positive)
        }


@value
class FPRAtTPR:
    """False positive rate at a true positive rate: ``fpr95``, or ``fpr95_id`` with ID positive.

    See :func:`fpr_at_tpr`.
    """

    tpr: float = 0.95
    positive: str = "ood"
    of: View = Stored("scores")
    is_ood: View = IsOOD()
    max_rows: int | None = None

    def __post_init__(self) -> None:
        _check_positive(self.positive)
        if not 0 < self.tpr <= 1:
            raise ConfigError(f"tpr: expected a share above 0 and up to 1, got {self.tpr}")

    @property
    def name(self) -> str:
        """Name of the number, with the rate in percent and the positive class where not OOD."""
        percent = format(float(Fraction(str(self.tpr)) * 100), ".15g")
        return f"fpr{percent}" + ("_id" if self.positive == "id" else "")

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        results = yield {"ranks": ranks_of(schema, self.of, self.is_ood, self.max_rows)}
        return {self.name: fpr_at_tpr(results["ranks"], self.tpr, self.positive)}


@value
class Ranking:
    """The numbers of a table of detectors from one statistic; see :func:`ranking_metrics`."""

    of: View = Stored("scores")
    is_ood: View = IsOOD()
    max_rows: int | None = None

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        results = yield {"ranks": ranks_of(schema, self.of, self.is_ood, self.max_rows)}
        return ranking_metrics(results["ranks"])
