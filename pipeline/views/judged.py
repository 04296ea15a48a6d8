"""What the scores of a model say of every element, and how well that fits its label.

An element is an image, a pixel of a mask, or a label of a multilabel task. What the scores are is
declared, ``logits`` or ``probabilities``, and never told from their values.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import REHEARSING, Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError, DataError
from pipeline.tasks import check_task
from pipeline.views.base import View, floats_nbytes, memoised
from pipeline.views.class_ids import Labelled, Truth
from pipeline.views.quantities import KINDS, QUANTITIES, binary, multiclass

TILE_SCORES = 2**16
"""Scores that are looked at at a time."""
TILE_ARRAYS = 8
"""Float64 arrays of them that are held then."""


@value
class CountedElements:
    """Elements that count: (...) bool, those of rows that ``where`` keeps, but ``ignore``.

    Raises :class:`DataError` for a label of such rows that is not ignored and not one of the
    classes: 0 to k-1, or 0 and 1 where ``task`` is not multiclass.
    """

    task: str = "multiclass"
    ignore: tuple[int, ...] = ()
    where: View = Labelled()

    @property
    def fields(self) -> frozenset[str]:
        return self.where.fields | {"labels"}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return label_shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 6 * floats_nbytes(label_shape(schema), rows, 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        y, counts = Truth()(chunk), self.where(chunk)
        xp = arrays.namespace(y)
        if counts.ndim < y.ndim:
            counts = xp.reshape(counts, (chunk.rows, *(1,) * (y.ndim - 1)))
            counts = counts & xp.ones_like(y, dtype=xp.bool)
        limits = xp.iinfo(y.dtype)
        for ignored in self.ignore:
            if limits.min <= ignored <= limits.max:
                counts = counts & (y != ignored)
        classes = chunk.schema.classes if self.task == "multiclass" else 2
        wrong = y < 0 if limits.min < 0 else xp.zeros_like(counts)
        if classes <= limits.max:
            wrong = wrong | (y >= classes)
        if bool(xp.any(wrong & counts)):
            raise DataError(_not_a_class(chunk, wrong & counts, classes))
        return counts


def _not_a_class(chunk: Chunk, wrong: Array, classes: int) -> str:
    bad = arrays.to_host(wrong)
    values = np.unique(arrays.to_host(Truth()(chunk))[bad])[:5].tolist()
    row = chunk.start + int(np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[0])
    return (
        f"{chunk.split}: {int(bad.sum())} labels are not 0 to {classes - 1}, first in row {row}: "
        f"{', '.join(map(str, values))}; add what does not count to ignore, such as "
        f"ignore=({values[0]},)"
    )


@value
class Judgements:
    """All :data:`QUANTITIES` of each element: (8, ...) float64, ... the shape of a row's labels.

    Scores ``field`` are (k, ...) for multiclass, of the shape of the labels otherwise: for binary
    of class 1, for multilabel one for each label. Where no label counts there may be anything.
    Raises :class:`DataError` where an element that counts has a score that is not finite, or that
    is no probability where it must be one.
    """

    task: str = "multiclass"
    kind: str = "logits"
    field: str = "logits"
    among: View = CountedElements()
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_task(self.task)
        if self.kind not in KINDS:
            raise ConfigError(f"kind: {self.kind!r} is unknown; choose {' or '.join(KINDS)}")

    @property
    def fields(self) -> frozenset[str]:
        return self.among.fields | {self.field}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return (len(QUANTITIES), *element_shape(schema, self.field, self.task))

    def nbytes(self, schema: Schema, rows: int) -> int:
        scores = max(1, floats_nbytes(schema.spec(self.field).shape, 1, 1))
        tile = scores * min(rows, max(1, TILE_SCORES // scores))
        return floats_nbytes(self.shape(schema), rows) + 8 * TILE_ARRAYS * tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        scores, labels, counts = chunk[self.field], Truth()(chunk), self.among(chunk)
        if scores.ndim - labels.ndim != (self.task == "multiclass"):
            labels = counts = _none_of(scores, self.task)  # of a split without labels
        width = max(1, int(np.prod(scores.shape[1:], dtype=np.int64)))
        found = arrays.by_tiles(
            self._of_tile, scores, labels, tile_rows=max(1, TILE_SCORES // width)
        )
        xp = arrays.namespace(found)
        bad = counts & xp.isnan(found[:, 0, ...])
        if bool(xp.any(bad)):
            raise DataError(self._complaint(chunk, bad))
        return found

    def _of_tile(self, scores: Array, labels: Array) -> Array:
        judge = multiclass if self.task == "multiclass" else binary
        with np.errstate(all="ignore"):  # scores that do not count may be anything
            # Made-up rows are logits, whatever they stand for.
            return judge(scores, labels, "logits" if REHEARSING.get() else self.kind)

    def _complaint(self, chunk: Chunk, bad: Array) -> str:
        rows = np.flatnonzero(arrays.to_host(bad).reshape(chunk.rows, -1).any(axis=1))
        found = f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}, first row"
        found = f"{chunk.split}: {self.kind} of {found} {chunk.start + rows[0]},"
        first = arrays.to_host(chunk[self.field])[rows[0]].astype(np.float64)
        if not np.isfinite(first).all():
            return f"{found} are not finite; look for what computed them, or ignore their labels"
        low, high = first.min(), first.max()
        if self.kind == "logits":
            return (
                f"{found} lie from {low:g} to {high:g}, and float64 does not hold their "
                "differences; look for what computed them, or ignore their labels"
            )
        sums = first.sum(axis=0) if self.task == "multiclass" else 1.0
        off = (
            f", with sums from {np.min(sums):g} to {np.max(sums):g}" if low >= 0 <= 1 - high else ""
        )
        return (
            f"{found} lie from {low:g} to {high:g}{off}; expected 0 to 1"
            f"{' with a sum of 1' if self.task == 'multiclass' else ''}: are they logits? "
            "Declare kind='logits' then"
        )


@value
class Judged:
    """One of the :data:`QUANTITIES` of each element: (...) float64."""

    of: Judgements
    quantity: str

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise ConfigError(
                f"quantity: {self.quantity!r} is unknown; choose {', '.join(QUANTITIES)}"
            )

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)[1:]

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 0

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return self.of(chunk)[:, QUANTITIES.index(self.quantity), ...]


@value
class Agrees:
    """Whether predictions, of the shape of the labels, are the label: (...) bool."""

    of: View

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | {"labels"}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        given, labels = self.of.shape(schema), label_shape(schema)
        if given != labels:
            raise DataError(
                f"{schema.split}: rows of predictions have shape {given}, those of labels {labels}"
            )
        return labels

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 17 * floats_nbytes(self.shape(schema), rows, 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        labels, found = Truth()(chunk), self.of(chunk)
        xp = arrays.namespace(labels, found)
        return xp.astype(labels, xp.int64) == xp.astype(found, xp.int64)


def label_shape(schema: Schema) -> tuple[int, ...]:
    """Return the shape of a row's labels; of a split without labels that of one for each row."""
    return schema.arrays["labels"].shape if "labels" in schema.arrays else ()


def element_shape(schema: Schema, field: str, task: str) -> tuple[int, ...]:
    """Return the shape of the elements of a row, of which each has scores.

    Raises :class:`DataError` where scores and labels do not fit the task.
    """
    given = schema.spec(field).shape
    labels = schema.arrays["labels"].shape if "labels" in schema.arrays else None
    leading = () if task == "binary" else (schema.classes,)
    shape = given[1:] if task == "multiclass" else given
    if given[: len(leading)] != leading or labels not in (None, shape):
        beside = f" beside labels {labels}" if labels is not None else ""
        expected = {
            "multiclass": f"({schema.classes}, ...), a score for each class",
            "binary": "the shape of the labels, the score of class 1",
            "multilabel": f"({schema.classes}, ...) of both, one for each label",
        }
        raise DataError(
            f"{schema.split}: {field} has rows of shape {given}{beside}; expected for {task} "
            f"scores {expected[task]}"
        )
    return shape


def _none_of(scores: Array, task: str) -> Array:
    """Return False for every element: labels of class 0, and a mask that keeps none of them."""
    xp = arrays.namespace(scores)
    return xp.zeros_like(scores[:, 0, ...] if task == "multiclass" else scores, dtype=xp.bool)
