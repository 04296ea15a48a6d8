"""The reader for arrays that only zarr can decode: compressed ones, and whatever else it knows."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.chunk import ArraySpec
from pipeline.store import checksum, layout
from pipeline.store.place import Place
from pipeline.store.raw import MISSING
from pipeline.store.reads import count

CODEC_FACTOR = 4.0
"""Memory of decoding a chunk, in chunks, as measured: its bytes, the copy that is checked, the
decoded rows, and what the allocator has not given back of the chunk before."""
_NOTHING: tuple[int, int, np.ndarray[Any, Any]] = (0, 0, np.empty(0))


class CodedChunks:
    """Reads rows of one array of one block through zarr; keeps the stored chunk it read last."""

    def __init__(
        self, array: Any, directory: Place, split: str, spec: ArraySpec, chunk_rows: int, stop: int
    ) -> None:
        self.array, self.directory, self.split, self.spec = array, directory, split, spec
        self.chunk_rows, self.stop = chunk_rows, stop
        self._held = _NOTHING

    def read(self, out: np.ndarray[Any, Any], start: int, stop: int) -> int:
        """Fill ``out`` with rows ``start`` to ``stop``, all of one chunk; return their checksum.

        Raises OSError, ValueError or RuntimeError for chunks that are missing or damaged.
        """
        if not self._held[0] <= start < self._held[1]:
            self._held = _NOTHING  # let go of it before the next is read
            index = start // self.chunk_rows
            count(self.split, self.directory.name, index)
            end = min((index + 1) * self.chunk_rows, self.stop)
            self._held = (start, end, self._load(index, start, end))
        first, last, rows = self._held
        out[...] = rows[start - first : stop - first]
        if stop == last:
            self._held = _NOTHING
        return checksum.crc32c(out)

    def check(self, index: int) -> None:
        """Decode one chunk, and raise as :meth:`read` would if it was damaged."""
        start = index * self.chunk_rows
        self._load(index, start, min(start + self.chunk_rows, self.stop))

    def close(self) -> None:
        """Let go of the chunk that is held."""
        self._held = _NOTHING

    def _load(self, index: int, start: int, stop: int) -> np.ndarray[Any, Any]:
        file = layout.chunk_file(self.directory, index, self.spec)
        if not file.exists():  # zarr would answer with fill values
            raise FileNotFoundError(MISSING)
        rows: np.ndarray[Any, Any] = self.array[start:stop]
        if rows.shape != (stop - start, *self.spec.shape):
            raise ValueError(f"expected {stop - start} rows, got shape {rows.shape}")
        return rows
