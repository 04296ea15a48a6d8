"""Rows that a library reads from a file where they are sliced, whoever asks, in whatever order."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np

from pipeline.errors import DataError

LARGEST_BAND_NBYTES = 512 * 2**20
PIECE_NBYTES = 16 * 2**20
"""Rows that are read at a time where chunks are smaller."""


class Source(Protocol):
    """Where rows come from. Pickles without what it holds open."""

    def fill(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill an array (m, ...) with the rows from ``start`` on."""
        ...

    def close(self) -> None:
        """Let go of the file and of what is held of it."""
        ...


class SlicedRows:
    """An array (n, ...) of a source: the ``Rows`` of an importer. Threads follow one another."""

    def __init__(
        self, source: Source, shape: tuple[int, ...], dtype: np.dtype[Any], logical_dtype: str = "",
        columns: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.source, self.shape, self.dtype = source, shape, dtype
        self.logical_dtype = logical_dtype or dtype.name
        self.columns = columns
        """Names of the columns of a table that lie side by side in these rows."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.source, self.shape, self.dtype, self.logical_dtype, self.columns)
        return SlicedRows, own

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Read rows."""
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self.read_into(out, start)
        return out

    def read_into(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill an array with the rows from ``start`` on; raises errors that name the file."""
        with self._lock:
            self.source.fill(out, start)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self.source.close()


class Bands:
    """A source in chunks of several rows: front to back, each chunk is read once.

    A band is the run of rows that lie in the same chunks; the last one read in part is kept. Rows
    that lie by themselves are bands of one row.
    """

    def __init__(self, source: Source, rows: int, band_rows: int, row_nbytes: int) -> None:
        self.source, self.rows, self.row_nbytes = source, rows, row_nbytes
        self.band_rows = max(1, min(band_rows, rows))
        self._held, self._first = np.empty(0), -1

    def __reduce__(self) -> tuple[Any, ...]:
        return Bands, (self.source, self.rows, self.band_rows, self.row_nbytes)

    @property
    def band_nbytes(self) -> int:
        """Bytes that are read whole."""
        return self.band_rows * self.row_nbytes

    def fill(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill an array with the rows from ``start`` on."""
        stop, at = start + len(out), start
        while at < stop:
            end = self._whole_until(at, stop)
            if end > at:
                self.source.fill(out[at - start : end - start], at)
            else:
                first = at - at % self.band_rows
                end = min(first + self.band_rows, stop)
                band = self._band(first, out.dtype, out.shape[1:])
                out[at - start : end - start] = band[at - first : end - first]
            at = end

    def _whole_until(self, at: int, stop: int) -> int:
        """Return up to which row whole bands are wanted, as many as make a piece."""
        if at % self.band_rows:
            return at
        piece = self.band_rows * max(1, PIECE_NBYTES // max(1, self.band_nbytes))
        if stop < self.rows:
            stop -= stop % self.band_rows
        return max(at, min(at + piece, stop))

    def _band(
        self, first: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        if self._first != first:
            self._first = -1
            rows = min(self.band_rows, self.rows - first)
            if len(self._held) != rows:
                self._held = np.empty((rows, *shape), dtype)
            self.source.fill(self._held, first)
            self._first = first
        return self._held

    def close(self) -> None:
        """Let go of the band and of the file."""
        self._held, self._first = np.empty(0), -1
        self.source.close()


def in_bands(source: Source, rows: int, band_rows: int, row_nbytes: int, what: str) -> Bands:
    """Return a source read by bands; raises :class:`DataError` for chunks that are too large."""
    made = Bands(source, rows, band_rows, row_nbytes)
    if made.band_nbytes > LARGEST_BAND_NBYTES:
        raise DataError(
            f"{what} lies in chunks of {made.band_rows:,} rows, {made.band_nbytes:,} bytes, which "
            "can only be read whole; write it again in chunks of a few MB"
        )
    return made
