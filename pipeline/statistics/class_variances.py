"""Count, mean and variance of every feature in every class: class Gaussians without products."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.base import class_ids, fields_of, kept
from pipeline.statistics.class_moments import at_least_one
from pipeline.statistics.scatters import vector_width
from pipeline.views import Labels, Pooled, Valid, View


class Variances(NamedTuple):
    """Moments of k classes, feature by feature: the result, and the state of closed blocks."""

    count: Array
    """Rows per class: (k,) int64."""
    mean: Array
    """Class means (k, d); zero for a class without rows."""
    scatter: Array
    """Sum over the rows of a class of (x - mean)^2: (k, d)."""


class OpenVariances(NamedTuple):
    """State inside a block: sums about a centre per class, fixed when the class first appears."""

    count: Array
    centre: Array
    total: Array
    """Sum of (x - centre) per class: (k, d)."""
    scatter: Array
    """Sum of (x - centre)^2 per class: (k, d)."""


State = Variances | OpenVariances


@value
class ClassVariances:
    """Count, mean and sum of squared deviations of a vector view (d,), in each class.

    Rows are centred about the mean of the first rows of their class in the block before they are
    squared, in float64; blocks merge by the pairwise update of Chan, Golub and LeVeque (1983).
    Result: :class:`Variances`. Raises :class:`DataError` for a kept row whose class is not one of
    0 to k-1.
    """

    of: View = Pooled()
    by: View = Labels()
    where: View = Valid()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> State:
        shape = (schema.classes, vector_width(self.of.shape(schema), schema))
        return OpenVariances(
            np.zeros(schema.classes, np.int64), np.zeros(shape), np.zeros(shape), np.zeros(shape)
        )

    def absorb(self, state: State, chunk: Chunk) -> State:
        assert isinstance(state, OpenVariances)  # the engine never absorbs into a closed state
        x, y = kept(chunk, self.where, self.of, self.by)
        if x.shape[0] == 0:
            return state
        xp = arrays.namespace(x)
        y = class_ids(chunk, self.where, y)
        centre = _centres(state, x, y)
        deviation = chunk.scratch("deviation", x.shape, xp.float64)
        for rows in arrays.tiles(x.shape[0]):
            deviation[rows, ...] = x[rows, ...] - xp.take(centre, y[rows], axis=0)
        present, sums = arrays.sum_by_id(deviation, y)
        deviation *= deviation
        _, squares = arrays.sum_by_id(deviation, y)
        return OpenVariances(
            state.count + arrays.bincount(y, state.count.shape[0]),
            centre,
            arrays.add_rows_into(state.total, present, sums),
            arrays.add_rows_into(state.scatter, present, squares),
        )

    def close(self, state: State) -> State:
        assert isinstance(state, OpenVariances)
        size = at_least_one(state.count)[:, None]
        shift = state.total / size
        scatter = state.scatter
        scatter -= shift * state.total
        scatter[scatter < 0] = 0.0  # rounding, of rows that are all alike
        return Variances(state.count, state.centre + shift, scatter)

    def merge(self, a: State, b: State) -> State:
        assert isinstance(a, Variances)
        assert isinstance(b, Variances)
        xp = arrays.namespace(a.count)
        count = a.count + b.count
        size = at_least_one(count)
        share_a, share_b = (xp.astype(s.count, xp.float64) / size for s in (a, b))
        delta = b.mean - a.mean
        # One rounding of a mean far from zero; exact where one side has no rows and mean zero.
        mean = share_b[:, None] * delta
        mean += a.mean
        delta *= delta
        delta *= (share_a * share_b * size)[:, None]
        scatter = a.scatter + b.scatter
        scatter += delta
        return Variances(count, mean, scatter)

    def finalize(self, state: State) -> Variances:
        assert isinstance(state, Variances)
        return Variances(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return 8 * schema.classes * (1 + 3 * vector_width(self.of.shape(schema), schema))

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        d = vector_width(self.of.shape(schema), schema)
        k, tile = schema.classes, min(rows, arrays.TILE_ROWS)
        absorbing = 8 * d * (2 * rows + 4 * min(rows, k) + 2 * tile) + 96 * rows
        return k * d + 96 * k + absorbing

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def _centres(state: OpenVariances, x: Array, y: Array) -> Array:
    """Return the centres once rows ``x`` (n, d) of classes ``y`` have been seen."""
    xp = arrays.namespace(x)
    rows = xp.take(state.count == 0, y)
    if not bool(xp.any(rows)):
        return state.centre
    added = arrays.bincount(y, state.count.shape[0])
    ids, sums = arrays.sum_by_id(x[rows], y[rows])
    means = sums / xp.astype(xp.take(added, ids), xp.float64)[:, None]
    return arrays.scatter_rows(state.centre, ids, means)
