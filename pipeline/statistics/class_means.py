"""Count and mean of a view per class, without a covariance."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.base import class_ids, fields_of, kept
from pipeline.views import Labels, Pooled, Valid, View
from pipeline.views.base import floats_nbytes


class Means(NamedTuple):
    """Means of k classes over d features."""

    count: Array
    """Rows per class: (k,) int64."""
    mean: Array
    """Class means (k, d) float64; zero for a class without rows."""


class ClassSums(NamedTuple):
    """State: what adds up."""

    count: Array
    total: Array


@value
class ClassMeans:
    """Mean of a view (d,) per class, over the rows that ``where`` keeps.

    Sums are float64. Result: :class:`Means`. Raises :class:`DataError` for a kept row whose class
    is not one of 0 to k-1.
    """

    of: View = Pooled()
    by: View = Labels()
    where: View = Valid()
    version: ClassVar[int] = 2

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> ClassSums:
        k = schema.classes
        return ClassSums(np.zeros(k, np.int64), np.zeros((k, *self.of.shape(schema))))

    def absorb(self, state: ClassSums, chunk: Chunk) -> ClassSums:
        x, y = kept(chunk, self.where, self.of, self.by)
        return add_by_class(state, x, class_ids(chunk, self.where, y))

    def close(self, state: ClassSums) -> ClassSums:
        return state

    def merge(self, a: ClassSums, b: ClassSums) -> ClassSums:
        return ClassSums(a.count + b.count, a.total + b.total)

    def finalize(self, state: ClassSums) -> Means:
        count, total = arrays.map_arrays(arrays.to_host, tuple(state))
        rows = np.maximum(count, 1).reshape(-1, *(1,) * (total.ndim - 1))
        return Means(count, total / rows)

    def state_nbytes(self, schema: Schema) -> int:
        return 8 * schema.classes + floats_nbytes(self.of.shape(schema), schema.classes)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return sums_work_nbytes(self.of.shape(schema), rows, schema.classes)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def add_by_class(state: ClassSums, x: Array, y: Array) -> ClassSums:
    """Add rows ``x`` (n, d) of classes ``y`` (n,) to a state, which is changed where it can be."""
    if x.shape[0] == 0:
        return state
    present, sums = arrays.sum_by_id(x, y)
    return ClassSums(
        arrays.add_into(state.count, arrays.bincount(y, state.count.shape[0])),
        arrays.add_rows_into(state.total, present, sums),
    )


def sums_work_nbytes(shape: tuple[int, ...], rows: int, classes: int) -> int:
    """Bytes of temporaries of :func:`add_by_class`, and of a merge when there are no rows.

    Kept rows; sums of the classes that are present, beside their totals; indices.
    """
    present = min(rows, classes)
    return floats_nbytes(shape, rows + 2 * present) + 64 * rows + 8 * classes
