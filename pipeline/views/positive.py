"""Which elements are of a class, or of each of several, and the scores of one class."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.views.base import View, floats_nbytes, memoised
from pipeline.views.class_ids import Truth


@value
class Positive:
    """Whether each label is ``label``: (...) bool."""

    label: int = 1

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"labels"})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return Truth().shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows, 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return Truth()(chunk) == self.label


@value
class OneHot:
    """Whether the label of a row is each of the k classes: (k,) bool, of labels ()."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"labels"})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        if labels := Truth().shape(schema):
            raise DataError(
                f"{schema.split}: labels have rows of shape {labels}; all classes are ranked in "
                "one order where there is one label a row"
            )
        return (schema.classes,)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows, 1) + 8 * (rows + schema.classes)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        y = Truth()(chunk)
        xp = arrays.namespace(y)
        ids = xp.arange(chunk.schema.classes, dtype=xp.int64, device=arrays.device_of(y))
        return xp.astype(y, xp.int64)[:, None] == ids[None, :]


@value
class OfClass:
    """What a view (k, ...) says of one class: (...), without a copy."""

    of: View
    index: int

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        shape = self.of.shape(schema)
        if shape[:1] != (schema.classes,):
            raise DataError(
                f"{schema.split}: {self.of} has rows of shape {shape}; expected "
                f"({schema.classes}, ...), one entry for each class"
            )
        return shape[1:]

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 0

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return self.of(chunk)[:, self.index, ...]
