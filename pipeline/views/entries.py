"""Views of what a row adds to a reference bank: its entries, their number, and their keys."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.views.base import View, floats_nbytes, memoised, valid_tokens
from pipeline.views.features import Pooled
from pipeline.views.rows import Valid


@value
class Entries:
    """The entries of a row: its features (d,), or those of its tokens (t, d), in a bank.

    ``also`` () or (q,) stands behind the features of a row. Rows that ``where`` leaves out and
    masked tokens are NaN. Features that are pooled already keep the floats they are stored in,
    which loses nothing.
    """

    of: View
    also: View | None = None
    where: View = Valid()

    @property
    def fields(self) -> frozenset[str]:
        also = self.also.fields if self.also is not None else frozenset[str]()
        return self.of.fields | also | self.where.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        *tokens, width = self.of.shape(schema)
        if self.also is not None:
            width += int(np.prod(self.also.shape(schema), dtype=np.int64))
        return (*tokens, width)

    def nbytes(self, schema: Schema, rows: int) -> int:
        tokens, *rest = self.shape(schema)
        copies = 1 if self.also is None else 2
        masks = 3 * rows * (tokens if rest else 1)
        return copies * floats_nbytes(self.shape(schema), rows) + masks

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x, counts = self.of(chunk), self.where(chunk)
        xp = arrays.namespace(x)
        if self.also is not None:
            more = self.also(chunk)
            more = more[:, None] if more.ndim == 1 else more
            x = xp.concat((x, xp.astype(more, x.dtype)), axis=1)
        elif isinstance(self.of, Pooled):
            x = xp.astype(x, _narrowest(self.of, chunk.schema, xp), copy=False)
        if x.ndim == 3:
            counts = counts[:, None]
            if "mask" in chunk.arrays:
                counts = counts & valid_tokens(chunk)
        nothing = xp.asarray(xp.nan, dtype=x.dtype, device=arrays.device_of(x))
        return xp.where(counts[..., None], x, nothing)


def _narrowest(of: Pooled, schema: Schema, xp: Any) -> Any:
    """Return the dtype of pooled features: float32 where they are stored so, or in float16."""
    (field,) = of.fields
    spec = schema.spec(field)
    narrow = len(spec.shape) == 1 and spec.memory_dtype in (np.float16, np.float32)
    return xp.float32 if narrow else xp.float64


@value
class EntryCounts:
    """Entries of each row in a bank of ``of``: () int64, 1, or its valid tokens."""

    of: View

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows * 16

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        shape = self.of.shape(chunk.schema)
        x = chunk.any_array
        xp = arrays.namespace(x)
        if len(shape) == 2 and "mask" in chunk.arrays:
            return xp.astype(xp.count_nonzero(valid_tokens(chunk), axis=1), xp.int64)
        each = shape[0] if len(shape) == 2 else 1
        return xp.full((chunk.rows,), each, dtype=xp.int64, device=arrays.device_of(x))


@value
class EntryKeys:
    """A random number for each entry of a row, () or (tokens,) int64, from 0 up.

    It is a hash of the row's id in ``field``, or without one of the split and its position in it,
    and of the token: a subsample by keys depends neither on chunks nor, with ids, on the order of
    the rows. ``tokens`` is 0 for entries of whole rows.
    """

    field: str = ""
    tokens: int = 0

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field}) if self.field else frozenset()

    def shape(self, schema: Schema) -> tuple[int, ...]:
        if self.field and (schema.spec(self.field).shape or self._dtype(schema).kind not in "iu"):
            raise DataError(
                f"{schema.split}: {self.field} has rows of shape {schema.spec(self.field).shape} "
                f"and dtype {self._dtype(schema)}; a subsample needs one integer id for each row"
            )
        return (self.tokens,) if self.tokens else ()

    def _dtype(self, schema: Schema) -> np.dtype[Any]:
        return schema.spec(self.field).memory_dtype

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 6 * 8 * rows * max(1, self.tokens)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        self.shape(chunk.schema)
        if self.field:
            rows = _scrambled(arrays.to_host(chunk[self.field]).astype(np.uint64))
        else:
            place = np.arange(chunk.start, chunk.stop, dtype=np.uint64)
            rows = _scrambled(
                place ^ (np.uint64(zlib.crc32(chunk.split.encode())) << np.uint64(32))
            )
        if self.tokens:
            rows = _scrambled(rows[:, None] + np.arange(self.tokens, dtype=np.uint64))
        return arrays.like((rows >> np.uint64(1)).astype(np.int64), chunk.any_array)


def _scrambled(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the output of the SplitMix64 generator (Steele, Lea and Flood 2014) for each state."""
    x = x + np.uint64(0x9E3779B97F4A7C15)  # arrays wrap around, as the generator does
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray[Any, Any] = x ^ (x >> np.uint64(31))
    return found
