"""Views of true and predicted classes, one for each element of a row: images, masks or volumes.

Ids keep the type they are stored in, and nothing is left out here: what does not count is for the
statistics to say, so that scores may be anything where no label counts.
"""

from __future__ import annotations

from typing import ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import REHEARSING, Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.views.base import View, floats_nbytes, memoised, with_valid_tokens

NO_CLASS = -128
"""What a view of scores predicts for an element with a NaN among its scores."""
NO_PROBABILITY = -127
"""The same for a score outside [0, 1], where a threshold within says that it is a probability."""
TILE_SCORES = 2**18
"""Scores that are looked at at a time."""


@value
class Truth:
    """Labels as they are stored, of any row shape; -1 for the rows of a split that has none."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"labels"})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return schema.arrays["labels"].shape if "labels" in schema.arrays else ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 0 if "labels" in schema.arrays else rows

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return chunk["labels"] if "labels" in chunk.arrays else _none(chunk, -1)


@value
class Labelled:
    """Row filter: one label, not below 0, and a valid token where tokens are masked."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"labels"})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows * 2

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return with_valid_tokens(chunk, Truth()(chunk) >= 0)


def _replaced(decided: Array, where: Array, number: int) -> Array:
    xp = arrays.namespace(decided)
    other = xp.asarray(number, dtype=decided.dtype, device=arrays.device_of(decided))
    return xp.where(where, other, decided)


def _none(chunk: Chunk, number: int) -> Array:
    x = chunk.any_array
    xp = arrays.namespace(x)
    return xp.full((chunk.rows,), number, dtype=xp.int8, device=arrays.device_of(x))


@value
class ArgMax:
    """Class (...) int64 of the first largest of the scores (k, ...) of each element."""

    field: str = "logits"
    from_scores: ClassVar[bool] = True
    version: ClassVar[int] = 1

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return _shape_of_scores(schema, self.field)[1:]

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 3 * floats_nbytes(self.shape(schema), rows) + _tile_nbytes(schema, self.field, rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        scores = chunk[self.field]
        return arrays.by_tiles(_first_largest, scores, tile_rows=_tile_rows(scores.shape[1:]))


@value
class AtLeast:
    """Whether each score is at least ``threshold``: 1 or 0, int8, of the shape of the scores.

    Between 0 and 1 it is one of probabilities, and a score outside [0, 1] is of no class.
    """

    threshold: float
    field: str = "logits"
    from_scores: ClassVar[bool] = True
    version: ClassVar[int] = 1

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return _shape_of_floats(schema, self.field)

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = floats_nbytes(self.shape(schema), min(rows, _tile_rows(self.shape(schema))), 5)
        return floats_nbytes(self.shape(schema), rows, 1) + tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        scores = chunk[self.field]
        return arrays.by_tiles(self._decided, scores, tile_rows=_tile_rows(scores.shape[1:]))

    def _decided(self, scores: Array) -> Array:
        xp = arrays.namespace(scores)
        # The threshold is a decimal number: 0.7 is reached by the float32 that is written 0.7.
        least = xp.asarray(self.threshold, dtype=scores.dtype, device=arrays.device_of(scores))
        decided = xp.astype(scores >= least, xp.int8)
        if 0 < self.threshold < 1 and not REHEARSING.get():
            decided = _replaced(decided, (scores < 0) | (scores > 1), NO_PROBABILITY)
        return _replaced(decided, xp.isnan(scores), NO_CLASS)


@value
class AmongTop:
    """The true class (...) where it is among the ``k`` largest scores, else the first largest.

    Among equal scores the classes of lower number come first, so k = 1 is :class:`ArgMax`.
    """

    k: int
    field: str = "logits"
    by: View = Truth()
    from_scores: ClassVar[bool] = True
    version: ClassVar[int] = 1

    @property
    def fields(self) -> frozenset[str]:
        return self.by.fields | {self.field}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return _shape_of_scores(schema, self.field)[1:]

    def nbytes(self, schema: Schema, rows: int) -> int:
        first = ArgMax(self.field).nbytes(schema, rows)
        shape = schema.spec(self.field).shape
        return first + floats_nbytes(shape, min(rows, _tile_rows(shape)), 4)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        scores, truth = chunk[self.field], self.by(chunk)
        if scores.ndim - truth.ndim != 1:
            return ArgMax(self.field)(chunk)  # of a split without labels
        return arrays.by_tiles(self._found, scores, truth, tile_rows=_tile_rows(scores.shape[1:]))

    def _found(self, scores: Array, truth: Array) -> Array:
        xp = arrays.namespace(scores, truth)
        classes = scores.shape[1]
        first = _first_largest(scores)
        truth = xp.astype(truth, xp.int64)
        inside = (truth >= 0) & (truth < classes)
        safe = xp.where(inside, truth, xp.zeros_like(truth))
        own = xp.take_along_axis(scores, xp.expand_dims(safe, axis=1), axis=1)
        steps = xp.arange(classes, dtype=xp.int64, device=arrays.device_of(scores))
        steps = xp.reshape(steps, (1, classes, *(1,) * (truth.ndim - 1)))
        before = steps < xp.expand_dims(safe, axis=1)
        above = (scores > own) | ((scores == own) & before)
        found = inside & (xp.count_nonzero(above, axis=1) < self.k) & (first != NO_CLASS)
        return xp.where(found, truth, first)


def _first_largest(scores: Array) -> Array:
    """Return the class of the first largest score (n, k, ...); ``NO_CLASS`` beside NaN."""
    xp = arrays.namespace(scores)
    first = xp.astype(xp.argmax(scores, axis=1), xp.int64)
    largest = xp.max(scores, axis=1)  # NaN where any score is
    return xp.where(xp.isnan(largest), xp.full_like(first, NO_CLASS), first)


def _shape_of_scores(schema: Schema, field: str) -> tuple[int, ...]:
    shape = _shape_of_floats(schema, field)
    if shape[:1] != (schema.classes,):
        raise DataError(
            f"{schema.split}: {field} has rows of shape {shape}, but the split declares "
            f"{schema.classes} classes; expected ({schema.classes}, ...), a score for each class"
        )
    return shape


def _shape_of_floats(schema: Schema, field: str) -> tuple[int, ...]:
    spec = schema.spec(field)
    if spec.memory_dtype.kind != "f":
        raise DataError(
            f"{schema.split}: {field} has dtype {spec.dtype}; scores are floats, and predicted "
            "classes are called predictions"
        )
    return spec.shape


def _tile_rows(shape: tuple[int, ...]) -> int:
    """Return the rows of a tile of scores of this shape."""
    return max(1, TILE_SCORES // max(1, floats_nbytes(shape, 1, 1)))


def _tile_nbytes(schema: Schema, field: str, rows: int) -> int:
    """Return the bytes of a tile of scores, which is copied to look along an axis not the last."""
    spec = schema.spec(field)
    if len(spec.shape) == 1:
        return 0
    tile = min(rows, _tile_rows(spec.shape))
    return floats_nbytes(spec.shape, tile, spec.memory_dtype.itemsize)
