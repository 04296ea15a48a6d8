"""Areas under curves, added up bin by bin in the order of scores: exact, or between bounds.

A tally is told how many rows there are in all, takes bins in ascending order, few or many at a
time, and forgets them. Of a bin whose scores are all equal, or that holds one row, all is known; of
any other the order within is not, and its best and its worst case make the bounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from pipeline.metrics.estimates import INT64_LIMIT, dot, exactly, undefined
from pipeline.procedure import Estimate, MetricResult
from pipeline.statistics import Bins

__all__ = [
    "AreaUnderROC",
    "AveragePrecisionSum",
    "Oriented",
    "Tallies",
    "Tally",
    "Totals",
    "TrapezoidSum",
    "added_up",
    "filled",
    "known",
]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

ROUNDING = 1e-14
"""By how much bounds of sums of quotients are moved outwards: float64 rounds far less than that."""


class Totals(NamedTuple):
    """Rows of both classes in all, and why there is no number where one of them has none."""

    negatives: int
    positives: int
    lacks: str = ""


class Tally(Protocol):
    """Numbers of a metric on their way."""

    @property
    def totals(self) -> Totals:
        """Rows of both classes; where one has none, there is nothing to take."""
        ...

    def opens(self, bins: Bins) -> Mask:
        """Return the bins (b,), the next ones, of which more must be known for exact numbers."""
        ...

    def take(self, bins: Bins) -> None:
        """Add the next bins."""
        ...

    def numbers(self) -> MetricResult:
        """Return the numbers once all bins are taken."""
        ...


def added_up(tally: Tally, pieces: Iterable[Bins]) -> MetricResult:
    """Return the numbers of a tally that takes all bins."""
    for piece in () if tally.totals.lacks else pieces:
        tally.take(piece)
    return tally.numbers()


class Tallies:
    """Several tallies of the same rows."""

    def __init__(self, *each: Tally) -> None:
        self.each, self.totals = each, each[0].totals

    def opens(self, bins: Bins) -> Mask:
        return np.logical_or.reduce([tally.opens(bins) for tally in self.each])  # type: ignore[no-any-return]

    def take(self, bins: Bins) -> None:
        for tally in self.each:
            tally.take(bins)

    def numbers(self) -> MetricResult:
        return {key: number for tally in self.each for key, number in tally.numbers().items()}


class Oriented(NamedTuple):
    """Bins as the curve meets them that begins with the surest positive; each (b,) int64.

    ``found`` and ``raised`` are the positive and the negative rows before a bin, ``hits`` and
    ``misses`` those in it.
    """

    hits: Counts
    misses: Counts
    found: Counts
    raised: Counts


def filled(bins: Bins) -> Bins:
    """Return the bins that hold a row."""
    rows = bins.negatives + bins.positives
    if rows.all():
        return bins
    return Bins(*(x[rows > 0] for x in bins))


def known(bins: Bins) -> Mask:
    """Return which bins (b,) hold nothing unknown: all their scores are equal, or there is one."""
    if bins.least is bins.greatest:  # of ranks, where there is a bin for each score
        return np.ones(len(bins.least), bool)
    mask: Mask = (bins.least == bins.greatest) | (bins.negatives + bins.positives == 1)
    return mask


class Running:
    """Rows of both classes below the bins to come."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.negatives = self.positives = 0

    def oriented(self, bins: Bins, *, low: bool = False) -> Oriented:
        """Return the next bins as a curve meets them, from high scores down, or ``low`` ones up."""
        n, p = bins.negatives, bins.positives
        n_below = self.negatives + np.cumsum(n) - n
        p_below = self.positives + np.cumsum(p) - p
        if low:
            return Oriented(n, p, n_below, p_below)
        found = self.totals.positives - p_below - p
        return Oriented(p, n, found, self.totals.negatives - n_below - n)

    def passed(self, bins: Bins) -> None:
        """Count bins that are done with."""
        self.negatives += int(bins.negatives.sum())
        self.positives += int(bins.positives.sum())


class AreaUnderROC:
    """2 P N AUROC = sum over bins of p (2 N_below + n): whole numbers throughout.

    Of a bin that is not known, none or all of its p n pairs may be in order.
    """

    def __init__(self, totals: Totals, key: str = "auroc") -> None:
        self.totals, self.key = totals, key
        self.running = Running(totals)
        self.sure = self.unsure = 0

    def opens(self, bins: Bins) -> Mask:
        return ~known(bins)

    def take(self, bins: Bins) -> None:
        bins = filled(bins)
        below = self.running.negatives + np.cumsum(bins.negatives) - bins.negatives
        sure = known(bins)
        tied = bins.negatives if sure.all() else np.where(sure, bins.negatives, 0)
        self.sure += _weighted(bins.positives, 2 * below + tied)
        if tied is not bins.negatives:
            self.unsure += 2 * _weighted(bins.positives, bins.negatives - tied)
        self.running.passed(bins)

    def numbers(self) -> MetricResult:
        if self.totals.lacks:
            return {self.key: undefined(self.totals.lacks)}
        doubled = 2 * self.totals.negatives * self.totals.positives
        if not self.unsure:
            return {self.key: exactly(self.sure / doubled)}
        value = (2 * self.sure + self.unsure) / (2 * doubled)
        lower, upper = self.sure / doubled, (self.sure + self.unsure) / doubled
        return {self.key: between(value, math.nextafter(lower, 0.0), math.nextafter(upper, 1.0))}


