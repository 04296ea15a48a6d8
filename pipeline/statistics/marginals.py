"""Margins and diagonal of a confusion matrix: enough for macro metrics, in 3 k integers."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.base import class_ids, fields_of, kept
from pipeline.views import Labels, Predicted, Valid, View


class ClassCounts(NamedTuple):
    """Rows per class: three times (k,) int64; the result, and the state."""

    true_positive: Array
    """Rows of the class that were predicted as such."""
    truth: Array
    """Rows of the class."""
    predicted: Array
    """Rows predicted as the class."""


@value
class Marginals:
    """Right, true and predicted rows per class, without the k x k matrix.

    Result: :class:`ClassCounts`. Raises :class:`DataError` for a kept row whose true or predicted
    class is not one of 0 to k-1.
    """

    of: View = Predicted()
    by: View = Labels()
    where: View = Valid()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> ClassCounts:
        return ClassCounts(*(np.zeros(schema.classes, np.int64) for _ in range(3)))

    def absorb(self, state: ClassCounts, chunk: Chunk) -> ClassCounts:
        predicted, truth = (
            class_ids(chunk, self.where, ids) for ids in kept(chunk, self.where, self.of, self.by)
        )
        seen = (truth[truth == predicted], truth, predicted)
        return ClassCounts(
            *(
                arrays.add_into(total, arrays.bincount(ids, chunk.schema.classes))
                for total, ids in zip(state, seen, strict=True)
            )
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
        return 24 * schema.classes + 48 * rows

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results
