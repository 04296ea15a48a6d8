"""Values of a view counted in bins of equal leading bits: what exact quantiles are found in."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import KEY_BITS, Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of, kept, refuse_nan
from pipeline.views import Valid, View

ROOM = 2**17
PIECE_VALUES = 2**18
"""Values that are sorted at a time, at least: temporaries do not grow with the chunk."""
LEAST, BEYOND = -(0x7FF0 << 48), (0x7FF0 << 48) + 1
"""Keys of all floats are at least the first and below the second: those of the infinities."""
_NONE = np.iinfo(np.int64).max


class Counted(NamedTuple):
    """State and result: m bins, ascending within each of g groups, one group after the other."""

    keys: Array
    """(m,) int64, the least key of a bin."""
    counts: Array
    """(m,) int64, its values."""
    sizes: Array
    """(g,) int64, the bins of a group."""
    shifts: Array
    """(g,) int64: its bins hold the keys from theirs on to below 2^shift more."""


def everything(columns: int = 1) -> tuple[Const, Const]:
    """Return the bounds (1, columns) of a :class:`ValueCounts` that leaves out no value."""
    return tuple(Const(np.full((1, columns), key)) for key in (LEAST, BEYOND))  # type: ignore[return-value]


def values_of(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the float64 values whose ``sort_keys`` these are; zero for both zeros."""
    size = np.abs(keys).view(np.float64)
    values: np.ndarray[Any, Any] = np.where(keys < 0, -size, size)
    return values


