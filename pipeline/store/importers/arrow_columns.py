"""Columns of one file of Arrow or Parquet, as the rows of importers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pipeline.errors import DataError
from pipeline.store.arrow import RowType, row_type
from pipeline.store.importers import Rows, Unreadable
from pipeline.store.importers.sliced import SlicedRows, Source


class Table(Protocol):
    """A file of columns."""

    path: Path

    @property
    def rows(self) -> int: ...
    @property
    def fields(self) -> Any: ...
    def first(self, name: str, /) -> Any:
        """Return the first row of a column, as an array of one."""
        ...

    def source(self, name: str, kind: RowType, /) -> Source: ...


def column_rows(table: Table) -> Mapping[str, Rows]:
    """Return the rows of every column by name; raises :class:`DataError` where there are none."""
    if not table.rows or not len(table.fields):
        raise DataError(f"{table.path} holds no rows; expected columns of numbers")
    return {field.name: _rows(table, field) for field in table.fields}


def _rows(table: Table, field: Any) -> Rows:
    kind = row_type(field, lambda: table.first(field.name))
    shape = (table.rows, *kind.shape)
    if kind.dtype.kind not in "biuf":
        why = f"{table.path}, column {field.name!r} holds {field.type}; expected numbers"
        return Unreadable(why, shape, kind.dtype)
    return SlicedRows(table.source(field.name, kind), shape, kind.dtype)
