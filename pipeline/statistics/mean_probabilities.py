"""Mean softmax vector per predicted class: the templates of KL matching."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.base import class_ids, fields_of, kept
from pipeline.statistics.class_means import ClassSums, Means, add_by_class, sums_work_nbytes
from pipeline.views import LogSoftmax, Predicted, Valid, View


@value
class MeanProbabilities:
    """Mean probability vector (k,) per class, from log probabilities ``of``.

    Probabilities are summed in float64, never their logarithms. Result: :class:`Means` with
    ``mean`` (k, k), row c for class c of ``by``; zero for a class without rows.
    """

    of: View = LogSoftmax()
    by: View = Predicted()
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
        log_p, y = kept(chunk, self.where, self.of, self.by)
        p = arrays.namespace(log_p).exp(log_p)
        return add_by_class(state, p, class_ids(chunk, self.where, y))

    def close(self, state: ClassSums) -> ClassSums:
        return state

    def merge(self, a: ClassSums, b: ClassSums) -> ClassSums:
        return ClassSums(a.count + b.count, a.total + b.total)

    def finalize(self, state: ClassSums) -> Means:
        count, total = arrays.map_arrays(arrays.to_host, tuple(state))
        return Means(count, total / np.maximum(count, 1)[:, None])

    def state_nbytes(self, schema: Schema) -> int:
        return 8 * schema.classes * (1 + self.of.shape(schema)[0])

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        (k,) = self.of.shape(schema)
        return 8 * rows * k + sums_work_nbytes((k,), rows, schema.classes)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results
