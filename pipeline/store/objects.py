"""Arrays that are loaded lazily, object by object: chunks or shards of zarr, chunks of dask."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from pipeline.arrays import Array
from pipeline.chunk import ArraySpec, Block
from pipeline.store import layout

HELD_NBYTES = 4 * layout.CHUNK_NBYTES
"""Largest stored object that is loaded whole; of a larger one only the rows asked for are read."""


class Loader(Protocol):
    """Rows that are loaded when they are asked for."""

    def rows(self, name: str, start: int, stop: int, /) -> np.ndarray[Any, Any]: ...
    def object_rows(self, name: str, /) -> int: ...


class Objects:
    """Rows of one array of a block, front to back; every stored object is opened once."""

    def __init__(self, loader: Loader, name: str, block: Block) -> None:
        self.loader, self.name, self.stop = loader, name, block.stop
        self.object_rows = loader.object_rows(name)
        self._held = np.empty(0)
        self._end = block.start

    def rows(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return rows; ranges must be asked for in order, without gaps."""
        held = self._held[len(self._held) - (self._end - start) :]
        if stop > self._end:
            last = min(-(-stop // self.object_rows) * self.object_rows, self.stop)
            loaded = self.loader.rows(self.name, self._end, last)
            wanted = loaded[: stop - self._end]
            held = np.concatenate([held, wanted]) if self._end > start else wanted
            self._held, self._end = loaded, last
        if self._end == stop:
            self._held = self._held[:0].copy()  # a view would hold on to what it is cut from
        return held[: stop - start]


def is_lazy(array: Array) -> bool:
    """Tell whether rows of an array are loaded from elsewhere when they are sliced."""
    return not isinstance(array, np.ndarray) and hasattr(array, "chunks")


def object_rows(array: Array) -> int:
    """Return the rows of what is read at once: a shard or chunk of zarr, a chunk of dask, or 1."""
    stored = getattr(array, "shards", None) or getattr(array, "chunks", None) or (1,)
    first = stored[0]
    return int(first if isinstance(first, int) else max(first))


def held_rows(array: Array, spec: ArraySpec) -> int:
    """Return the rows of an object that is loaded whole, or 1 where it is too large for that."""
    rows = object_rows(array)
    return rows if rows * spec.nbytes <= HELD_NBYTES else 1
