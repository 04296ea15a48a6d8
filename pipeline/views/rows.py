"""Views of what a row is: its label, its origin, and whether it counts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import IS_OOD, Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.views.base import View, floats_nbytes, memoised, valid_tokens, with_valid_tokens
from pipeline.views.features import Pooled
from pipeline.views.logits import Logits, Predicted


@value
class Labels:
    """Labels () int64; -1 for every row of a split that has none. A label >= k is an error."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"labels"})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        given = schema.arrays.get("labels")
        if given is not None and given.shape:
            raise DataError(
                f"{schema.split}: labels have rows of shape {given.shape}; expected one integer "
                "per row, so an array of shape (n,)"
            )
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows * 10

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        if "labels" not in chunk.arrays:
            x = chunk.any_array
            xp = arrays.namespace(x)
            return xp.full((chunk.rows,), -1, dtype=xp.int64, device=arrays.device_of(x))
        y = chunk["labels"]
        xp = arrays.namespace(y)
        y = xp.astype(y, xp.int64)
        if bool(xp.any(y >= chunk.schema.classes)):
            raise DataError(_out_of_range(chunk, arrays.to_host(y)))
        return y


def _out_of_range(chunk: Chunk, y: np.ndarray[Any, Any]) -> str:
    rows = np.flatnonzero(y >= chunk.schema.classes)
    shown = ", ".join(f"row {chunk.start + row}: {y[row]}" for row in rows[:3])
    return (
        f"{chunk.split}: {len(rows)} labels in rows {chunk.start}-{chunk.stop - 1} are not below "
        f"the declared {chunk.schema.classes} classes ({shown}); mend the labels or declare "
        f"classes={int(y.max()) + 1}"
    )


@value
class IsOOD:
    """Whether the row comes from an out-of-distribution split: () bool."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({IS_OOD})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = chunk.any_array
        xp = arrays.namespace(x)
        device = arrays.device_of(x)
        return xp.full((chunk.rows,), chunk.is_ood, dtype=xp.bool, device=device)


@value
class Outside:
    """Whether the row comes from another split than the one named: () bool.

    Tells the sets of an evaluation from its in-distribution rows, whatever they are called: sets
    of shifted covariates are in-distribution by their name.
    """

    split: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({IS_OOD})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = chunk.any_array
        xp = arrays.namespace(x)
        outside = chunk.split != self.split
        return xp.full((chunk.rows,), outside, dtype=xp.bool, device=arrays.device_of(x))


@value
class Every:
    """Row filter that keeps every row."""

    @property
    def fields(self) -> frozenset[str]:
        return frozenset()

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = chunk.any_array
        xp = arrays.namespace(x)
        return xp.ones((chunk.rows,), dtype=xp.bool, device=arrays.device_of(x))


@value
class Valid:
    """Row filter of fits: a label >= 0 and, where tokens are masked, at least one valid token.

    As :class:`Labelled`, of int64 labels that are checked to be below k.
    """

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"labels"})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows * 3

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return with_valid_tokens(chunk, Labels()(chunk) >= 0)


@value
class Correct:
    """Row filter: labelled and predicted right."""

    of: View = Logits()

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | {"labels"}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows * 4

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return (Predicted(self.of)(chunk) == Labels()(chunk)) & Valid()(chunk)


@value
class Both:
    """Row filter: both filters keep the row."""

    left: View
    right: View

    @property
    def fields(self) -> frozenset[str]:
        return self.left.fields | self.right.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return self.left(chunk) & self.right(chunk)


@value
class Finite:
    """Row filter: every value of the given stored arrays is finite (valid tokens only)."""

    names: tuple[str, ...]

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self.names)

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = 2 * min(rows, arrays.TILE_IMAGES)
        names = [name for name in self.names if name in schema.arrays]
        shapes = {name: schema.arrays[name].shape for name in names}
        pooled = sum(
            Pooled("mean", name).nbytes(schema, rows)
            for name, shape in shapes.items()
            if len(shape) == 2
        )
        looked_at = (floats_nbytes(shape, tile, 1) for shape in shapes.values())
        return rows * 4 + pooled + max(looked_at, default=0)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        kept = Every()(chunk)
        for name in self.names:
            if name in chunk.arrays:
                # Looked at once, whatever combinations of arrays are asked for.
                kept = kept & chunk.memo((Finite, name), partial(_finite_rows, chunk, name))
        return kept


def _finite_rows(chunk: Chunk, name: str) -> Array:
    x = chunk[name]
    xp = arrays.namespace(x)
    every = Every()(chunk)
    if not xp.isdtype(x.dtype, "real floating"):
        return every
    # One finite sum proves every entry finite at a third of the cost of looking at each; the means
    # of tokens are there anyway.
    with np.errstate(over="ignore", invalid="ignore"):
        summed = Pooled("mean", name)(chunk) if x.ndim == 3 else x
        wide = arrays.itemsize(summed.dtype) == 8
        total = xp.sum(summed, dtype=xp.float64 if wide else xp.float32)
    if bool(xp.isfinite(total)):
        return every
    if x.ndim == 3 and "mask" in chunk.arrays:
        valid = valid_tokens(chunk)
        return arrays.by_tiles(_all_finite, x, valid, tile_rows=arrays.TILE_IMAGES)
    return arrays.by_tiles(_all_finite, x, tile_rows=arrays.TILE_IMAGES)


def _all_finite(x: Array, valid: Array | None = None) -> Array:
    xp = arrays.namespace(x)
    finite = xp.isfinite(x)
    if valid is not None:
        finite = finite | ~valid[:, :, None]
    return xp.all(xp.reshape(finite, (x.shape[0], -1)), axis=1)
