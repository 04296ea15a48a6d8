"""npz files: several arrays in a zip file; stored ones are read like npy files, deflated in order.

A deflated array can only be read from its first row on: rows further back cost what lies before.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from pipeline.errors import CorruptError
from pipeline.store.file_rows import FileRows
from pipeline.store.importers import Importer, Rows, Unreadable, has_suffix
from pipeline.store.importers.faults import told
from pipeline.store.importers.npy import AGAIN, head

LOCAL_HEAD_NBYTES = 30
"""Bytes before the name of a member in a zip file; the last four say how long what follows is."""
SKIPPED_NBYTES = 2**20
"""Bytes that are unpacked at once to be passed over."""


class StoredRows(FileRows):
    """Rows of an array that lies uncompressed in an npz file.

    Whoever reads all of them in order has them compared with the checksum of the zip file.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], start_nbytes: int,
        head_crc32: int, crc32: int,
    ) -> None:  # fmt: skip
        super().__init__(path, shape, dtype, start_nbytes)
        self._head_crc32, self._expected = head_crc32, crc32
        self._crc32, self._next, self._lock = head_crc32, 0, Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.path, self.shape, self.dtype, self.start_nbytes)
        return StoredRows, (*place, self._head_crc32, self._expected)

    def read_into(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill a contiguous array from row ``start`` on; raises CorruptError as well."""
        super().read_into(out, start)
        with self._lock:
            if start == 0:
                self._crc32, self._next = self._head_crc32, 0
            if start != self._next:
                return
            self._crc32 = zlib.crc32(out.reshape(-1).view(np.uint8).data, self._crc32)
            self._next = start + len(out)
            if self._next == self.shape[0] and self._crc32 != self._expected:
                raise CorruptError(
                    f"{self.path} is damaged (the checksum of its rows is {self._crc32:08x}, "
                    f"expected {self._expected:08x}); save it again"
                )

    def check(self) -> None:
        """Read all rows; raises :class:`CorruptError` where they are not those that were saved."""
        step = max(1, SKIPPED_NBYTES // max(1, self.row_nbytes))
        buffer = np.empty((min(step, self.shape[0]), *self.shape[1:]), self.dtype)
        for start in range(0, self.shape[0], step):
            self.read_into(buffer[: self.shape[0] - start], start)


class DeflatedRows:
    """Rows of a compressed array of an npz file, which can only be read from the first one on."""

    def __init__(
        self, path: Path, member: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.path, self.member, self.shape, self.dtype = path, member, shape, dtype
        self._open: InOrder | None = None

    @contextmanager
    def opened(self) -> Iterator[InOrder]:
        """Open the rows to be read in order; raises :class:`CorruptError` for damaged ones."""
        found = InOrder(self)
        try:
            yield found
        finally:
            found.close()

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Read rows; those behind the ones read last are reached from there."""
        start, stop, _ = rows.indices(self.shape[0])
        read = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self.read_into(read, start)
        return read

    def read_into(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill a contiguous array from row ``start`` on; raises as :meth:`opened` does."""
        if self._open is None or start < self._open.next:
            self.close()
            self._open = InOrder(self)
        self._open.read_into(out, start)

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()
        self._open = None


class InOrder:
    """Compressed rows on their way out of a file; rows are passed over, but not gone back to."""

    def __init__(self, rows: DeflatedRows) -> None:
        self.shape, self.dtype = rows.shape, rows.dtype
        self.next = 0
        """The row that comes next."""
        self._path, self._what = rows.path, rows.member
        with self._told(), ExitStack() as opened:
            file = opened.enter_context(zipfile.ZipFile(rows.path))
            self._stream: IO[bytes] = opened.enter_context(file.open(rows.member))
            head(self._stream)
            self._opened = opened.pop_all()

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Read rows; raises :class:`CorruptError` where the file is damaged or ends before."""
        start, stop, _ = rows.indices(self.shape[0])
        found = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self.read_into(found, start)
        return found

    def read_into(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill a contiguous array from row ``start`` on; raises as slicing does."""
        if start < self.next:
            raise ValueError(f"row {start} is out of order; {self.next} comes next")
        row_nbytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        with self._told():
            self._skip((start - self.next) * row_nbytes)
            buffer = out.reshape(-1).view(np.uint8).data
            filled = 0
            while filled < len(buffer) and (got := self._stream.readinto(buffer[filled:])):  # type: ignore[attr-defined]
                filled += got
            if filled < len(buffer):
                self._ended(start + len(out))
        self.next = start + len(out)

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def _skip(self, nbytes: int) -> None:
        while nbytes:
            part = self._stream.read(min(nbytes, SKIPPED_NBYTES))
            if not part:
                self._ended(self.next)
            nbytes -= len(part)

    def _ended(self, row: int) -> None:
        raise CorruptError(f"{self._path} ends before row {row}; save it again")

    @contextmanager
    def _told(self) -> Iterator[None]:
        with told(
            self._path, zipfile.BadZipFile, zlib.error, EOFError, ValueError, where=self._what
        ):
            yield


def npz_rows(path: Path) -> dict[str, FileRows | DeflatedRows | Unreadable]:
    """Return the rows of every array of an npz file by name; reads their heads.

    Raises :class:`CorruptError` for what is no zip file.
    """
    with told(path, zipfile.BadZipFile), zipfile.ZipFile(path) as file:
        return {
            info.filename.removesuffix(".npy"): _member(path, file, info)
            for info in file.infolist()
        }


def _member(
    path: Path, file: zipfile.ZipFile, info: zipfile.ZipInfo
) -> FileRows | DeflatedRows | Unreadable:
    try:
        with file.open(info) as stream:
            shape, dtype = head(stream)
            head_nbytes = stream.tell()
        with file.open(info) as stream:
            head_crc32 = zlib.crc32(stream.read(head_nbytes))
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        return Unreadable(f"{path}, {info.filename}: cannot be read ({error}); {AGAIN}")
    if info.compress_type != zipfile.ZIP_STORED:
        return DeflatedRows(path, info.filename, shape, dtype)
    with path.open("rb") as raw:
        raw.seek(info.header_offset)
        lengths = raw.read(LOCAL_HEAD_NBYTES)[-4:]
    names = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    start = info.header_offset + LOCAL_HEAD_NBYTES + names + head_nbytes
    return StoredRows(path, shape, dtype, start, head_crc32, info.CRC)


def _arrays(path: Path) -> Mapping[str, Rows]:
    return npz_rows(path)


FORMAT = Importer("npz", (".npz",), has_suffix(".npz"), _arrays)