def _weighted(weights: Counts, x: Counts) -> int:
    """Return the exact sum of weights * x, none below zero."""
    if len(x) and int(weights.sum()) * int(x.max()) < INT64_LIMIT:
        return int(np.dot(weights, x))
    return dot(weights, x)


class QuotientSum(ABC):
    """Sum over positive rows of quotients in [0, 1], over their number; of terms that a form gives.

    Terms of a bin that is not known lie between a lower and an upper one. They are added without
    rounding error. An abstract base.
    """

    def __init__(self, totals: Totals, key: str, *, low: bool) -> None:
        self.totals, self.key, self.low = totals, key, low
        self.running = Running(totals)
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.exact = True

    @final
    def opens(self, bins: Bins) -> Mask:
        return ~known(bins)

    @final
    def take(self, bins: Bins) -> None:
        bins = filled(bins)
        sure = known(bins)
        every = self.running.oriented(bins, low=self.low)
        told, open_ = (Oriented(*(x[part] for x in every)) for part in (sure, ~sure))
        terms = math.fsum(self.terms(told).tolist())
        lower, upper = self.bounds(open_)
        self.exact = self.exact and bool((lower == upper).all())
        self.lower += [terms, math.fsum(lower.tolist())]
        self.upper += [terms, math.fsum(upper.tolist())]
        self.running.passed(bins)

    @abstractmethod
    def terms(self, at: Oriented) -> Floats:
        """Return the sum over the positive rows of each bin of equal scores."""

    @abstractmethod
    def bounds(self, at: Oriented) -> tuple[Floats, Floats]:
        """Return the least and the most that the sum of each bin may be."""

    @final
    def numbers(self) -> MetricResult:
        if self.totals.lacks:
            return {self.key: undefined(self.totals.lacks)}
        rows = self.totals.negatives if self.low else self.totals.positives
        lower, upper = math.fsum(self.lower) / rows, math.fsum(self.upper) / rows
        if self.exact:
            return {self.key: exactly(lower)}
        value = (lower + upper) / 2
        return {self.key: between(value, lower - ROUNDING, upper + ROUNDING)}


class AveragePrecisionSum(QuotientSum):
    """P AP = sum over scores of hits x precision there; ties enter whole.

    Of a bin that is not known the most is all positive rows tied above the negative ones, the least
    all negative rows first and then one positive row after the other.
    """

    def terms(self, at: Oriented) -> Floats:
        return at.hits * precision(at.found + at.hits, at.raised + at.misses)

    def bounds(self, at: Oriented) -> tuple[Floats, Floats]:
        most = at.hits * precision(at.found + at.hits, at.raised)
        return np.minimum(_one_by_one(at), most), most


class TrapezoidSum(QuotientSum):
    """P times the area under straight lines between the points of recall and precision.

    A score adds hits x (precision there + precision before it) / 2; before the first one precision
    is 1. Of a bin that is not known no point is above that of its positive rows alone, and each is
    at or above one with all its negative rows.
    """

    def terms(self, at: Oriented) -> Floats:
        there = precision(at.found + at.hits, at.raised + at.misses)
        return at.hits * (there + precision(at.found, at.raised)) / 2

    def bounds(self, at: Oriented) -> tuple[Floats, Floats]:
        most = at.hits * precision(at.found + at.hits, at.raised)
        before = at.hits * precision(at.found, at.raised + at.misses)
        return np.minimum((_one_by_one(at) + before) / 2, most), most


def precision(found: Counts, raised: Counts) -> Floats:
    """Return found / (found + raised), 1 where both are 0."""
    every = found + raised
    quotients: Floats = np.where(every > 0, found, 1) / np.maximum(every, 1)
    return quotients


def _one_by_one(at: Oriented) -> Floats:
    """Return no more than the sum over i = 1 to h of (f + i) / (f + i + c), c = raised + misses.

    It is h - c (psi(f+c+h+1) - psi(f+c+1)); psi(x) lies between ln x - 1/2x - 1/12x² and the first
    two terms of that.
    """
    c = (at.raised + at.misses).astype(np.float64)
    first = at.found + c + 1
    last = first + at.hits
    psi = np.log1p(at.hits / first) + 0.5 / first - 0.5 / last + 1 / (12 * first**2)
    at_first = at.hits * precision(at.found + 1, at.raised + at.misses)  # all as the first of them
    sums: Floats = np.maximum(at.hits - c * psi, at_first)
    return sums


def between(value: float, lower: float, upper: float) -> Estimate:
    """Return an estimate of a share between bounds."""
    return Estimate(value, max(lower, 0.0), min(upper, 1.0), exact=False)
