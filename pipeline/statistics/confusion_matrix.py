"""Predicted against true classes, counted in int64."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.base import fields_of
from pipeline.statistics.elements import count_elements, counting_nbytes
from pipeline.views import Labels, Predicted, Valid, View


@value
class ConfusionMatrix:
    """Counts (k, k) int64 of predicted classes ``of`` (columns) per true class ``by`` (rows).

    Both are integers of one shape, any number of them a row; elements whose label is one of
    ``ignore`` do not count. Raises :class:`DataError` for an element that counts and whose true or
    predicted class is not one of 0 to k-1.
    """

    of: View = Predicted()
    by: View = Labels()
    where: View = Valid()
    ignore: tuple[int, ...] = ()
    version: ClassVar[int] = 2
    additive: ClassVar[bool] = True

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> Array:
        return np.zeros((schema.classes, schema.classes), np.int64)

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
        return 8 * schema.classes**2

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        width = schema.classes**2
        return counting_nbytes(self.of, self.by, self.where, schema, rows, width)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results
