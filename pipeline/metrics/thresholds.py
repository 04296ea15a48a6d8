"""Points of a curve: rates at a rate, and the best of all thresholds; exact, or between bounds.

A threshold is a score: rows at it and beyond are found. So there are as many as distinct scores,
ties enter whole, and nothing is interpolated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import final

import numpy as np

from pipeline.metrics.estimates import exactly, undefined
from pipeline.metrics.tallies import (
    Counts,
    Floats,
    Mask,
    Oriented,
    Running,
    Totals,
    between,
    filled,
    known,
)
from pipeline.procedure import Estimate, MetricResult
from pipeline.statistics import Bins
from pipeline.statistics.value_counts import values_of

__all__ = ["BestF1", "BestSeparation", "FalsePositiveRate", "TruePositiveRate"]

NEARLY = 1e-14
"""Shares of rows that float64 may put in the wrong order."""


def decimal(share: float) -> Fraction:
    """Return the decimal number that was written, not its binary neighbour."""
    return Fraction(str(share))


class RateAtRate(ABC):
    """A rate at the threshold where another one reaches, or is about to pass, a share.

    The one bin that holds the threshold decides. An abstract base.
    """

    def __init__(self, totals: Totals, key: str, share: float, *, low: bool) -> None:
        self.totals, self.key, self.low = totals, key, low
        self.running = Running(totals)
        pair = (totals.positives, totals.negatives)
        self.hits, self.misses = pair[::-1] if low else pair
        self.wanted = self.rows_at(decimal(share))
        self.least, self.most = self.default

    @abstractmethod
    def rows_at(self, share: Fraction) -> int:
        """Return the rows of the rate that is given."""

    @property
    @abstractmethod
    def default(self) -> tuple[int, int]:
        """Least and most rows of the other rate where no bin holds the threshold."""

    @abstractmethod
    def decides(self, at: Oriented) -> Mask:
        """Return the bin (b,), one at most, that holds the threshold."""

    @abstractmethod
    def rows(self, at: Oriented, sure: Mask) -> tuple[Counts, Counts]:
        """Return the least and the most rows of the other rate, by the bin of the threshold."""

    @abstractmethod
    def rate(self, rows: int) -> float:
        """Return the other rate of so many rows."""

    @final
    def opens(self, bins: Bins) -> Mask:
        at = self.running.oriented(bins, low=self.low)
        least, most = self.rows(at, known(bins))
        return self.decides(at) & (least < most)

    @final
    def take(self, bins: Bins) -> None:
        bins = filled(bins)
        at = self.running.oriented(bins, low=self.low)
        least, most = self.rows(at, known(bins))
        for place in np.flatnonzero(self.decides(at)):
            self.least, self.most = int(least[place]), int(most[place])
        self.running.passed(bins)

    @final
    def numbers(self) -> MetricResult:
        if self.totals.lacks:
            return {self.key: undefined(self.totals.lacks)}
        least, most = self.rate(self.least), self.rate(self.most)
        if self.least == self.most:
            return {self.key: exactly(least)}
        lower, upper = math.nextafter(least, 0.0), math.nextafter(most, 1.0)
        return {self.key: between((least + most) / 2, lower, upper)}


@final
class FalsePositiveRate(RateAtRate):
    """False positive rate at the first threshold that finds a share of the positive rows."""

    def rows_at(self, share: Fraction) -> int:
        return math.ceil(share * self.hits)

    @property
    def default(self) -> tuple[int, int]:
        return 0, 0

    def decides(self, at: Oriented) -> Mask:
        mask: Mask = (at.found < self.wanted) & (self.wanted <= at.found + at.hits)
        return mask

    def rows(self, at: Oriented, sure: Mask) -> tuple[Counts, Counts]:
        most = at.raised + at.misses
        return np.where(sure, most, at.raised), most

    def rate(self, rows: int) -> float:
        return rows / self.misses


@final
class TruePositiveRate(RateAtRate):
    """True positive rate at the last threshold that raises no more than a share of negative rows.

    1 where all thresholds are such.
    """

    def rows_at(self, share: Fraction) -> int:
        return math.floor(share * self.misses)

    @property
    def default(self) -> tuple[int, int]:
        return self.hits, self.hits

    def decides(self, at: Oriented) -> Mask:
        mask: Mask = (at.raised <= self.wanted) & (self.wanted < at.raised + at.misses)
        return mask

    def rows(self, at: Oriented, sure: Mask) -> tuple[Counts, Counts]:
        return at.found, np.where(sure, at.found, at.found + at.hits)

    def rate(self, rows: int) -> float:
        return rows / self.hits


class BestThreshold(ABC):
    """The largest of a quotient over all thresholds, and the surest threshold that has it.

    Between two thresholds that are known, a bin can do no better than with all its positive rows
    and none of its negative ones. An abstract base.
    """

    def __init__(self, totals: Totals, keys: tuple[str, str], *, low: bool) -> None:
        self.totals, self.keys, self.low = totals, keys, low
        self.running = Running(totals)
        pair = (totals.positives, totals.negatives)
        self.hits, self.misses = pair[::-1] if low else pair
        self.best, self.ends = Fraction(-1), (0, 0)
        self.floor = -math.inf
        """What is known to be reached somewhere, also in bins to come."""
        self.open: list[tuple[Floats, Counts, Counts]] = []

    @abstractmethod
    def nearly(self, found: Counts, raised: Counts) -> Floats:
        """Return the quotient at thresholds with so many rows, rounded."""

    @abstractmethod
    def exactly(self, found: int, raised: int) -> Fraction:
        """Return the quotient itself."""

    @abstractmethod
    def number(self, best: Fraction) -> Fraction:
        """Return the number whose largest quotient it is."""

    @final
    def opens(self, bins: Bins) -> Mask:
        at = self.running.oriented(bins, low=self.low)
        self.floor = max(self.floor, float(self._ends(at).max(initial=-math.inf)))
        several = bins.least != bins.greatest  # of one row, it is the threshold that is not known
        mask: Mask = several & (self._most(at) >= self.floor - NEARLY)
        return mask

    @final
    def take(self, bins: Bins) -> None:
        bins = filled(bins)
        at = self.running.oriented(bins, low=self.low)
        ends = self._ends(at)
        least = float(ends.max(initial=-math.inf)) - NEARLY
        for place in np.flatnonzero(ends >= max(least, float(self.best) - NEARLY)):
            value = self.exactly(
                int(at.found[place] + at.hits[place]), int(at.raised[place] + at.misses[place])
            )
            # Bins ascend: of equal quotients the last is the surest, or with low ones the first.
            if value > self.best or (value == self.best and not self.low):
                self.best = value
                self.ends = int(bins.least[place]), int(bins.greatest[place])
        unknown = ~known(bins)
        if unknown.any():
            self.open.append((self._most(at)[unknown], bins.least[unknown], bins.greatest[unknown]))
        self.running.passed(bins)

    @final
    def numbers(self) -> MetricResult:
        if self.totals.lacks:
            return dict.fromkeys(self.keys, undefined(self.totals.lacks))
        value, (number, threshold) = float(self.number(self.best)), self.keys
        most, least, greatest = self._better()
        low, high = min([self.ends[0], *least.tolist()]), max([self.ends[1], *greatest.tolist()])
        at = Estimate(
            _score(self.ends[1 if self.low else 0]), _score(low), _score(high), exact=low == high
        )
        if not len(most):
            return {number: exactly(value), threshold: at}
        upper = float(self.number(Fraction(float(most.max())))) + NEARLY
        lower = math.nextafter(value, 0.0)
        return {number: between((value + upper) / 2, lower, upper), threshold: at}

    @final
    def _better(self) -> tuple[Floats, Counts, Counts]:
        """Return the bins that may hold a better threshold: the most of each, and their ends."""
        none = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)
        most, least, greatest = map(np.concatenate, zip(none, *self.open, strict=True))
        kept = most > float(self.best) - NEARLY
        return most[kept], least[kept], greatest[kept]

    @final
    def _ends(self, at: Oriented) -> Floats:
        return self.nearly(at.found + at.hits, at.raised + at.misses)

    @final
    def _most(self, at: Oriented) -> Floats:
        return self.nearly(at.found + at.hits, at.raised)


@final
class BestSeparation(BestThreshold):
    """The largest TPR - FPR; detection accuracy is half of it plus one half."""

    def nearly(self, found: Counts, raised: Counts) -> Floats:
        gaps: Floats = found / max(1, self.hits) - raised / max(1, self.misses)
        return gaps

    def exactly(self, found: int, raised: int) -> Fraction:
        return Fraction(found, self.hits) - Fraction(raised, self.misses)

    def number(self, best: Fraction) -> Fraction:
        return (1 + best) / 2


@final
class BestF1(BestThreshold):
    """The largest 2 TP / (2 TP + FP + FN)."""

    def nearly(self, found: Counts, raised: Counts) -> Floats:
        scores: Floats = 2 * found / np.maximum(1, found + raised + self.hits)
        return scores

    def exactly(self, found: int, raised: int) -> Fraction:
        return Fraction(2 * found, found + raised + self.hits)

    def number(self, best: Fraction) -> Fraction:
        return best


def _score(key: int) -> float:
    return float(values_of(np.array([key]))[0])
