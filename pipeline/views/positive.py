"""Which elements are of the class, or the classes, that scores speak for."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.views.base import floats_nbytes, memoised
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
class OfClasses:
    """For each class from ``start`` to before ``stop``, whether an element is of it: (s, ...) bool.

    Labels () are one class each; with ``several``, (k, ...) they are 1 where an element has that of
    the class.
    """

    start: int
    stop: int
    several: bool = False

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"labels"})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        labels = Truth().shape(schema)
        if labels != ((schema.classes,) if self.several else ()):
            raise DataError(
                f"{schema.split}: labels have rows of shape {labels}; ranks of {schema.classes} "
                f"classes need {'one for each of them' if self.several else 'one a row'}"
            )
        return (self.stop - self.start,)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 2 * floats_nbytes(self.shape(schema), rows, 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        y = Truth()(chunk)
        if self.several:
            return y[:, self.start : self.stop] == 1
        xp = arrays.namespace(y)
        wide = xp.astype(y, xp.int64)
        ids = xp.arange(self.start, self.stop, dtype=xp.int64, device=arrays.device_of(y))
        return wide[:, None] == ids[None, :]
