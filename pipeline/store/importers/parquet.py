"""Parquet: columns of numbers, or of lists of equal length, decoded page by page.

Row groups are read one after the other and none is held whole; rows asked for out of order begin
at the row group that holds them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.store import arrow
from pipeline.store.arrow import RowType
from pipeline.store.columns import PARQUET
from pipeline.store.importers import Importer, Rows, has_suffix
from pipeline.store.importers.arrow_columns import column_rows
from pipeline.store.importers.faults import told
from pipeline.store.importers.sliced import Source
from pipeline.store.importers.wide_parquet import WideColumns

BATCH_NBYTES = 4 * 2**20
BATCH_ROWS = 65_536


class _Column:
    """A column on its way out of a file: rows in order, or from another row group on."""

    def __init__(self, path: Path, name: str, kind: RowType) -> None:
        self.path, self.name, self.kind = path, name, kind
        self._file: Any = None
        self._batches: Iterator[np.ndarray[Any, Any]] = iter(())
        self._left = np.empty(0)
        self._next = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return _Column, (self.path, self.name, self.kind)

    def fill(self, out: np.ndarray[Any, Any], start: int) -> None:
        pa, stop = arrow.pyarrow(f"reading {self.path}"), start + len(out)
        where = f"rows {start}-{stop} of column {self.name!r}"
        with told(self.path, pa.ArrowException, where=where):
            if start != self._next:
                self._seek(start)
            at = start
            while at < stop:
                if not len(self._left):
                    self._left = next(self._batches)
                part = self._left[: stop - at]
                out[at - start : at - start + len(part)] = part
                self._left = self._left[len(part) :]
                at += len(part)
            self._next = stop

    def _seek(self, start: int) -> None:
        self.close()
        self._file = arrow.opened_parquet(self.path)
        groups = self._file.metadata
        sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
        starts = np.cumsum([0, *sizes]).tolist()
        group = bisect_right(starts, start) - 1
        self._batches = self._read(group, starts[group])
        left = start - starts[group]
        while left:
            self._left = next(self._batches)
            skipped = min(left, len(self._left))
            self._left, left = self._left[skipped:], left - skipped

    def _read(self, group: int, row: int) -> Iterator[np.ndarray[Any, Any]]:
        rows = min(BATCH_ROWS, max(1, BATCH_NBYTES // max(1, self.kind.row_nbytes)))
        what = f"{self.path}, column {self.name!r}"
        for index in range(group, self._file.metadata.num_row_groups):
            for batch in self._file.iter_batches(rows, row_groups=[index], columns=[self.name]):
                found = arrow.numbers(batch.column(0), self.kind.lengths, what, row)
                row += len(found)
                yield found.reshape(-1, *self.kind.shape)

    def close(self) -> None:
        self._batches, self._left, self._next = iter(()), np.empty(0), -1
        if self._file is not None:
            self._file.close()
            self._file = None


class _Table:
    """A file whose head was read."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self._file = path, file
        self.rows: int = file.metadata.num_rows
        self.fields = file.schema_arrow

    def first(self, name: str) -> Any:
        groups = range(self._file.metadata.num_row_groups)
        group = next(i for i in groups if self._file.metadata.row_group(i).num_rows)
        return next(self._file.iter_batches(1, row_groups=[group], columns=[name])).column(0)

    def source(self, names: tuple[str, ...], kind: RowType) -> Source:
        if len(names) > 1:
            return WideColumns(self.path, names, kind)
        return _Column(self.path, names[0], kind)


def parquet_rows(path: Path) -> Mapping[str, Rows]:
    """Return the rows of every column of a file; (n, d) where a row is a list of d numbers.

    Raises :class:`CorruptError` for a damaged file, :class:`DataError` for one without rows and
    ConfigError without pyarrow; later DataError for nulls, and for lists of another length than
    the first.
    """
    pa = arrow.pyarrow(f"reading {path}")
    with told(path, pa.ArrowException), arrow.opened_parquet(path) as file:
        return column_rows(_Table(path, file))


FORMAT = Importer("parquet", PARQUET, has_suffix(*PARQUET), parquet_rows)
