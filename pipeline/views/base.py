"""The view protocol, and how views remember their results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema

V = TypeVar("V")


class View(Protocol):
    """A value that computes one array per chunk, with one entry per row.

    One that holds mathematics has a ``version: ClassVar[int]`` as statistics do, raised by hand
    when its numbers change: what was kept of it before is not used again. One without has never
    changed them.
    """

    @property
    def fields(self) -> frozenset[str]:
        """Stored arrays it reads."""
        ...

    def shape(self, schema: Schema) -> tuple[int, ...]:
        """Shape of one row of the view; raises where the schema does not fit."""
        ...

    def nbytes(self, schema: Schema, rows: int) -> int:
        """Bytes it allocates for ``rows`` rows."""
        ...

    def __call__(self, chunk: Chunk, /) -> Array:
        """Return the view of a chunk: (rows, *shape)."""
        ...


def memoised(compute: Callable[[V, Chunk], Array]) -> Callable[[V, Chunk], Array]:
    """Make the call of a view remember its result on the chunk."""

    @functools.wraps(compute)
    def call(self: V, chunk: Chunk) -> Array:
        return chunk.memo(self, lambda: compute(self, chunk))

    return call


def with_valid_tokens(chunk: Chunk, rows: Array) -> Array:
    """Return those of ``rows``, (n,) bool, that have a valid token where tokens are masked."""
    if "mask" not in chunk.arrays:
        return rows
    valid = valid_tokens(chunk)
    return rows & arrays.namespace(valid).any(valid, axis=1)


def valid_tokens(chunk: Chunk) -> Array:
    """Return the mask (n, t) of valid tokens of a split that has one, as booleans."""
    mask = chunk["mask"]
    xp = arrays.namespace(mask)
    return xp.astype(mask, xp.bool, copy=False)


def floats_nbytes(shape: tuple[int, ...], rows: int, itemsize: int = 8) -> int:
    """Return the bytes of ``rows`` rows of ``shape``."""
    return rows * int(np.prod(shape, dtype=np.int64)) * itemsize
