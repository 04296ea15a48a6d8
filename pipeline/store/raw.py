"""The fast reader: an uncompressed local chunk is its rows in C order, then perhaps a checksum.

Such a file is read straight into a buffer, only the rows that are asked for, three times as fast
as through zarr's codecs. Whatever else an array may be, zarr reads it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO, cast

import numpy as np

from pipeline.chunk import ArraySpec
from pipeline.store import checksum, disk, layout
from pipeline.store.place import Place
from pipeline.store.reads import count

CHECKSUM_NBYTES = 4
PIECE_NBYTES = 2**19
"""Bytes that are read at a time: their checksum is then taken where they are in cache."""
MISSING = "the file is missing"
_UNORDERED: dict[int, tuple[Any, ...]] = {1: (("bytes", {}),)}
"""The codec of single bytes, which have no order."""


def checksum_nbytes(directory: Place, spec: ArraySpec, chunk_rows: int) -> int | None:
    """Return the bytes of the checksum behind the rows of a raw chunk: 4, or 0 without one.

    None if the chunks of the array in ``directory`` are not raw, or its metadata cannot be read.
    """
    try:
        found = json.loads((directory / disk.GROUP_FILE).read_text(encoding="utf-8"))
        codecs = [_plain(codec) for codec in found["codecs"]]
        unordered = _UNORDERED.get(layout.stored_dtype(spec).itemsize, ())
        grid = found["chunk_grid"]
        fits = (
            sys.byteorder == "little"
            and found["zarr_format"] == 3
            and found["data_type"] == layout.stored_dtype(spec).name
            and _plain(grid) == ("regular", {"chunk_shape": [chunk_rows, *spec.shape]})
            and _plain(found["chunk_key_encoding"]) == ("default", {"separator": "/"})
            and not found.get("storage_transformers")
            and found["shape"][1:] == list(spec.shape)
            and codecs[0] in (("bytes", {"endian": "little"}), *unordered)
            and codecs[1:] in ([], [("crc32c", {})])
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return CHECKSUM_NBYTES * (len(codecs) - 1) if fits else None


def _plain(entry: Any) -> tuple[str, dict[str, Any]]:
    return entry["name"], entry.get("configuration") or {}


class RawChunks:
    """Reads rows of one array from its chunk files, front to back; keeps one file open."""

    def __init__(
        self, directory: Any, split: str, spec: ArraySpec, chunk_rows: int, trailer_nbytes: int
    ) -> None:
        self.directory, self.split, self.spec = directory, split, spec
        self.chunk_rows, self.trailer_nbytes = chunk_rows, trailer_nbytes
        self._file: BinaryIO | None = None
        self._index = -1
        self._next = -1
        self._crc32c = 0

    def read(self, out: np.ndarray[Any, Any], start: int, stop: int) -> int:
        """Fill ``out`` with rows ``start`` to ``stop``, all of one chunk; return their checksum.

        A chunk that was read to its end is compared with its own checksum. Raises OSError or
        ValueError for a file that is missing, has a wrong size, or was damaged.
        """
        index = start // self.chunk_rows
        first = index * self.chunk_rows
        if index != self._index or self._file is None:
            self.close()
            count(self.split, self.directory.name, index)
            self._file, self._index, self._next, self._crc32c = self._open(index), index, first, 0
        self._file.seek((start - first) * self.spec.nbytes)
        crc32c = read_into(self._file, out)
        if start == self._next:
            self._crc32c = checksum.joined(self._crc32c, crc32c, out.nbytes)
            self._next = stop
        if stop == first + self.chunk_rows:
            whole = self._next == stop
            trailer = self._file.read(self.trailer_nbytes)
            self.close()
            if whole:
                compare(self._crc32c, trailer)
        return crc32c

    def check(self, index: int) -> None:
        """Read one whole chunk, and raise as :meth:`read` would if it was damaged."""
        with self._open(index) as file:
            rows = np.empty(self.chunk_rows * self.spec.nbytes, np.uint8)
            compare(read_into(file, rows), file.read(self.trailer_nbytes))

    def close(self) -> None:
        """Close the file that is open, if one is."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self, index: int) -> BinaryIO:
        path = layout.chunk_file(self.directory, index, self.spec)
        try:
            file = path.open("rb", buffering=0)
        except FileNotFoundError:
            raise FileNotFoundError(MISSING) from None
        expected = self.chunk_rows * self.spec.nbytes + self.trailer_nbytes
        found = os.fstat(file.fileno()).st_size
        if found != expected:
            file.close()
            raise ValueError(f"the file has {found} bytes, expected {expected}")
        return cast(BinaryIO, file)


def compare(computed: int, trailer: bytes) -> None:
    """Raise ValueError unless a checksum is the one behind the rows, where there is one."""
    stored = int.from_bytes(trailer, "little") if trailer else computed
    if stored != computed:
        raise ValueError(
            f"checksum {checksum.hexadecimal(computed)}, the file says "
            f"{checksum.hexadecimal(stored)}"
        )


def read_into(file: BinaryIO, out: np.ndarray[Any, Any]) -> int:
    """Fill a contiguous array from a file, and return its checksum."""
    left, crc32c = out.reshape(-1).view(np.uint8), 0
    while len(left):
        got = file.readinto(left[:PIECE_NBYTES].data)  # type: ignore[attr-defined]
        if not got:
            raise ValueError("the file ends too early")
        crc32c = checksum.crc32c(left[:got], crc32c)
        left = left[got:]
    return crc32c
