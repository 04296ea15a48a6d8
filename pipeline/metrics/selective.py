"""Selective prediction: how often a model is wrong on the share of elements it is surest of.

Elements are taken from the surest on. Coverage is the share that is taken, risk how many of those
are wrong. Elements of equal doubt have no order: what is said of them is the mean over all orders.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

import numpy as np

from pipeline import arrays
from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.estimates import exactly, undefined
from pipeline.metrics.judging import NO_ELEMENTS, Judging
from pipeline.metrics.ranked import Source, tallied
from pipeline.metrics.scores import AUROC
from pipeline.metrics.tallies import ROUNDING, Totals, between, known
from pipeline.procedure import Estimate, MetricResult, Passes
from pipeline.statistics import Bins, Ordered
from pipeline.statistics.bounded_ranks import BUDGET_NBYTES
from pipeline.views import Stored, View
from pipeline.views.judged import Agrees, Judged

__all__ = [
    "AURC",
    "AURRA",
    "RiskArea",
    "RiskCoverage",
    "RiskCoverageCurve",
    "risk_coverage_curve",
]

Counts = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

DIRECT = 16
"""Largest group whose terms are added one by one."""
TABLE = 512
"""Harmonic numbers that are looked up; beyond, their asymptotic series is right to float64."""
PREDICTIONS = "predictions"


class RiskCoverageCurve(NamedTuple):
    """Points by rising coverage; each takes all elements up to some doubt, so ties are whole."""

    coverage: Floats
    risk: Floats


class RiskArea:
    """Tally of the area under the risk-coverage curve, (1/n) sum_k errors among the k surest / k.

    Of doubts, wrong elements are negatives and right ones positives. A group of m elements of equal
    doubt with e errors, after k elements with E errors, adds the mean over all orders of it,
    sum_{j=1..m} (E + e j / m) / (k + j). Of a bin whose doubts differ, the bounds have its errors
    last, or first; the value has them spread evenly.
    """

    key = "aurc"

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.taken = self.errors = 0
        self.lower, self.value, self.upper = list[float](), list[float](), list[float]()
        self.exact = True

    def opens(self, bins: Bins) -> Mask:
        mixed: Mask = (bins.negatives > 0) & (bins.positives > 0) & ~known(bins)
        return mixed

    def take(self, bins: Bins) -> None:
        e, right = bins.negatives, bins.positives
        m = e + right
        k, before = self.taken + np.cumsum(m) - m, self.errors + np.cumsum(e) - e
        none, open_ = np.zeros_like(m), self.opens(bins)
        evenly = _of_groups(k, before, m, e)
        last = _of_groups(k, before, right, none) + _of_groups(k + right, before, e, e)
        first = _of_groups(k, before, e, e) + _of_groups(k + e, before + e, right, none)
        for sums, terms in ((self.lower, last), (self.value, evenly), (self.upper, first)):
            sums.append(math.fsum(np.where(open_, terms, evenly).tolist()))
        self.exact = self.exact and not open_.any()
        self.taken, self.errors = self.taken + int(m.sum()), self.errors + int(e.sum())

    def numbers(self) -> MetricResult:
        if self.totals.lacks:
            return {self.key: undefined(self.totals.lacks)}
        lower, value, upper = (
            math.fsum(sums) / self.taken for sums in (self.lower, self.value, self.upper)
        )
        if self.exact:
            return {self.key: exactly(value)}
        return {self.key: between(value, lower - ROUNDING, upper + ROUNDING)}


class AccuracyArea(RiskArea):
    """The same tally of one minus the area."""

    key = "aurra"

    def numbers(self) -> MetricResult:
        (area,) = super().numbers().values()
        number = Estimate(1 - area.value, 1 - area.upper, 1 - area.lower, area.exact, area.reason)
        return {self.key: number}


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
    they are taken from the scores. ``budget``, ``exact``, ``bins`` and ``fixed`` are as of
    :class:`~pipeline.metrics.of_scores.OfScores`: doubts are kept while they fit, more have bounds.
    """

    doubt: str | None = None
    budget: int = BUDGET_NBYTES
    exact: bool = False
    bins: int | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # Its options are checked alike.
        AUROC(budget=self.budget, exact=self.exact, bins=self.bins, fixed=self.fixed)

    @final
    def source(self, schema: Schema) -> Source:
        """Return what is ranked: the doubts of wrong elements (negatives) and of right ones."""
        brought = PREDICTIONS in schema.arrays
        hit: View = Agrees(Stored(PREDICTIONS)) if brought else self._judged(schema, "hit")
        of = self._judged(schema, "doubt") if self.doubt is None else Stored(self.doubt)
        options = (self.budget, self.exact, self.bins, self.fixed)
        return Source(of, hit, self.among(schema), *options)

    def _judged(self, schema: Schema, quantity: str) -> View:
        return Judged(self.judgements(schema), quantity)

    @final
    def totals(self, wrong: int, right: int) -> Totals:
        """Return how many elements there are."""
        return Totals(wrong, right, "" if wrong + right else NO_ELEMENTS)


@value
class AURC(Selective):
    """Area under the risk-coverage curve: ``aurc``, see :class:`RiskArea`; 0 is best.

    Reference: Geifman, Uziel and El-Yaniv 2019, "Bias-reduced uncertainty estimation for deep
    neural classifiers", arXiv 1805.08206. Differs from codes that sort once: equal doubts have no
    order here.
    """

    def tally(self, totals: Totals) -> RiskArea:
        """Return what adds it up."""
        return RiskArea(totals)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        return (yield from tallied(self.source(schema), self, schema))


@value
class AURRA(Selective):
    """Area under the response rate accuracy curve: ``aurra``, one minus :class:`AURC`.

    Reference: Hendrycks, Zhao, Basart, Steinhardt and Song 2021, "Natural adversarial examples",
    arXiv 1907.07174. Differs from their code, whose value depends on the order of equal doubts.
    """

    def tally(self, totals: Totals) -> RiskArea:
        """Return what adds it up."""
        return AccuracyArea(totals)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        return (yield from tallied(self.source(schema), self, schema))


@value
class RiskCoverage(Selective):
    """The risk-coverage curve, a :class:`RiskCoverageCurve` of at most ``max_points``."""

    max_points: int = 500

    def passes(self, schema: Schema) -> Passes[RiskCoverageCurve]:
        found: Ordered = (yield {"ranks": self.source(schema).ranks})["ranks"]
        return risk_coverage_curve(found, self.max_points)
