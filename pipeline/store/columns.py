"""Columns of tables (CSV, TSV, Parquet) as rows in a file, brought there once by pyarrow.

A table is read in batches and its columns are written to a temporary file, which is removed when
this process ends: tables have no rows that could be read by themselves.
"""

from __future__ import annotations

import fnmatch
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.store import arrow
from pipeline.store.file_rows import FileRows

SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*SEPARATORS, *PARQUET)
BATCH_ROWS = 65_536
REMEDY = "set TMPDIR to another folder"
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
_LOCK = threading.Lock()


class ColumnRows(FileRows):
    """Columns of a table, in a temporary file of the machine that opened it."""

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Read rows; raises MissingInputError where the file is not there."""
        if not self.path.exists():
            raise MissingInputError(
                f"{self.path} is not on this machine: columns of tables lie in a temporary folder "
                "where the run was started; set TMPDIR to a folder that all workers share, or save "
                "the columns as npy files there"
            )
        return super().__getitem__(rows)


def table_rows(path: Path, patterns: Mapping[str, str]) -> dict[str, FileRows]:
    """Return for each pattern the rows (n,) of a column, or (n, k) of all that it matches.

    Patterns go by what their columns are, which names them in errors. A pattern may hold ``*``, as
    in ``logit_*``; columns keep the order of the table, which is read once for all of them. Raises
    :class:`ConfigError` without pyarrow and for a column that is not there, :class:`DataError`
    for columns that are not numbers, or lack some.
    """
    with _opened(path, " and ".join(patterns)) as (names, batches), ExitStack() as stack:
        found = {
            what: stack.enter_context(_Columns(path, what, pattern, names))
            for what, pattern in patterns.items()
        }
        wanted = list(dict.fromkeys(name for each in found.values() for name in each.names))
        for batch in batches(wanted):
            for each in found.values():
                each.add(batch)
        return {what: each.rows() for what, each in found.items()}


class _Columns:
    """Columns on their way from a table to a file, which is removed if they do not arrive."""

    def __init__(self, path: Path, what: str, pattern: str, names: list[str]) -> None:
        self.path, self.what, self.pattern = path, what, pattern
        self.names = [n for n in names if n == pattern or fnmatch.fnmatchcase(n, pattern)]
        if not self.names:
            raise ConfigError(
                f"{what}: {path} has no column {pattern!r}; it has {', '.join(names)}; "
                "a pattern such as p_* names several"
            )
        for name in self.names:
            if (several := names.count(name)) > 1:
                raise DataError(
                    f"{what}: {path} has {several} columns of the name {name!r}; give each a name "
                    "of its own"
                )
        with files.told(path.name, Path(tempfile.gettempdir()), 0, REMEDY):
            handle, target = tempfile.mkstemp(prefix=f"{path.name}-", dir=_folder())
        self._out, self._target = os.fdopen(handle, "wb"), Path(target)
        self._rows = 0
        self._dtype: np.dtype[Any] | None = None

    def __enter__(self) -> _Columns:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._out.close()
        if kind is not None:
            self._target.unlink(missing_ok=True)

    def add(self, batch: Any) -> None:
        """Write the rows of a batch."""
        columns = [
            arrow.numbers(batch.column(n), (), f"{self.what}: column {n!r} of {self.path}")
            for n in self.names
        ]
        block = np.stack(columns, axis=1) if "*" in self.pattern else columns[0]
        self._dtype = _one_dtype(self._dtype, block.dtype, self.pattern, self.path, self.what)
        with files.told(self.path.name, self._target.parent, 0, REMEDY):
            self._out.write(np.ascontiguousarray(block).data)
        self._rows += len(block)

    def rows(self) -> ColumnRows:
        """Return what was written."""
        if self._dtype is None:
            raise DataError(f"{self.what}: {self.path} has no rows")
        with files.told(self.path.name, self._target.parent, 0, REMEDY):
            self._out.flush()
        shape = (self._rows, len(self.names)) if "*" in self.pattern else (self._rows,)
        return ColumnRows(self._target, shape, self._dtype)


@contextmanager
def _opened(path: Path, what: str) -> Iterator[tuple[list[str], Any]]:
    """Yield the names of the columns, and what makes batches of some of them."""
    pa = arrow.pyarrow(f"{what}: reading {path.name}")
    try:
        if path.suffix in PARQUET:
            with arrow.opened_parquet(path) as table:
                yield (
                    table.schema_arrow.names,
                    lambda names: table.iter_batches(BATCH_ROWS, columns=names),
                )
        else:
            parsed = pa.csv.ParseOptions(delimiter=SEPARATORS[path.suffix])
            with pa.csv.open_csv(path, parse_options=parsed) as reader:
                yield reader.schema.names, lambda names: (b.select(names) for b in reader)
    except FileNotFoundError:
        raise MissingInputError(f"{what}: {path} is not there") from None
    except pa.ArrowInvalid as error:
        raise CorruptError(f"{what}: {path} cannot be read ({error})") from None


def _one_dtype(
    before: np.dtype[Any] | None, now: np.dtype[Any], pattern: str, path: Path, what: str
) -> np.dtype[Any]:
    if before not in (None, now):
        raise DataError(
            f"{what}: {pattern!r} of {path} holds {before} at first and {now} later; write all "
            "rows alike"
        )
    return now


def _folder() -> Path:
    with _LOCK:
        if not _FOLDERS:
            _FOLDERS.append(tempfile.TemporaryDirectory(prefix="featfold-columns-"))
        return Path(_FOLDERS[0].name)
