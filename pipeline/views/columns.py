"""Some columns of a vector view, such as the logits of the classes that a head can predict."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.views.base import View, floats_nbytes, memoised


@value
class Columns:
    """The entries ``ids`` of each row of a vector view, in that order: (c,)."""

    of: View
    ids: Const
    """(c,) int64."""

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return self.ids.shape

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        return arrays.namespace(x).take(x, self.ids.like(x), axis=1)
