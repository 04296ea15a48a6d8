"""The probability of every class, and whether it is the label: for numbers class by class."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.views.base import floats_nbytes, memoised
from pipeline.views.class_ids import Truth
from pipeline.views.judged import TILE_SCORES, Judgements


@value
class ClassProbabilities:
    """Probabilities (k, ...) float64 of the classes of each element, from the scores of ``of``.

    Raises as :class:`Judgements` does.
    """

    of: Judgements
    version: ClassVar[int] = 1

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return _class_shape(self.of, schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        shape = self.shape(schema)
        row = max(1, floats_nbytes(shape, 1, 1))
        return floats_nbytes(shape, rows) + 40 * row * min(rows, max(1, TILE_SCORES // row))

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        self.of(chunk)  # its checks
        scores = chunk[self.of.field]
        width = max(1, int(np.prod(scores.shape[1:], dtype=np.int64)))
        return arrays.by_tiles(self._of_tile, scores, tile_rows=max(1, TILE_SCORES // width))

    def _of_tile(self, scores: Array) -> Array:
        xp = arrays.namespace(scores)
        x = xp.astype(scores, xp.float64)
        if self.of.kind == "probabilities":
            return x
        with np.errstate(all="ignore"):  # scores that do not count may be anything
            if self.of.task == "multiclass":
                p = xp.exp(x - xp.max(x, axis=1, keepdims=True))
                return p / xp.sum(p, axis=1, keepdims=True)
            rest = xp.exp(-xp.abs(x))
            return xp.where(x >= 0.0, xp.ones_like(rest), rest) / (1.0 + rest)


@value
class IsClass:
    """Whether each class is the label of an element: (k, ...) bool."""

    of: Judgements

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return _class_shape(self.of, schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows, 1) + floats_nbytes(
            self.shape(schema)[1:], rows
        )

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        labels, scores = Truth()(chunk), chunk[self.of.field]
        xp = arrays.namespace(labels, scores)
        if self.of.task == "multilabel" and labels.ndim == scores.ndim:
            return labels == 1
        if labels.ndim != scores.ndim - 1:  # of a split without labels
            return xp.zeros_like(scores, dtype=xp.bool)
        k = scores.shape[1]
        classes = xp.arange(k, dtype=xp.int64, device=arrays.device_of(labels))
        classes = xp.reshape(classes, (1, k, *(1,) * (labels.ndim - 1)))
        return xp.expand_dims(xp.astype(labels, xp.int64), axis=1) == classes


def _class_shape(of: Judgements, schema: Schema) -> tuple[int, ...]:
    of.shape(schema)
    return schema.spec(of.field).shape
