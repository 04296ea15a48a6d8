"""Mean of the tokens at every position, and one scatter about them for all positions."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of, kept
from pipeline.statistics.class_moments import PRECISIONS, ClassMoments, Moments, OpenMoments, State
from pipeline.views import TokenMask, Tokens, Valid, View

PIECE_TOKENS = 1024
"""Tokens that are multiplied at a time."""


@value
class TiedMoments:
    """Count (t,) and mean (t, d) of the valid tokens at each position, and the scatter about them.

    The scatter (d, d) is summed over positions. Tokens are centred about the mean of those that
    are multiplied with them, in ``precision``: ``auto`` is the dtype of the tokens, at least
    float32; sums, and the scatter of those means, are float64 always. States are closed and merged
    like those of :class:`ClassMoments`, with positions for classes. Result: :class:`Moments`.
    """

    of: Tokens = Tokens()
    where: View = Valid()
    precision: str = "auto"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision: {self.precision!r}; choose {', '.join(PRECISIONS)}")

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, TokenMask(self.of.field), self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def products(self) -> str:
        """Narrowest dtype in which products may be formed: bounds what the scatter resolves."""
        return "float64" if self.precision == "float64" else "float32"

    def empty(self, schema: Schema) -> State:
        t, d = self.of.shape(schema)
        zeros = np.zeros((t, d))
        return OpenMoments(np.zeros(t, np.int64), zeros, zeros.copy(), np.zeros((d, d)))

    def absorb(self, state: State, chunk: Chunk) -> State:
        assert isinstance(state, OpenMoments)
        x, valid = kept(chunk, self.where, self.of, TokenMask(self.of.field))
        for piece in arrays.tiles(x.shape[0], piece_images(x.shape[1])):
            state = self._add(state, x[piece, ...], valid[piece, ...])
        return state

    def _add(self, state: OpenMoments, x: Array, valid: Array) -> OpenMoments:
        xp = arrays.namespace(x)
        products = x.dtype if self.precision == "auto" else getattr(xp, self.precision)
        there = valid[:, :, None]
        tokens = xp.where(there, x, xp.zeros_like(x))
        tokens = xp.astype(tokens, xp.float64, copy=False)
        added = xp.astype(xp.count_nonzero(valid, axis=0), xp.int64)
        weight = xp.astype(added, xp.float64)[:, None]
        mean = xp.sum(tokens, axis=0) / xp.where(weight > 0, weight, xp.ones_like(weight))
        deviation = xp.where(there, tokens - mean, xp.zeros_like(tokens))
        factors = xp.reshape(xp.astype(deviation, products, copy=False), (-1, x.shape[2]))
        scatter = arrays.syrk_into(state.scatter, factors)
        # Where rows come in an order, their mean moves: that part is never formed in float32.
        centre = xp.where((state.count == 0)[:, None], mean, state.centre)
        offset = xp.where(weight > 0, mean - centre, xp.zeros_like(mean))
        scatter = arrays.syrk_into(scatter, offset * xp.sqrt(weight))
        total = arrays.add_into(state.total, weight * offset)
        return OpenMoments(state.count + added, centre, total, scatter)

    def close(self, state: State) -> State:
        return ClassMoments().close(state)

    def merge(self, a: State, b: State) -> State:
        return ClassMoments().merge(a, b)

    def finalize(self, state: State) -> Moments:
        return ClassMoments().finalize(state)

    def state_nbytes(self, schema: Schema) -> int:
        t, d = self.of.shape(schema)
        return 8 * (t + 2 * t * d + d * d)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        t, d = self.of.shape(schema)
        closing = 8 * (t * d + d * d + 8 * t)
        itemsize = max(4, schema.spec(self.of.field).memory_dtype.itemsize)
        piece = 8 * min(rows, piece_images(t)) * t * d * 4
        kept_nbytes = rows * t * (d * itemsize + 1)
        return max(closing, kept_nbytes + piece + 8 * (3 * t * d + d * d) + 64 * rows)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def piece_images(tokens: int) -> int:
    """Return the images of ``tokens`` tokens that are multiplied at a time."""
    return max(1, PIECE_TOKENS // tokens)
