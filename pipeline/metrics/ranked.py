"""How metrics of scores come by ranks in bounded memory: which passes, and what adds them up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import Const, replaced
from pipeline.metrics.intervals import Confidence, with_intervals
from pipeline.metrics.tallies import Tally, Totals, added_up
from pipeline.procedure import REHEARSING, MetricResult, Passes
from pipeline.statistics import (
    Bins,
    BoundedRanks,
    Ordered,
    RankHistogram,
    ScoreCounts,
    refined_edges,
    score_edges,
)
from pipeline.statistics.bins import STEPS
from pipeline.statistics.bounded_ranks import BIN_NBYTES
from pipeline.statistics.value_counts import BEYOND, LEAST
from pipeline.views import OfClass, Stored, View

__all__ = ["Binned", "Source", "TalliedMetric", "found_of", "tallied"]


class Source(NamedTuple):
    """Which scores of which elements are ranked, and how much is to be known of them."""

    of: View
    positive: View
    where: View
    budget_nbytes: int
    exact: bool
    bins: int | None
    fixed: bool

    @property
    def ranks(self) -> BoundedRanks:
        """The statistic of the first pass."""
        return BoundedRanks(self.of, self.positive, self.where, self.budget_nbytes)

    def width(self, schema: Schema) -> int:
        """Return the bytes of a score."""
        of = self.of.of if isinstance(self.of, OfClass) else self.of
        if isinstance(of, Stored):
            return max(4, min(8, schema.spec(of.field).memory_dtype.itemsize))
        return 8


class TalliedMetric(Protocol):
    """What adds up its own numbers."""

    def totals(self, negatives: int, positives: int) -> Totals:
        """Return the rows of both classes, and what is missing for there to be numbers."""
        ...

    def tally(self, totals: Totals) -> Tally:
        """Return what adds up the numbers, of so many rows in all."""
        ...


def tallied(
    source: Source, metric: TalliedMetric, schema: Schema, confidence: Confidence | None = None
) -> Passes[MetricResult]:
    """Ask for the ranks of scores, pass after pass as is wanted; return what they add up to.

    One pass where scores fit into the budget, or bounds are enough. ``exact`` takes another for
    each part of the scores that fits into it, and keeps no part once it is added up.
    ``confidence`` asks for intervals beside the numbers.
    """
    found = yield from found_of(source, schema)
    totals = metric.totals(*found.rows)
    if source.exact and not found.exact and not totals.lacks:
        tally = metric.tally(totals)
        yield from _resolved(source, found.bins(), tally, source.width(schema))
        numbers = tally.numbers()
    else:
        numbers = added_up(metric.tally(totals), found.pieces())
    if confidence is None:
        return numbers
    return with_intervals(numbers, confidence, metric.tally, totals, found.pieces)


class Binned(NamedTuple):
    """All bins, where scores were counted in them."""

    whole: Bins

    @property
    def exact(self) -> bool:
        return False

    @property
    def rows(self) -> tuple[int, int]:
        return int(self.whole.negatives.sum()), int(self.whole.positives.sum())

    def bins(self) -> Bins:
        return self.whole

    def pieces(self) -> Iterator[Bins]:
        yield self.whole


def found_of(source: Source, schema: Schema) -> Passes[Ordered | Binned]:
    """Ask for scores in order, or in bins."""
    if source.fixed:
        edges = _declared_edges(source.budget_nbytes)
        asked = ScoreCounts(source.of, edges, source.positive, source.where)
        return Binned((yield {"ranks": asked})["ranks"])
    found: Ordered = (yield {"ranks": source.ranks})["ranks"]
    if REHEARSING.get():
        yield from _rehearsed(source, schema)
    if source.bins is None or found.exact:
        return found
    edges = refined_edges(found.bins(), source.bins)
    asked_again = RankHistogram(source.of, edges, source.positive, source.where)
    return Binned((yield {"bins": asked_again})["bins"])


def _declared_edges(budget_nbytes: int) -> Const:
    """Return the finest edges whose counts fit, down to one bin for a factor of two."""
    steps = STEPS
    while steps > 1 and BIN_NBYTES * (score_edges(steps).shape[0] + 1) > budget_nbytes:
        steps //= 2
    return score_edges(steps)


def _resolved(source: Source, bins: Bins, tally: Tally, width: int) -> Passes[None]:
    """Give a tally all bins, in their order, and of those that it opens every score instead."""
    opened = tally.opens(bins)
    for start, stop in _ranges(bins, opened, source.budget_nbytes // width):
        part = Bins(*(x[start:stop] for x in bins))
        if not opened[start]:
            tally.take(part)
            continue
        asked = replaced(
            source.ranks,
            low=max(LEAST, int(part.least[0])),
            high=min(BEYOND, int(part.greatest[-1]) + 1),
        )
        found: Ordered = (yield {"ranks": asked})["ranks"]
        finer = None if found.exact else found.bins()
        for piece in found.pieces() if finer is None else ():
            tally.take(piece)
        del found  # before the next range is there
        if finer is not None:  # more rows share one bin than fit
            yield from _resolved(source, finer, tally, width)


def _ranges(bins: Bins, opened: Any, most_rows: int) -> Iterator[tuple[int, int]]:
    """Yield runs of bins, in order: closed ones, or such that begin and end with an open one.

    The latter have at most ``most_rows`` rows together, or are one bin.
    """
    rows = np.append(0, np.cumsum(bins.negatives + bins.positives))
    places = np.flatnonzero(opened)
    start = 0
    while start < len(opened):
        ahead = places[np.searchsorted(places, start) :]
        if not len(ahead) or ahead[0] > start:
            stop = int(ahead[0]) if len(ahead) else len(opened)
        else:
            fits = np.searchsorted(rows[ahead + 1], rows[start] + most_rows, side="right")
            stop = int(ahead[max(0, int(fits) - 1)]) + 1
        yield start, stop
        start = stop


def _rehearsed(source: Source, schema: Schema) -> Passes[None]:
    """Ask for the passes that so many rows would take: made-up ones are few, and fit anyway."""
    elements = schema.rows * int(np.prod(source.of.shape(schema), dtype=np.int64))
    parts = math.ceil(elements * source.width(schema) / source.budget_nbytes)
    if parts == 1:
        return
    if source.bins is not None:
        edges = refined_edges(_spread_out(), source.bins)
        yield {"bins": RankHistogram(source.of, edges, source.positive, source.where)}
    for part in range(parts if source.exact else 0):
        yield {"ranks": replaced(source.ranks, low=LEAST + part + 1)}


def _spread_out() -> Bins:
    """Return one bin of all numbers: edges that are cut from it are as many as are wanted."""
    return Bins(*(np.array([number]) for number in (1, 1, LEAST, BEYOND - 1)))
