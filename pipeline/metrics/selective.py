"""Selective prediction: how often a model is wrong on the share of elements it is surest of.

Elements are taken from the surest on. Coverage is the share that is taken, risk how many of those
are wrong. Elements of equal doubt have no order: what is said of them is the mean over all orders.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, final

import numpy as np

from pipeline import arrays
from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.estimates import exactly, undefined
from pipeline.metrics.judging import NO_ELEMENTS, Judging
from pipeline.procedure import Estimate, MetricResult, Passes
from pipeline.statistics.bounded_ranks import BUDGET_NBYTES, BoundedRanks, Ordered
from pipeline.views import Stored, View
from pipeline.views.judged import Agrees, Judged

__all__ = ["AURC", "AURRA", "RiskCoverage", "RiskCoverageCurve", "aurc", "risk_coverage_curve"]

Counts = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]

DIRECT = 16
"""Largest group whose terms are added one by one."""
TABLE = 512
"""Harmonic numbers that are looked up; beyond, their asymptotic series is right to float64."""
ROUNDING = 2.0**-48
"""More than float64 arithmetic can make an area wrong by."""
PREDICTIONS = "predictions"


class RiskCoverageCurve(NamedTuple):
    """Points by rising coverage; each takes all elements up to some doubt, so ties are whole."""

    coverage: Floats
    risk: Floats


def aurc(doubts: Ordered) -> Estimate:
    """Return the area under the risk-coverage curve, (1/n) sum_k errors among the k surest / k.

    Of doubts, wrong elements are negatives and right ones positives. A group of m elements of equal
    doubt with e errors, after k elements with E errors, adds the mean over all orders of it,
    sum_{j=1..m} (E + e j / m) / (k + j). Where doubts did not fit the memory and are in bins, the
    bounds have the errors of each bin first, or last; the value has them spread evenly.

    Reference: Geifman, Uziel and El-Yaniv 2019, "Bias-reduced uncertainty estimation for deep
    neural classifiers", arXiv 1805.08206.
    """
    rows = sum(doubts.rows)
    if not rows:
        return undefined(NO_ELEMENTS)
    area = math.fsum(_areas(_groups(doubts))) / rows
    if doubts.exact or not _mixed(doubts):
        return exactly(area)
    last, first = (
        math.fsum(_areas(_groups(doubts, errors_first))) / rows for errors_first in (False, True)
    )
    return Estimate(area, max(0.0, last - ROUNDING), min(1.0, first + ROUNDING), exact=False)


def _mixed(doubts: Ordered) -> bool:
    """Tell whether wrong and right elements share a bin of several doubts."""
    return any(
        bool(np.any((p.negatives > 0) & (p.positives > 0) & (p.least < p.greatest)))
        for p in doubts.pieces()
    )


def _groups(doubts: Ordered, errors_first: bool | None = None) -> Iterator[tuple[Counts, Counts]]:
    """Yield the wrong and right elements of successive groups, many at a time.

    With ``errors_first``, or last, bins of several doubts are parted into two groups.
    """
    for piece in doubts.pieces():
        wrong, right = arrays.to_host(piece.negatives), arrays.to_host(piece.positives)
        if errors_first is not None:
            several = arrays.to_host(piece.least < piece.greatest)
            wrong, right = _parted(wrong, right, several, errors_first)
        yield wrong, right


def _parted(
    wrong: Counts, right: Counts, several: np.ndarray[Any, Any], errors_first: bool
) -> tuple[Counts, Counts]:
    """Return three groups for each one: the whole of it, or else its errors and the others."""
    none = np.zeros_like(wrong)
    whole = np.where(several, 0, wrong), np.where(several, 0, right)
    errors, others = (np.where(several, wrong, 0), none), (none, np.where(several, right, 0))
    order = (whole, errors, others) if errors_first else (whole, others, errors)
    parted = np.stack(order, axis=2).reshape(2, -1)
    return parted[0], parted[1]


def _areas(groups: Iterable[tuple[Counts, Counts]]) -> Iterator[float]:
    """Yield the sums of the terms of groups, many groups at a time."""
    taken = errors = 0
    for wrong, right in groups:
        m = wrong + right
        upto, wrong_upto = taken + np.cumsum(m), errors + np.cumsum(wrong)
        yield math.fsum(_of_groups(upto - m, wrong_upto - wrong, m, wrong).tolist())
        taken, errors = taken + int(m.sum()), errors + int(wrong.sum())


def _of_groups(k: Counts, before: Counts, m: Counts, e: Counts) -> Floats:
    """Return sum_{j=1..m} (before + e j / m) / (k + j) of each group; zero where m is."""
    total = np.zeros(len(m))
    share = e / np.maximum(m, 1)
    small = m <= DIRECT
    for j in range(1, min(DIRECT, int(m.max(initial=0))) + 1):
        total += np.where(small & (j <= m), (before + share * j) / (k + j), 0.0)
    large = ~small
    if large.any():
        k, m = k[large], m[large]
        inverse = _harmonic_step(k, k + m)
        total[large] = before[large] * inverse + share[large] * (m - k * inverse)
    return total


_HARMONIC = np.append(0.0, np.cumsum(1.0 / np.arange(1, TABLE + 1)))


def _harmonic_step(a: Counts, b: Counts) -> Floats:
    """Return 1/(a + 1) + ... + 1/b."""
    known = _HARMONIC[np.minimum(b, TABLE)] - _HARMONIC[np.minimum(a, TABLE)]
    x, y = np.maximum(a, TABLE).astype(np.float64), np.maximum(b, TABLE).astype(np.float64)
    step = y - x
    series = np.log1p(step / x) - step / (2 * x * y) + (1 / x**2 - 1 / y**2) / 12
    rest: Floats = known + series - (1 / x**4 - 1 / y**4) / 120
    return rest


def risk_coverage_curve(doubts: Ordered, max_points: int = 500) -> RiskCoverageCurve:
    """Return the risk-coverage curve, at most ``max_points`` (>= 2) of its points, ends included.

    Of doubts in bins it has points where bins end: these are exact, too.
    """
    if max_points < 2:
        raise ConfigError(f"max_points: a curve keeps at least 2 points, got {max_points}")
    bins = doubts.bins()
    wrong, right = arrays.to_host(bins.negatives), arrays.to_host(bins.positives)
    if not len(wrong):
        return RiskCoverageCurve(np.zeros(0), np.zeros(0))
    taken, errors = np.cumsum(wrong + right), np.cumsum(wrong)
    coverage, risk = taken / taken[-1], errors / taken
    kept: Any = slice(None)
    if len(taken) > max_points:
        length = coverage + np.append(0.0, np.cumsum(np.abs(np.diff(risk))))
        even = np.linspace(length[0], length[-1], max_points)
        kept = np.unique(np.searchsorted(length, even).clip(max=len(taken) - 1))
    return RiskCoverageCurve(coverage[kept], risk[kept])


@value
class Selective(Judging):
    """A metric of elements from the surest on: an abstract base.

    Doubt is one minus the probability of the predicted class, or the stored array ``doubt``, higher
    where a model is less sure. Predictions are the array ``predictions`` where there is one, else
    they are taken from the scores. Doubts are kept while they fit ``budget_nbytes``, 8 bytes each;
    more are counted in bins, and an area comes with bounds.
    """

    doubt: str | None = None
    budget_nbytes: int = BUDGET_NBYTES

    @final
    def doubts(self, schema: Schema) -> Passes[Ordered]:
        """Ask for the doubts of wrong elements (negatives) and of right ones (positives)."""
        asked = BoundedRanks(*self._views(schema), self.among(schema), self.budget_nbytes)
        found: Ordered = (yield {"doubts": asked})["doubts"]
        return found

    def _views(self, schema: Schema) -> tuple[View, View]:
        """Return the views of doubts and of whether predictions are right."""
        brought = PREDICTIONS in schema.arrays
        hit: View = Agrees(Stored(PREDICTIONS)) if brought else self._judged(schema, "hit")
        of = self._judged(schema, "doubt") if self.doubt is None else Stored(self.doubt)
        return of, hit

    def _judged(self, schema: Schema, quantity: str) -> View:
        return Judged(self.judgements(schema), quantity)


@value
class AURC(Selective):
    """Area under the risk-coverage curve: ``aurc``, see :func:`aurc`; 0 is best.

    Differs from codes that sort once: equal doubts have no order here.
    """

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        return {"aurc": aurc((yield from self.doubts(schema)))}


@value
class AURRA(Selective):
    """Area under the response rate accuracy curve: ``aurra``, one minus :class:`AURC`.

    Reference: Hendrycks, Zhao, Basart, Steinhardt and Song 2021, "Natural adversarial examples",
    arXiv 1907.07174. Differs from their code, whose value depends on the order of equal doubts.
    """

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        area = aurc((yield from self.doubts(schema)))
        number = Estimate(1 - area.value, 1 - area.upper, 1 - area.lower, area.exact, area.reason)
        return {"aurra": number}


@value
class RiskCoverage(Selective):
    """The risk-coverage curve, a :class:`RiskCoverageCurve` of at most ``max_points``."""

    max_points: int = 500

    def passes(self, schema: Schema) -> Passes[RiskCoverageCurve]:
        return risk_coverage_curve((yield from self.doubts(schema)), self.max_points)
