"""Stripes: statistics whose states are large by nature, cut so that a worker can hold a piece.

A statistic with a covariance per class or position is folded piece by piece, one in each of several
passes. A piece is a statistic of its own, so partials, merges and resume know nothing of stripes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.chunk import Schema
from pipeline.fold import AnyStatistic
from pipeline.plan.memory import NARROWEST, Projection, project
from pipeline.plan.passes import Pass

Pieces = tuple[AnyStatistic, ...]
Stripes = Mapping[AnyStatistic, int]
"""Statistic -> number of pieces it is cut into; those that are whole are left out."""


@dataclass(frozen=True)
class Room:
    """What a worker may hold."""

    reserved_nbytes: int
    allowed_nbytes: int
    shrink: int = 0
    """Chunks may be read in 2^shrink steps before anything is cut: that costs no reads."""
    device_nbytes: int | None = None
    """What its device may hold; None where it has none."""

    def stripes(self, pass_: Pass) -> Stripes:
        """Return the fewest pieces that make a pass fit; none where it fits, or nothing helps."""

        def fits(counts: Stripes) -> bool:
            return self.holds(_chosen(pass_, counts, _widest))

        if self.holds(pass_):
            return {}
        narrowest = narrowest_stripes(pass_)
        if not fits(narrowest):
            return {}
        counts = dict.fromkeys(narrowest, 1)
        while not fits(counts):
            widest = max(
                (s for s in counts if counts[s] < narrowest[s]),
                key=lambda s: _widest_nbytes(pass_, s, counts[s]),
            )
            counts[widest] = min(2 * counts[widest], narrowest[widest])
        for statistic, count in counts.items():
            between = range(count // 2 + 1, count + 1)
            best = bisect_left(between, True, key=_fits_with(fits, counts, statistic))
            counts[statistic] = between[min(best, len(between) - 1)]
        return {statistic: count for statistic, count in counts.items() if count > 1}

    def holds(self, pass_: Pass) -> bool:
        """Tell whether a worker could hold a pass."""
        return self.fits(self.projected(pass_, self.shrink))

    def projected(self, pass_: Pass, shrink: int) -> Projection:
        """Return the memory of a worker, and of its device."""
        on_device = self.device_nbytes is not None
        return project(pass_, self.reserved_nbytes, shrink, on_device=on_device)

    def fits(self, projection: Projection) -> bool:
        """Tell whether a projection, and that of the device with it, is within what is allowed."""
        device = projection.device
        return projection.nbytes <= self.allowed_nbytes and (
            device is None or self.device_nbytes is None or device.nbytes <= self.device_nbytes
        )


def _fits_with(
    fits: Callable[[Stripes], bool], counts: Stripes, statistic: AnyStatistic
) -> Callable[[int], bool]:
    return lambda count: fits({**counts, statistic: count})


def narrowest_stripes(pass_: Pass) -> Stripes:
    """Return how many pieces each statistic can be cut into, of those that can be cut."""
    found = {
        statistic: len(pieces_of(statistic, work.split.schema, NARROWEST))
        for work in pass_.works
        for statistic in work.statistics
    }
    return {statistic: count for statistic, count in found.items() if count > 1}


def in_stripes(pass_: Pass, counts: Stripes) -> Iterator[Pass]:
    """Yield a pass with the first piece of everything, and one for each further piece."""
    asked = {statistic for work in pass_.works for statistic in work.statistics}
    turns = max((counts[statistic] for statistic in counts if statistic in asked), default=1)
    for turn in range(turns):
        part = _chosen(pass_, counts, lambda pieces, _: pieces[turn : turn + 1])  # noqa: B023
        works = part.works
        if turn:
            works = tuple(replace(work, rows=()) for work in works if work.statistics)
        yield replace(part, number=pass_.number + turn, works=works, turn=(turn + 1, turns))


def _chosen(pass_: Pass, counts: Stripes, choose: Callable[[Pieces, Schema], Pieces]) -> Pass:
    """Return a pass with some of the pieces of every statistic."""
    works, asked_by = [], dict(pass_.asked_by)
    for work in pass_.works:
        schema = work.split.schema
        statistics: list[AnyStatistic] = []
        for statistic in work.statistics:
            pieces = choose(pieces_of(statistic, schema, counts.get(statistic, 1)), schema)
            asked_by |= dict.fromkeys(pieces, pass_.asked_by.get(statistic, ()))
            statistics += pieces
        works.append(replace(work, statistics=tuple(statistics)))
    return replace(pass_, works=tuple(works), asked_by=asked_by)


def _widest(pieces: Pieces, schema: Schema) -> Pieces:
    return (max(pieces, key=lambda piece: piece.state_nbytes(schema)),)


def pieces_of(statistic: AnyStatistic, schema: Schema, count: int) -> Pieces:
    """Return at most ``count`` stripes of a statistic, or itself where one is enough."""
    stripes = statistic.stripes(schema, count) if count > 1 else None
    return tuple(stripes) if stripes else (statistic,)


def _widest_nbytes(pass_: Pass, statistic: AnyStatistic, count: int) -> int:
    schemas = [work.split.schema for work in pass_.works if statistic in work.statistics]
    widest = (_widest(pieces_of(statistic, schema, count), schema)[0] for schema in schemas)
    return max(piece.state_nbytes(schema) for piece, schema in zip(widest, schemas, strict=True))


def narrowed(pass_: Pass) -> Pass:
    """Return a pass with the widest of the narrowest pieces of every statistic."""
    return _chosen(pass_, narrowest_stripes(pass_), _widest)
