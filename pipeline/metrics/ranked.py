"""What all metrics of scores share: their options, and how they come by ranks in bounded memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY
from typing import Any, NamedTuple, final

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import replaced, value
from pipeline.errors import ConfigError
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
from pipeline.statistics.bounded_ranks import BUDGET_NBYTES
from pipeline.statistics.value_counts import BEYOND, LEAST
from pipeline.views import Every, IsOOD, Labelled, Positive, Stored, View
from pipeline.views.judged import Counted

__all__ = ["OfScores", "Source", "ignored", "tallied"]

TASKS = ("ood", "binary")
SIDES = ("ood", "id")
LARGEST_BINS = 2**24
SCORES, LOGITS = "scores", "logits"
"""Arrays of scores that are looked for, in this order."""


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
        if isinstance(self.of, Stored):
            return max(4, min(8, schema.spec(self.of.field).memory_dtype.itemsize))
        return 8


@value
class OfScores(ABC):
    """A metric of scores and of two classes: an abstract base that is only ever derived from.

    ``task``: ``ood`` (out-of-distribution rows are the ones that high scores speak for) or
    ``binary`` (elements with label 1 are, of labels 0 and 1). ``ignore``: labels that do not count,
    one or several. ``of``: view of the scores, by default the stored array ``scores``, else
    ``logits``; rows of any shape, one for each element. ``is_ood``: which rows are
    out-of-distribution; by default those of such splits. ``where``: filter of rows.

    Scores are kept in order, exactly, while they fit into ``budget`` bytes: 4 for each float32
    score, 8 for each of float64, and never more than 16 for each distinct one of a class. Where
    they do not, the number is given with bounds, and ``bins`` asks for a further pass that counts
    them in so many bins, cut to the scores. With ``exact`` the scores are read again range by range
    until the number is exact. ``fixed`` counts them between edges that are declared beforehand:
    such states have a fixed size and add up over processes.
    """

    _: KW_ONLY
    task: str = "ood"
    ignore: int | tuple[int, ...] = ()
    of: View | None = None
    is_ood: View | None = None
    where: View | None = None
    budget: int = BUDGET_NBYTES
    exact: bool = False
    bins: int | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        if self.task not in self.tasks:
            raise ConfigError(f"task: {self.task!r} is unknown; choose {', '.join(self.tasks)}")
        if self.bins is not None and not 1 <= self.bins <= LARGEST_BINS:
            raise ConfigError(f"bins: {self.bins}; expected 1 to {LARGEST_BINS:,}, such as 65536")
        chosen = [name for name in ("exact", "bins", "fixed") if getattr(self, name)]
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)}: these exclude each other; choose one")
        if self.task != "ood" and self.is_ood is not None:
            raise ConfigError(f"is_ood: a {self.task} task is told its classes by labels")
        object.__setattr__(self, "ignore", ignored(self.ignore))
        BoundedRanks(Stored(SCORES), budget_nbytes=self.budget)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that the metric has."""
        return TASKS

    @abstractmethod
    def tally(self, totals: Totals) -> Tally:
        """Return what adds up the numbers, of so many rows in all."""

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        """Ask for ranks until the numbers are as exact as was asked for; return them."""
        return (yield from tallied(self.source(schema), self, schema))

    @final
    def source(self, schema: Schema) -> Source:
        """Return what is ranked of a split."""
        of = self.of or Stored(SCORES if SCORES in schema.arrays else LOGITS)
        options = (self.budget, self.exact, self.bins, self.fixed)
        if self.task == "ood":
            return Source(of, self.is_ood or IsOOD(), self.where or Every(), *options)
        if schema.classes != 2:
            raise ConfigError(
                f"task: binary, but {schema.split} declares {schema.classes} classes; declare 2"
            )
        return Source(of, Positive(), self.counted(schema, "binary"), *options)

    @final
    def counted(self, schema: Schema, task: str) -> View:
        """Return the filter of elements by their labels."""
        several = "labels" in schema.arrays and schema.arrays["labels"].shape
        rows = self.where or (Every() if several else Labelled())
        return Counted(task, ignored(self.ignore), rows)

    @final
    def totals(self, negatives: int, positives: int) -> Totals:
        """Return the rows of both classes, and which of them is missing."""
        names = ("in-distribution row", "out-of-distribution row")
        if self.task == "binary":
            names = ("element with label 0", "element with label 1")
        pairs = zip(names, (negatives, positives), strict=True)
        return Totals(
            negatives, positives, " and ".join(f"no {name}" for name, n in pairs if not n)
        )


def ignored(given: Any) -> tuple[int, ...]:
    """Return labels that do not count, in ascending order."""
    labels = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(c, int) and not isinstance(c, bool) for c in labels):
        raise ConfigError(f"ignore: {given!r}; expected a label such as 255, or several: (0, 255)")
    return tuple(sorted(set(labels)))


def tallied(source: Source, metric: Any, schema: Schema) -> Passes[MetricResult]:
    """Ask for the ranks of scores, pass after pass as is wanted; return what they add up to.

    One pass where scores fit into the budget, or bounds are enough. ``exact`` takes another for
    each part of the scores that fits into it, and keeps no part once it is added up.
    """
    if source.fixed:
        edges = score_edges()
        counted = yield {"ranks": ScoreCounts(source.of, edges, source.positive, source.where)}
        return _told(metric, counted["ranks"])
    found: Ordered = (yield {"ranks": source.ranks})["ranks"]
    if REHEARSING.get():
        yield from _rehearsed(source, schema, found)
    if source.bins is not None and not found.exact:
        edges = refined_edges(found.bins(), source.bins)
        bins = yield {"bins": RankHistogram(source.of, edges, source.positive, source.where)}
        return _told(metric, bins["bins"])
    totals = metric.totals(*found.rows)
    if not source.exact or found.exact or totals.lacks:
        return added_up(metric.tally(totals), found.pieces())
    tally: Tally = metric.tally(totals)
    yield from _resolved(source, found.bins(), tally, source.width(schema))
    return tally.numbers()


def _told(metric: Any, bins: Bins) -> MetricResult:
    totals = metric.totals(int(bins.negatives.sum()), int(bins.positives.sum()))
    return added_up(metric.tally(totals), [bins])


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


def _rehearsed(source: Source, schema: Schema, found: Ordered) -> Passes[None]:
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
