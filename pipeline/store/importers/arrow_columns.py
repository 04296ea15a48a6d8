"""Columns of one file of Arrow or Parquet, as the rows of importers.

Columns ``f0``, ``f1``, ... of one number a row are listed as ``f*`` as well: one array, (n, d).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

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

    def source(self, names: tuple[str, ...], kind: RowType, /) -> Source:
        """Return what reads a column, or several of one number a row side by side."""
        ...


def column_rows(table: Table) -> Mapping[str, Rows]:
    """Return the rows of every column by name; raises :class:`DataError` where there are none."""
    if not table.rows or not len(table.fields):
        raise DataError(
            f"{table.path} holds no rows; expected columns of numbers: write it again, or leave "
            "the file out"
        )
    found = {field.name: _rows(table, field) for field in table.fields}
    numbered: dict[str, list[tuple[int, str]]] = {}
    for name, rows in found.items():
        if isinstance(rows, SlicedRows) and len(rows.shape) == 1 and (end := _number(name)):
            numbered.setdefault(f"{name.removesuffix(end)}*", []).append((int(end), name))
    several = {name: sorted(each) for name, each in numbered.items() if len(each) > 1}
    return found | {name: _side_by_side(table, name, each, found) for name, each in several.items()}


def _number(name: str) -> str:
    found = re.search(r"\d+$", name)
    return found[0] if found else ""


def _rows(table: Table, field: Any) -> Rows:
    kind = row_type(field, lambda: table.first(field.name))
    shape = (table.rows, *kind.shape)
    if kind.dtype.kind not in "biuf":
        what = f"{table.path}, column {field.name!r}"
        why = f"{what} holds {field.type}; expected numbers: write it as such"
        return Unreadable(why, shape, kind.dtype)
    return SlicedRows(table.source((field.name,), kind), shape, kind.dtype)


def _side_by_side(
    table: Table, wider: str, numbered: Sequence[tuple[int, str]], found: Mapping[str, Rows]
) -> Rows:
    """Return numbered columns as one array, in the order of their numbers."""
    names = tuple(name for _, name in numbered)
    shape, dtype = (table.rows, len(names)), found[names[0]].dtype
    for number, (own, name) in enumerate(numbered, start=min(numbered[0][0], 1)):
        if own != number:
            why = f"number {number} is lacking, or is there twice (next is {name})"
            remedy = "number columns from 0 or 1 on, without gaps"
        elif found[name].dtype != dtype:
            why = f"{names[0]} holds {dtype} and {name} {found[name].dtype}"
            remedy = "write all of them with one dtype"
        else:
            continue
        return Unreadable(f"{table.path}, columns {wider!r}: {why}; {remedy}", shape, np.dtype("O"))
    source = table.source(names, RowType((), (len(names),), dtype))
    return SlicedRows(source, shape, dtype, columns=names)
