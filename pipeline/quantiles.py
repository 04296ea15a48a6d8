"""Exact quantiles of a view in few passes, and exact order statistics behind them.

The first pass counts values in bins of equal leading bits, as fine as a table of bounded size
allows; each further pass does the same within the bins that hold what is looked for, until bins
are single values. So what is found never depends on luck; only the number of passes does: two for
up to 10^9 values, unless very many crowd into one bin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import Const
from pipeline.procedure import REHEARSING, Passes
from pipeline.statistics.value_counts import (
    BEYOND,
    LEAST,
    ROOM,
    Counted,
    ValueCounts,
    everything,
    values_of,
)
from pipeline.views import Valid, View

Host = np.ndarray[Any, Any]

BINS = 2**20
"""Bins of all groups together: 16 MiB of state."""
LEAST_ROOM = 16


def quantiles(
    schema: Schema,
    of: View,
    probabilities: Sequence[float],
    *,
    where: View = Valid(),  # noqa: B008 - a value: it never changes
    per_column: bool = False,
) -> Passes[Host]:
    """Return quantiles of all entries of a view, (q,), or of each of its columns, (q, d).

    Linear between the two nearest values, as ``numpy.quantile`` of the whole array, to the last
    bit. All quantiles share the passes.
    """

    def wanted(count: int) -> Sequence[int]:
        lower = [math.floor(p * (count - 1)) for p in probabilities]
        return [rank for low in lower for rank in (low, min(low + 1, count - 1))]

    count, values = yield from order_statistics(
        schema, of, wanted, where=where, per_column=per_column
    )
    places = [p * (count - 1) for p in probabilities]
    found = [
        _between(low, high, place - math.floor(place))
        for low, high, place in zip(values[::2], values[1::2], places, strict=True)
    ]
    return np.stack(found) if per_column else np.stack(found)[:, 0]


def _between(low: Host, high: Host, share: float) -> Host:
    """Return values between others, rounded as numpy does it."""
    with np.errstate(over="ignore", invalid="ignore"):
        step = high - low
        inner = low + step * share if share < 0.5 else high - step * (1 - share)
        inner = np.where(np.isfinite(step), inner, low * (1 - share) + high * share)
    exact = low if share == 0 else np.where(low == high, low, inner)
    return np.asarray(exact)


def order_statistics(
    schema: Schema,
    of: View,
    wanted: Callable[[int], Sequence[int]],
    *,
    where: View = Valid(),  # noqa: B008
    per_column: bool = False,
) -> Passes[tuple[int, Host]]:
    """Return how many values a view has, and those of the given ranks: (r, 1), or (r, d) columns.

    ``wanted`` is told the number of values, of each column if ``per_column``, and returns ranks
    from 0 for the least. Zeros of both signs are 0; of no values all are NaN.
    """
    entries = int(np.prod(of.shape(schema), dtype=np.int64))
    columns = entries if per_column else 1
    asked = ValueCounts(of, *everything(columns), where, _room(columns))
    planned = _planned(schema.rows * entries // columns, asked.room)
    search: _Search | None = None
    passes = 0
    while search is None or not search.ended:
        if search is not None:
            low, high = search.bounds()
            asked = ValueCounts(of, low, high, where, _room(math.prod(low.shape)))
        counted: Counted = (yield {"values": asked})["values"]
        passes += 1
        if search is None:
            search = _Search.beginning(counted, columns, wanted)
            if not search.count:
                return 0, np.full((len(wanted(0)), columns), np.nan)
        # Made-up rows are few: the plan is to show the passes that many take.
        search.narrow(counted, pretend=REHEARSING.get() and passes < planned)
    return search.count, values_of(search.found)


def _room(groups: int) -> int:
    """Return the bins of each group: a power of two, less where there are many groups."""
    return 1 << (max(LEAST_ROOM, min(ROOM, BINS // groups)).bit_length() - 1)


def _planned(values: int, room: int) -> int:
    """Return the passes to plan for: a quarter of the bins is where most of the values are."""
    return 1 if values <= room else 2 if values <= room * room // 16 else 3


class _Place(NamedTuple):
    """Where a value must be: keys from ``low`` to below ``high``, ``below`` values before them."""

    low: int
    high: int
    below: int


class _Search:
    """Ranks looked for in each column, and the bin that each is known to be in."""

    def __init__(self, count: int, ranks: Sequence[int], columns: int) -> None:
        self.count, self.ranks = count, ranks
        self.found = np.zeros((len(ranks), columns), np.int64)
        whole = _Place(LEAST, BEYOND, 0)
        self.slots: list[list[_Place]] = [[whole] for _ in range(columns)]
        self.open = {(r, c) for r in range(len(ranks)) for c in range(columns)}

    @classmethod
    def beginning(
        cls, counted: Counted, columns: int, wanted: Callable[[int], Sequence[int]]
    ) -> _Search:
        """Return a search for the ranks that are wanted of so many values."""
        count = int(counted.counts.sum()) // columns
        return cls(count, list(wanted(count)), columns)

    @property
    def ended(self) -> bool:
        """Whether every rank has its value."""
        return not self.open

    def bounds(self) -> tuple[Const, Const]:
        """Return the bounds (s, columns) of the bins that are searched; equal ones are empty."""
        slots = max(len(places) for places in self.slots)
        bounds = np.zeros((2, slots, len(self.slots)), np.int64)
        for column, places in enumerate(self.slots):
            for slot, place in enumerate(places):
                bounds[:, slot, column] = place.low, place.high
        return Const(bounds[0]), Const(bounds[1])

    def narrow(self, counted: Counted, *, pretend: bool = False) -> None:
        """Take what was counted within the bounds; with ``pretend``, as if bins were coarse."""
        ends = np.cumsum(counted.sizes)
        columns = len(self.slots)
        narrower: list[dict[_Place, None]] = [{} for _ in range(columns)]
        for column, places in enumerate(self.slots):
            for slot, place in enumerate(places):
                group = slot * columns + column
                bins = slice(ends[group] - counted.sizes[group], ends[group])
                shift = int(counted.shifts[group])
                inside = self._look(column, place.below, counted, bins, shift, pretend)
                narrower[column].update(dict.fromkeys(inside))
        self.slots = [list(places) for places in narrower]

    def _look(
        self, column: int, below: int, counted: Counted, bins: slice, shift: int, pretend: bool
    ) -> list[_Place]:
        """Settle the ranks that are within a group; return the bins of those that go on."""
        keys = counted.keys[bins]
        upto = below + np.cumsum(counted.counts[bins])
        further = []
        for number, rank in enumerate(self.ranks):
            if (number, column) not in self.open or not below <= rank < upto[-1:].sum():
                continue
            index = int(np.searchsorted(upto, rank, side="right"))
            key = int(keys[index])
            if shift or pretend:
                before = int(upto[index] - counted.counts[bins][index])
                further.append(_Place(max(key, LEAST), min(key + (1 << shift), BEYOND), before))
            else:
                self.found[number, column] = key
                self.open.discard((number, column))
        return further
