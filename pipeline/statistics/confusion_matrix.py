"""Predicted against true classes, counted in int64."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.arrays.counting import pair_width
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.base import fields_of
from pipeline.statistics.elements import count_elements, counting_nbytes
from pipeline.views import Labels, Predicted, Valid, View


@value
class ConfusionMatrix:
    """Counts (k, k) int64 of predicted classes ``of`` (columns) per true class ``by`` (rows).

    Both are integers of one shape, any number of them a row; elements whose label is one of
    ``ignore`` do not count. Where such a value lies outside 0 to k-1 there is another column, of
    the elements that count and are predicted as it. Raises :class:`DataError` for an element that
    counts and whose true or predicted class is not one of 0 to k-1.
    """

    of: View = Predicted()
    by: View = Labels()
    where: View = Valid()
    ignore: tuple[int, ...] = ()
    version: ClassVar[int] = 3
    additive: ClassVar[bool] = True

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> Array:
        return np.zeros(self._shape(schema), np.int64)

    def absorb(self, state: Array, chunk: Chunk) -> Array:
        found = count_elements(arrays.count_pairs, chunk, self.of, self.by, self.where, self.ignore)
        return arrays.add_into(state, found)

    def close(self, state: Array) -> Array:
        return state

    def merge(self, a: Array, b: Array) -> Array:
        return a + b

    def finalize(self, state: Array) -> Array:
        return arrays.to_host(state)

    def state_nbytes(self, schema: Schema) -> int:
        return 8 * math.prod(self._shape(schema))

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        width = math.prod(self._shape(schema))
        return counting_nbytes(self.of, self.by, self.where, schema, rows, width)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results

    def _shape(self, schema: Schema) -> tuple[int, int]:
        return schema.classes, pair_width(schema.classes, self.ignore)
