"""Many columns of a Parquet file as one array: row groups turned, one after the other, on disk.

A file holds column after column, and reading rows of all of them at once would hold pages of each.
So a few columns at a time are written to a temporary file without a name, and rows read from there.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.store import arrow
from pipeline.store.arrow import RowType
from pipeline.store.columns import REMEDY
from pipeline.store.importers.faults import told

HELD_NBYTES = 32 * 2**20
"""Bytes of pages that are held at a time."""
PAGE_NBYTES = 2**20
"""Bytes of a page, of the values that it refers to, and of what is read ahead, at most."""
BATCH_ROWS = 16_384


class WideColumns:
    """Columns (n, d) of one number a row each, of which one row group is turned at a time."""

    def __init__(self, path: Path, names: tuple[str, ...], kind: RowType) -> None:
        self.path, self.names, self.kind = path, names, kind
        self._file: Any = None
        self._starts: list[int] = []
        self._group = -1
        self._turned: Any = None
        self._step = len(names)
        """Columns that lie side by side in the temporary file; it holds as many after another."""

    def __reduce__(self) -> tuple[Any, ...]:
        return WideColumns, (self.path, self.names, self.kind)

    def fill(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill an array with the rows from ``start`` on."""
        pa, stop, at = arrow.pyarrow(f"reading {self.path}"), start + len(out), start
        where = f"rows {start}-{stop} of columns {self.names[0]!r} to {self.names[-1]!r}"
        with told(self.path, pa.ArrowException, where=where):
            if self._file is None:
                self._file = arrow.opened_parquet(self.path)
                groups = self._file.metadata
                sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
                self._starts = np.cumsum([0, *sizes]).tolist()
            while at < stop:
                group = bisect_right(self._starts, at) - 1
                end = min(stop, self._starts[group + 1])
                if group != self._group:
                    self._turn(group)
                self._read(out[at - start : end - start], at - self._starts[group])
                at = end

    def _turn(self, group: int) -> None:
        """Write the rows of a row group to a temporary file, some columns at a time."""
        self._forget()
        row_group = self._file.metadata.row_group(group)
        column_nbytes = 3 * min(PAGE_NBYTES, row_group.num_rows * self.kind.dtype.itemsize)
        self._step = min(len(self.names), max(1, HELD_NBYTES // column_nbytes))
        nbytes = row_group.num_rows * self.kind.row_nbytes
        folder = Path(tempfile.gettempdir())
        with files.told(self.path.name, folder, nbytes, REMEDY):
            self._turned = tempfile.TemporaryFile(prefix="featfold-columns-")  # noqa: SIM115
        for first in range(0, len(self.names), self._step):
            names = list(self.names[first : first + self._step])
            row = self._starts[group]
            for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=names):
                rows = np.empty((len(batch), len(names)), self.kind.dtype)
                for index, name in enumerate(names):
                    what = f"{self.path}, column {name!r}"
                    column = batch.column(batch.schema.get_field_index(name))
                    rows[:, index] = arrow.numbers(column, (), what, row)
                row += len(rows)
                with files.told(self.path.name, folder, nbytes, REMEDY):
                    self._turned.write(rows.data)
        with files.told(self.path.name, folder, nbytes, REMEDY):
            self._turned.flush()
        self._group = group

    def _read(self, out: np.ndarray[Any, Any], row: int) -> None:
        rows = self._starts[self._group + 1] - self._starts[self._group]
        for first in range(0, len(self.names), self._step):
            width = min(self._step, len(self.names) - first)
            part = np.empty((len(out), width), out.dtype)
            self._turned.seek((first * rows + row * width) * out.itemsize)
            if self._turned.readinto(part.data.cast("B")) < part.nbytes:
                raise OSError("the temporary file of its columns ended")
            out[:, first : first + width] = part

    def _forget(self) -> None:
        if self._turned is not None:
            with suppress(OSError):
                self._turned.close()
        self._turned, self._group = None, -1

    def close(self) -> None:
        """Let go of the file and of what was turned."""
        self._forget()
        if self._file is not None:
            self._file.close()
        self._file = None
