"""Ranks in a budget of memory: exact while scores fit it, else counted in bins of leading bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of
from pipeline.statistics.bins import Bins
from pipeline.statistics.leading_bits import EXACT, bins_joined, cut, least_shift
from pipeline.statistics.scored import both_sides, check_shapes, taken
from pipeline.statistics.sides import (
    Pending,
    Sides,
    least_nbytes,
    merged,
    most_waiting_nbytes,
    nothing,
    pieces,
    settled,
    waiting_nbytes,
)
from pipeline.statistics.value_counts import BEYOND, LEAST, values_of
from pipeline.views import Every, IsOOD, View

BUDGET_NBYTES = 128 * 2**20
LEAST_BUDGET_NBYTES = 64
BIN_NBYTES = 16
LARGEST_ROOM = 2**20
"""Most bins of both classes together, once scores do not fit."""


class Ordered(NamedTuple):
    """Result: the scores of both classes, or how many are in bins of equal leading bits."""

    sides: Sides
    """Scores, or where they did not fit, keys of float64 numbers without their last bits."""
    shift: int
    """Bits that were cut off the keys, -1 for none: scores as they are."""

    @property
    def exact(self) -> bool:
        """Whether every distinct score is told from every other."""
        return self.shift == EXACT

    @property
    def rows(self) -> tuple[int, int]:
        """Negative and positive rows."""
        return self.sides.negatives.rows, self.sides.positives.rows

    def pieces(self) -> Iterator[Bins]:
        """Yield the bins in ascending order, some at a time; one bin a score where exact."""
        for scores, negatives, positives in pieces(self.sides):
            least = arrays.sort_keys(scores) if self.exact else scores
            greatest = least
            if not self.exact:
                greatest = np.minimum(least + ((1 << self.shift) - 1), BEYOND - 1)
                least = np.maximum(least, LEAST)
            yield Bins(negatives, positives, least, greatest)

    def bins(self) -> Bins:
        """Return all bins."""
        none = np.zeros(0, np.int64)
        return Bins(*map(np.concatenate, zip((none,) * 4, *self.pieces(), strict=True)))


class Held(NamedTuple):
    """State: what :class:`Ordered` holds; scores that wait to be sorted while a block is open."""

    sides: Sides
    shift: Array
    """(1,) int64."""
    pending: Pending = Pending()


@value
class BoundedRanks:
    """Scores of negatives and positives in order, in at most ``budget_nbytes``.

    While a block is open, up to half as much more waits to be sorted, or 8 MiB where they fit.
    Exact while they fit: 4 bytes for each row of float32 scores, 8 for float64, and never more
    than 16 for each distinct score of a class. Where they do not, their keys lose as many last
    bits as leave few enough bins. That depends on the scores alone, so states merge exactly,
    whatever the cut. Only scores whose float64 keys lie from ``low`` to below ``high`` count.

    ``of`` () or (...), with ``positive`` of the same shape; ``where`` says of rows or of scores.
    Infinite scores have their place. Raises :class:`DataError` for NaN. Result: :class:`Ordered`.
    """

    of: View
    positive: View = IsOOD()
    where: View = Every()
    budget_nbytes: int = BUDGET_NBYTES
    low: int = LEAST
    high: int = BEYOND
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.budget_nbytes < LEAST_BUDGET_NBYTES:
            raise ConfigError(
                f"budget: {self.budget_nbytes} bytes; expected at least {LEAST_BUDGET_NBYTES}, "
                f"such as {BUDGET_NBYTES:,}"
            )

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.positive, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def transient(self) -> bool:
        """Whether its result is of use for the next step of a procedure only: one range of many."""
        return (self.low, self.high) != (LEAST, BEYOND)

    def empty(self, schema: Schema) -> Held:
        check_shapes(self.of, self.positive, schema)
        return Held(nothing(), np.full(1, EXACT))

    def absorb(self, state: Held, chunk: Chunk) -> Held:
        found = both_sides(chunk, self.where, self.of, self.positive)
        if self.transient:
            found = self._within(found[0]), self._within(found[1])
        pending = state.pending.plus(*found)
        state = state._replace(pending=pending)
        full = pending.nbytes >= most_waiting_nbytes(self.budget_nbytes)
        return self._settled(state) if full else state

    def close(self, state: Held) -> Held:
        return self._settled(state)

    def merge(self, a: Held, b: Held) -> Held:
        return self._merged(a.sides, a.shift, b.sides, b.shift)

    def finalize(self, state: Held) -> Ordered:
        sides = arrays.map_arrays(arrays.to_host, state.sides)
        return Ordered(sides, int(arrays.to_host(state.shift)[0]))

    def state_nbytes(self, schema: Schema) -> int:
        scores = schema.rows * int(np.prod(self.of.shape(schema), dtype=np.int64))
        kept = min(self.budget_nbytes, BIN_NBYTES * scores) + 8
        return kept + waiting_nbytes(self.budget_nbytes, scores)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        each = int(np.prod(self.of.shape(schema), dtype=np.int64))
        return 6 * self.state_nbytes(schema) + 60 * each * rows

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results

    def _within(self, scores: Array) -> Array:
        """Return the scores whose keys are in the range."""
        kept = None
        if self.low > LEAST:
            kept = scores >= _first(self.low, scores)
        if self.high < BEYOND:
            below = scores < _first(self.high, scores)
            kept = below if kept is None else kept & below
        return scores if kept is None else taken(scores, kept)

    def _settled(self, state: Held) -> Held:
        if not state.pending.negatives:
            return state
        like = arrays.map_arrays(lambda x: arrays.like(x, state.shift), nothing())
        new = settled(like, state.pending)
        xp = arrays.namespace(state.shift)
        return self._merged(state.sides, state.shift, new, xp.full_like(state.shift, EXACT))

    def _merged(self, a: Sides, a_shift: Array, b: Sides, b_shift: Array) -> Held:
        xp = arrays.namespace(a_shift, b_shift)
        shift = int(xp.maximum(a_shift, b_shift)[0])
        if shift == EXACT and least_nbytes(a, b, self.budget_nbytes) <= self.budget_nbytes:
            return self._fitted(merged(a, b), EXACT, a_shift)
        if shift == EXACT:  # no room for all scores in one order: each by itself first
            shift = max(least_shift(sides, EXACT, self._room) for sides in (a, b))
        a, b = (cut(x, int(s[0]), shift) for x, s in ((a, a_shift), (b, b_shift)))
        return self._fitted(bins_joined(a, b), shift, a_shift)

    def _fitted(self, sides: Sides, shift: int, like: Array) -> Held:
        """Return the sides, with fewer bits where they do not fit otherwise."""
        further = shift
        if shift != EXACT or arrays.nbytes(sides) > self.budget_nbytes:
            further = least_shift(sides, shift, self._room)
        return Held(cut(sides, shift, further), arrays.namespace(like).full_like(like, further))

    @property
    def _room(self) -> int:
        """Most bins of both classes together."""
        return min(LARGEST_ROOM, self.budget_nbytes // BIN_NBYTES)


def _first(key: int, scores: Array) -> float:
    """Return the least number of the dtype of ``scores`` that is not below that of a key.

    Scores compare with it as with the number itself, which a narrower dtype may not hold.
    """
    number = float(values_of(np.array([key]))[0])
    if arrays.itemsize(scores.dtype) == 8:
        return number
    with np.errstate(over="ignore"):
        narrow = np.float32(number)
    return float(narrow if float(narrow) >= number else np.nextafter(narrow, np.float32(np.inf)))
