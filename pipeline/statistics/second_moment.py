"""Count, mean and scatter of all rows, from which the second moment about any point follows."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of, kept
from pipeline.views import Pooled, Valid, View


class Spread(NamedTuple):
    """Moments of n rows over d features: the result, and the state of closed blocks."""

    count: Array
    """Rows: (1,) int64."""
    mean: Array
    """Mean of the rows (d,); zero without rows."""
    scatter: Array
    """Sum over rows of (x - mean)(x - mean)': (d, d)."""

    @property
    def rows(self) -> int:
        """Number of rows n."""
        return int(self.count[0])

    @property
    def covariance(self) -> Array:
        """scatter / n: (d, d)."""
        return self.scatter / self.rows

    def about(self, point: Array) -> Array:
        """Return the sum over rows of (x - u)(x - u)' about a point u (d,): (d, d).

        It is scatter + n (mean - u)(mean - u)', a sum of two positive terms: nothing cancels
        however far the point is.
        """
        offset = self.mean - point
        return self.scatter + self.rows * (offset[:, None] * offset[None, :])


class OpenSpread(NamedTuple):
    """State inside a block: sums about the mean of its first rows."""

    count: Array
    centre: Array
    total: Array
    """Sum of (x - centre): (d,)."""
    scatter: Array
    """Sum of (x - centre)(x - centre)': (d, d)."""


State = Spread | OpenSpread


@value
class SecondMoment:
    """Count, mean and scatter of a vector view over the rows that ``where`` keeps.

    The point a second moment is taken about is no part of it: ``result.about(point)`` is exact for
    every point. Rows are centred before they are multiplied; blocks merge by the pairwise update
    of Chan, Golub and LeVeque (1983). Result: :class:`Spread`.
    """

    of: View = Pooled()
    where: View = Valid()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> State:
        d = self._features(schema)
        return OpenSpread(np.zeros(1, np.int64), np.zeros(d), np.zeros(d), np.zeros((d, d)))

    def absorb(self, state: State, chunk: Chunk) -> State:
        assert isinstance(state, OpenSpread)  # the engine never absorbs into a closed state
        (x,) = kept(chunk, self.where, self.of)
        if x.shape[0] == 0:
            return state
        xp = arrays.namespace(x)
        first = int(state.count[0]) == 0
        centre = xp.mean(x, axis=0) if first else state.centre
        deviation = chunk.scratch("deviation", x.shape, xp.float64)
        deviation = arrays.subtract_into(deviation, x, centre)
        return OpenSpread(
            state.count + x.shape[0],
            centre,
            arrays.add_into(state.total, xp.sum(deviation, axis=0)),
            arrays.syrk_into(state.scatter, deviation),
        )

    def close(self, state: State) -> State:
        assert isinstance(state, OpenSpread)
        xp = arrays.namespace(state.count)
        rows = max(int(state.count[0]), 1)
        offset = state.total[:, None] / rows**0.5
        scatter = state.scatter - xp.matmul(offset, xp.matrix_transpose(offset))
        return Spread(state.count, state.centre + state.total / rows, scatter)

    def merge(self, a: State, b: State) -> State:
        assert isinstance(a, Spread)
        assert isinstance(b, Spread)
        xp = arrays.namespace(a.count)
        rows = a.count + b.count
        size = xp.astype(xp.where(rows > 0, rows, xp.ones_like(rows)), xp.float64)
        share_a, share_b = (xp.astype(s.count, xp.float64) / size for s in (a, b))
        delta = b.mean - a.mean
        between = (delta * xp.sqrt(share_a * share_b * size))[:, None]
        scatter = a.scatter + b.scatter + xp.matmul(between, xp.matrix_transpose(between))
        # One rounding of a mean far from zero; a weighted sum of both means has three.
        return Spread(rows, a.mean + share_b * delta, scatter)

    def finalize(self, state: State) -> Spread:
        assert isinstance(state, Spread)
        return Spread(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        d = self._features(schema)
        return 8 * (1 + 2 * d + d * d)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        d = self._features(schema)
        return 8 * (2 * rows * d + 2 * d * d + 4 * d)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results

    def _features(self, schema: Schema) -> int:
        shape = self.of.shape(schema)
        if len(shape) != 1:
            raise ConfigError(f"a second moment needs a vector view (d,), {self.of} has {shape}")
        return shape[0]
