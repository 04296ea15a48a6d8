"""Count and sum of a scalar or vector view."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.base import fields_of, kept
from pipeline.views import Pooled, Valid, View
from pipeline.views.base import floats_nbytes


class Sum(NamedTuple):
    """The sum over rows of a view, and how many rows there were."""

    rows: int
    total: np.ndarray
    """Float64, the shape of one row of the view."""

    @property
    def mean(self) -> np.ndarray:
        """total / rows; NaN where no row counted."""
        return self.total / self.rows if self.rows else np.full_like(self.total, np.nan)


class RowSums(NamedTuple):
    """State: count (1,) int64 and total (1, ...) float64."""

    count: Array
    total: Array


@value
class Sums:
    """Float64 sum of a view over the rows that ``where`` keeps. Result: :class:`Sum`."""

    of: View = Pooled()
    where: View = Valid()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> RowSums:
        return RowSums(np.zeros(1, np.int64), np.zeros((1, *self.of.shape(schema))))

    def absorb(self, state: RowSums, chunk: Chunk) -> RowSums:
        (x,) = kept(chunk, self.where, self.of)
        xp = arrays.namespace(x)
        total = xp.sum(x, axis=0, dtype=xp.float64, keepdims=True)
        return RowSums(state.count + x.shape[0], arrays.add_into(state.total, total))

    def close(self, state: RowSums) -> RowSums:
        return state

    def merge(self, a: RowSums, b: RowSums) -> RowSums:
        return RowSums(a.count + b.count, a.total + b.total)

    def finalize(self, state: RowSums) -> Sum:
        return Sum(int(state.count[0]), arrays.to_host(state.total)[0, ...])

    def state_nbytes(self, schema: Schema) -> int:
        return 8 + floats_nbytes(self.of.shape(schema), 1)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.of.shape(schema), rows + 1)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results
