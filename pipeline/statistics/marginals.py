"""Margins and diagonal of a confusion matrix: enough for macro metrics, in 3 k integers."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.base import fields_of
from pipeline.statistics.elements import count_elements, counting_nbytes
from pipeline.views import Labels, Predicted, Valid, View


class ClassCounts(NamedTuple):
    """Elements per class: three times (k,) int64; the result, and the state."""

    true_positive: Array
    """Elements of the class that were predicted as such."""
    truth: Array
    """Elements of the class."""
    predicted: Array
    """Elements predicted as the class."""

    @property
    def rows(self) -> Array:
        """Elements that count, the same number for every class: (k,)."""
        return np.full_like(self.truth, self.truth.sum())


@value
class Marginals:
    """Right, true and predicted elements per class, without the k x k matrix.

    ``of`` and ``by`` are integers of one shape, any number of them a row. Elements whose label is
    one of ``ignore`` do not count; where such a value outside the range is predicted for one that
    does, it is a miss. Result: :class:`ClassCounts`. Raises :class:`DataError` for an element that
    counts and whose true or predicted class is not one of 0 to k-1.
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

    def empty(self, schema: Schema) -> ClassCounts:
        return ClassCounts(*(np.zeros(schema.classes, np.int64) for _ in range(3)))

    def absorb(self, state: ClassCounts, chunk: Chunk) -> ClassCounts:
        found = count_elements(
            arrays.count_margins, chunk, self.of, self.by, self.where, self.ignore
        )
        return ClassCounts(
            *(arrays.add_into(total, count) for total, count in zip(state, found, strict=True))
        )

    def close(self, state: ClassCounts) -> ClassCounts:
        return state

    def merge(self, a: ClassCounts, b: ClassCounts) -> ClassCounts:
        return ClassCounts(*(x + y for x, y in zip(a, b, strict=True)))

    def finalize(self, state: ClassCounts) -> ClassCounts:
        return ClassCounts(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return 24 * schema.classes

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        k = schema.classes
        return 56 * k + counting_nbytes(self.of, self.by, self.where, schema, rows, width=k)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results
