"""Sums of float64 numbers without any rounding: the same bits in whatever order rows come.

A float64 is a whole number of units of 2^-1074. So is a sum of them, and sums of whole numbers do
not depend on the order in which they are taken. Such a sum is kept as limbs of 32 bits in int64:
each number adds to three neighbouring limbs, and what a limb has beyond 32 bits is carried.

Reference: Kulisch 2013, "Computer Arithmetic and Validity", chapter 8 (the long accumulator).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.statistics.base import fields_of, rows_named
from pipeline.statistics.elements import elements_of
from pipeline.views import Every, Valid, View

UNITS = 1 << 1074
"""Units of a sum that make 1."""
LIMBS = 67
"""Room for 2^46 times the largest float64."""
TILE_ELEMENTS = 2**14
"""Numbers that are added at a time; kernels add the limbs of up to 2^21 exactly."""
ELEMENT_NBYTES = 160
"""Temporaries for each of them."""

_LIMB_BITS = 32
_LIMB = 2**_LIMB_BITS - 1
_FRACTION_BITS = 52
_INFINITY = 0x7FF << _FRACTION_BITS


class Sum(NamedTuple):
    """The sum of some numbers without rounding."""

    numbers: int
    """How many there are, infinite ones too."""
    infinite: int
    """How many are plus infinity: ``units`` leaves them out."""
    units: int
    """Sum of the finite numbers in units of 2^-1074, see :data:`UNITS`."""

    @property
    def total(self) -> Fraction:
        """The sum of the finite numbers."""
        return Fraction(self.units, UNITS)


class Limbs(NamedTuple):
    """State: how many numbers (b,), how many infinite (b,), limbs (b, 67) of their sums; int64."""

    numbers: Array
    infinite: Array
    limbs: Array


@value
class ExactSums:
    """The sum of the entries of a view of floats, over rows that ``where`` keeps.

    ``among`` is a filter like it, or a mask of the entries of a row. Result: :class:`Sum`. Raises
    :class:`DataError` for NaN and minus infinity.
    """

    of: View
    where: View = Valid()
    among: View = Every()
    version: ClassVar[int] = 1
    additive: ClassVar[bool] = True

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.where, self.among)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> Limbs:
        return no_sums(1)

    def absorb(self, state: Limbs, chunk: Chunk) -> Limbs:
        refuse_without_sum(chunk, self.of, self.where, self.among)
        x = among_rows(self.where(chunk), self.among(chunk), self.of(chunk))
        xp = arrays.namespace(x)
        for tile in arrays.tiles(x.shape[0], TILE_ELEMENTS):
            part = xp.astype(x[tile], xp.float64, copy=False)
            state = added(state, part, xp.zeros_like(part, dtype=xp.int64))
        return carried(state)

    def close(self, state: Limbs) -> Limbs:
        return state

    def merge(self, a: Limbs, b: Limbs) -> Limbs:
        return merged(a, b)

    def finalize(self, state: Limbs) -> Sum:
        (units,) = whole_numbers(arrays.to_host(state.limbs))
        return Sum(int(state.numbers[0]), int(state.infinite[0]), units)

    def state_nbytes(self, schema: Schema) -> int:
        return sums_nbytes(1)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return adding_nbytes(rows * elements_of(self.of, schema), 1)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results


def refuse_without_sum(chunk: Chunk, of: View, where: View, among: View) -> None:
    """Raise :class:`DataError` that names rows where an entry that counts has no sum."""
    x = of(chunk)
    xp = arrays.namespace(x)
    if not bool(xp.any(xp.isnan(x) | (x == -xp.inf))):
        return
    host, *masks = (arrays.to_host(view(chunk)) for view in (of, where, among))
    bad = np.isnan(host) | (host == -np.inf)
    for mask in masks:
        bad &= mask.reshape(len(mask), *(1,) * (host.ndim - mask.ndim), *mask.shape[1:])
    rows = bad.reshape(len(bad), -1).any(axis=1)
    if rows.any():
        raise DataError(
            f"{chunk.split}: {rows_named(chunk, Every(), rows)} hold NaN or minus infinity, which "
            "have no sum; look for non-finite values in what computed them"
        )


def among_rows(rows: Array, entries: Array, *views: Array) -> Any:
    """Return the entries (m,) of views (n, ...), of kept ``rows`` (n,) and ``entries`` (n, ...)."""
    xp = arrays.namespace(rows)
    if not bool(xp.all(rows)):
        entries, views = entries[rows], tuple(x[rows] for x in views)
    if not bool(xp.all(entries)):
        views = tuple(x[entries] for x in views)
    flat = tuple(xp.reshape(x, (-1,)) for x in views)
    return flat if len(flat) > 1 else flat[0]


def no_sums(bins: int) -> Limbs:
    """Return the state of no numbers in each of some bins."""
    numbers, infinite = np.zeros((2, bins), np.int64)
    return Limbs(numbers, infinite, np.zeros((bins, LIMBS), np.int64))


def added(state: Limbs, x: Array, ids: Array) -> Limbs:
    """Return the state with each number of a tile ``x`` (m,) added to the sum of its bin (m,).

    2^17 tiles, so 2^31 numbers, may be added before the limbs must be :func:`carried`: a tile adds
    less than 2^46 to any limb.
    """
    xp = arrays.namespace(x, ids)
    bins = state.numbers.shape[0]
    keys = arrays.sort_keys(x)
    size = xp.abs(keys)
    infinite = size >= _INFINITY
    some_infinite = bool(xp.any(infinite))
    if some_infinite:
        size = xp.where(infinite, xp.zeros_like(size), size)
    exponent = size >> _FRACTION_BITS
    # Subnormal numbers have no leading one, and the exponent of the least normal ones.
    normal = xp.astype(exponent > 0, xp.int64)
    digits = (size & (2**_FRACTION_BITS - 1)) + (normal << _FRACTION_BITS)
    place = exponent - normal
    first, shift = ids * LIMBS + (place >> 5), place & (_LIMB_BITS - 1)
    sign = (keys >> 63) | 1
    pieces = (
        ((digits & _LIMB) << shift) & _LIMB,
        (digits >> (_LIMB_BITS - shift)) & _LIMB,
        (digits >> _LIMB_BITS) >> (_LIMB_BITS - shift),
    )
    limbs = xp.reshape(state.limbs, (-1,))
    for offset, piece in enumerate(pieces):
        limbs = limbs + arrays.sum_integers_in_bins(first + offset, sign * piece, bins * LIMBS)
    found = arrays.bincount(ids[infinite], bins) if some_infinite else 0
    return Limbs(
        state.numbers + arrays.bincount(ids, bins),
        state.infinite + found,
        xp.reshape(limbs, (bins, LIMBS)),
    )


def merged(a: Limbs, b: Limbs) -> Limbs:
    """Return the state of the numbers of both."""
    return carried(Limbs(*(x + y for x, y in zip(a, b, strict=True))))


def carried(state: Limbs) -> Limbs:
    """Return the same sums in their one form; see :func:`_carried`."""
    return state._replace(limbs=_carried(state.limbs))


def _carried(limbs: Array) -> Array:
    """Return limbs (b, 67) of the same sums, all but the last one from 0 to below 2^32.

    Each sum has one such form; below zero the last limb is negative.
    """
    xp = arrays.namespace(limbs)
    while bool(xp.any(limbs[:, :-1] >> _LIMB_BITS != 0)):
        carry = limbs[:, :-1] >> _LIMB_BITS
        none = xp.zeros_like(limbs[:, :1])
        rest = xp.concat((limbs[:, :-1] & _LIMB, limbs[:, -1:]), axis=1)
        limbs = rest + xp.concat((none, carry), axis=1)
    return limbs


def whole_numbers(limbs: np.ndarray[Any, Any]) -> Sequence[int]:
    """Return the sums that limbs (b, 67) hold, as Python integers in units of 2^-1074."""
    limbs = _carried(limbs)  # sums of states are carried no more
    last = _LIMB_BITS * (LIMBS - 1)
    low = limbs[:, :-1].astype("<u4")
    return [
        int.from_bytes(row.tobytes(), "little") + (int(top) << last)
        for row, top in zip(low, limbs[:, -1], strict=True)
    ]


def sums_nbytes(bins: int) -> int:
    """Return the bytes of the state of some bins."""
    return 8 * bins * (LIMBS + 2)


def adding_nbytes(elements: int, bins: int) -> int:
    """Return the bytes of temporaries while adding some numbers, or merging two states."""
    return 24 * elements + ELEMENT_NBYTES * min(elements, TILE_ELEMENTS) + 5 * sums_nbytes(bins)