@value
class ValueCounts:
    """Counts of the values of a view () or (d,) of floats whose keys lie from ``low`` to ``high``.

    Bounds (s, w) are int64 keys of float64 numbers, in their order; the upper one is left out.
    With w = 1 all entries of a row are values of one population, with w = d those of each column
    are one; a group is what lies between the bounds of a slot s and a column. Each group has bins
    of its own: the keys without their last ``shift`` bits, for the smallest shift that leaves at
    most ``room`` bins with a value in them. That depends on nothing but the values, so states
    merge exactly, whatever the cut. Where a group has no more than ``room`` distinct values, the
    shift is 0 and its bins are the values themselves.

    With w = 1 the view and ``where`` may have a number for each element of a row, of any shape.
    Raises :class:`DataError` for NaN. State: 16 bytes a bin. Result: :class:`Counted`.
    """

    of: View
    low: Const
    high: Const
    where: View = Valid()
    room: int = ROOM
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.room < 2:
            raise ConfigError(f"room: {self.room}; expected at least 2 bins")

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def _groups(self) -> int:
        return math.prod(self.low.shape)

    @property
    def _bins(self) -> int:
        return self._groups * self.room

    @property
    def _piece(self) -> int:
        """Values that are sorted at a time: no fewer than the bins they are merged with."""
        return max(PIECE_VALUES, self._bins)

    def empty(self, schema: Schema) -> Counted:
        shape, (_, columns) = self.of.shape(schema), self.low.shape
        each = len(shape) > 1 and shape != self.where.shape(schema)
        if each or columns not in (1, *shape):
            raise ConfigError(f"bounds of {columns} columns do not fit rows of shape {shape}")
        return Counted(*(np.zeros(size, np.int64) for size in (0, 0, self._groups, self._groups)))

    def absorb(self, state: Counted, chunk: Chunk) -> Counted:
        (x,) = kept(chunk, self.where, self.of)
        xp = arrays.namespace(x)
        with np.errstate(over="ignore", invalid="ignore"):
            total = xp.sum(x)
        if bool(xp.isnan(total)):  # of infinities it may be, too
            missing = xp.where(xp.isnan(x), x, xp.zeros_like(x))
            refuse_nan(chunk, self.where, xp.sum(xp.reshape(missing, (x.shape[0], -1)), axis=1))
        step = max(1, self._piece // max(1, math.prod(x.shape[1:])))
        for piece in arrays.tiles(x.shape[0], step):
            state = self._merged(state, self._counted(arrays.sort_keys(x[piece, ...]), state))
        return state

    def _counted(self, keys: Array, state: Counted) -> Counted:
        """Return the counts of the keys (n, d) or (n,) in bins as coarse as those of a state."""
        xp = arrays.namespace(keys)
        low, high = self.low.like(keys), self.high.like(keys)
        columns = low.shape[1]
        flat = xp.reshape(keys, (-1, columns))
        lines = xp.matrix_transpose(flat)
        found, sizes = [], []
        for slot in range(low.shape[0]):
            inside = (lines >= low[slot, :, None]) & (lines < high[slot, :, None])
            if columns == 1:
                found.append(xp.sort(lines[inside]))
            else:
                ordered = xp.sort(xp.where(inside, lines, xp.full_like(lines, _NONE)), axis=1)
                found.append(ordered[ordered != _NONE])
            sizes.append(xp.astype(xp.count_nonzero(inside, axis=1), xp.int64))
        every = xp.concat(found)
        counted = Counted(every, xp.ones_like(every), xp.concat(sizes), xp.zeros_like(state.shifts))
        return _cut(counted, state.shifts)

    def close(self, state: Counted) -> Counted:
        return state

    def merge(self, a: Counted, b: Counted) -> Counted:
        return self._merged(a, b)

    def _merged(self, a: Counted, b: Counted) -> Counted:
        xp = arrays.namespace(a.keys, b.keys)
        if 0 in (a.keys.shape[0], b.keys.shape[0]):
            kept_one = a if b.keys.shape[0] == 0 else b
            return self._fitted(Counted(*(xp.asarray(x, copy=True) for x in kept_one)))
        return self._fitted(_cut(_joined(a, b), xp.maximum(a.shifts, b.shifts)))

    def _fitted(self, counted: Counted) -> Counted:
        """Return the counts in bins just coarse enough for the room."""
        xp = arrays.namespace(counted.keys)
        if not bool(xp.any(counted.sizes > self.room)):
            return counted
        group = _group_ids(counted)
        beside = group[1:] == group[:-1]
        differs = arrays.bit_lengths(xp.bitwise_xor(counted.keys[1:], counted.keys[:-1]))
        ids = (group[1:] * (KEY_BITS + 1) + differs)[beside]
        lengths = arrays.bincount(ids, self._groups * (KEY_BITS + 1))
        lengths = xp.reshape(lengths, (self._groups, KEY_BITS + 1))
        # A shift of s leaves a bin more than there are neighbours which differ above bit s.
        bins = 1 + xp.sum(lengths, axis=1, keepdims=True) - xp.cumulative_sum(lengths, axis=1)
        fitting = xp.astype(xp.count_nonzero(bins > self.room, axis=1), xp.int64)
        return _cut(counted, xp.maximum(counted.shifts, fitting))

    def finalize(self, state: Counted) -> Counted:
        return Counted(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return 16 * self._groups * (self.room + 1)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        entries = int(np.prod(self.of.shape(schema), dtype=np.int64))
        piece = min(rows * entries, max(self._piece, entries)) if rows else self._bins
        return 10 * rows * entries + 100 * (self._bins + piece) + 2000 * self._groups

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results


def _joined(a: Counted, b: Counted) -> Counted:
    """Return the bins of both in one order, those of equal keys beside each other."""
    xp = arrays.namespace(a.keys, b.keys)
    shifts = xp.maximum(a.shifts, b.shifts)
    group = xp.concat((_group_ids(a), _group_ids(b)))
    keys = _without_bits(xp.concat((a.keys, b.keys)), shifts, group)
    order = _order(keys, group, shifts)
    counts = xp.take(xp.concat((a.counts, b.counts)), order)
    return Counted(xp.take(keys, order), counts, a.sizes + b.sizes, shifts)


def _group_ids(counted: Counted) -> Array:
    """Return the group (m,) of every bin."""
    xp = arrays.namespace(counted.keys)
    groups = counted.sizes.shape[0]
    device = arrays.device_of(counted.keys)
    return xp.repeat(xp.arange(groups, dtype=xp.int64, device=device), counted.sizes)


def _without_bits(keys: Array, shifts: Array, group: Array) -> Array:
    """Return the keys with as many last bits cleared as the shift of their group says."""
    shift = arrays.namespace(keys).take(shifts, group)
    return (keys >> shift) << shift


def _order(keys: Array, group: Array, shifts: Array) -> Array:
    """Return the order of keys by group, then by key; linear time where two runs are in order."""
    xp = arrays.namespace(keys)
    short = keys >> xp.take(shifts, group)
    least = int(xp.min(short))
    span = int(xp.max(short)) - least + 1
    if span * (shifts.shape[0] + 1) < 2**62:
        return xp.argsort(short - least + group * span, stable=True)
    order = xp.argsort(keys, stable=True)
    return xp.take(order, xp.argsort(xp.take(group, order), stable=True))


def _cut(counted: Counted, shifts: Array) -> Counted:
    """Return counts that are in order in bins of at least the given shifts."""
    xp = arrays.namespace(counted.keys)
    if counted.keys.shape[0] == 0:
        return Counted(counted.keys, counted.counts, counted.sizes, shifts)
    group = _group_ids(counted)
    keys = _without_bits(counted.keys, shifts, group)
    differs = (keys[1:] != keys[:-1]) | (group[1:] != group[:-1])
    last = xp.concat((differs, xp.ones_like(keys[:1], dtype=xp.bool)))
    upto = xp.cumulative_sum(counted.counts)[last]
    counts = xp.concat((upto[:1], upto[1:] - upto[:-1]))
    sizes = arrays.bincount(group[last], shifts.shape[0])
    return Counted(keys[last], counts, sizes, shifts)
