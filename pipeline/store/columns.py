"""Columns of tables (CSV, TSV, Parquet) as rows in a file, brought there once by pyarrow.

A table is read in batches and its columns are written to a temporary file, which is removed when
this process ends: tables have no rows that could be read by themselves.
"""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.store.file_rows import FileRows

SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*SEPARATORS, *PARQUET)
BATCH_ROWS = 65_536
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def table_rows(path: Path, pattern: str, what: str) -> FileRows:
    """Return the rows (n,) of a column, or (n, k) of all columns that ``pattern`` matches.

    ``pattern`` may hold ``*``, as in ``logit_*``; columns keep the order of the table. Raises
    :class:`ConfigError` without pyarrow and for a column that is not there, :class:`DataError`
    for columns that are not numbers, or lack some.
    """
    with _opened(path, what) as (names, batches):
        chosen = [name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)]
        if not chosen:
            raise ConfigError(
                f"{what}: {path} has no column {pattern!r}; it has {', '.join(names)}"
            )
        target = _folder() / f"{path.name}-{len(list(_folder().iterdir()))}"
        rows, dtype = 0, None
        remedy = "set TMPDIR to another folder"
        with files.told(path.name, target.parent, 0, remedy), target.open("wb") as out:
            for batch in batches(chosen):
                columns = [_numbers(batch.column(name), name, path, what) for name in chosen]
                block = np.stack(columns, axis=1) if "*" in pattern else columns[0]
                dtype = _one_dtype(dtype, block.dtype, pattern, path, what)
                out.write(np.ascontiguousarray(block).data)
                rows += len(block)
    if dtype is None:
        raise DataError(f"{what}: {path} has no rows")
    shape = (rows, len(chosen)) if "*" in pattern else (rows,)
    return FileRows(target, shape, dtype)


@contextmanager
def _opened(path: Path, what: str) -> Iterator[tuple[list[str], Any]]:
    """Yield the names of the columns, and what makes batches of some of them."""
    try:
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"{what}: reading {path.name} needs pyarrow; pip install 'featfold[parquet]'"
        ) from None
    try:
        if path.suffix in PARQUET:
            with pyarrow.parquet.ParquetFile(path) as table:
                yield (
                    table.schema_arrow.names,
                    lambda names: table.iter_batches(BATCH_ROWS, columns=names),
                )
        else:
            parsed = pyarrow.csv.ParseOptions(delimiter=SEPARATORS[path.suffix])
            with pyarrow.csv.open_csv(path, parse_options=parsed) as reader:
                yield reader.schema.names, lambda names: (b.select(names) for b in reader)
    except FileNotFoundError:
        raise MissingInputError(f"{what}: {path} is not there") from None
    except pa.ArrowInvalid as error:
        raise CorruptError(f"{what}: {path} cannot be read ({error})") from None


def _numbers(column: Any, name: str, path: Path, what: str) -> np.ndarray[Any, Any]:
    if column.null_count:
        raise DataError(
            f"{what}: column {name!r} of {path} lacks {column.null_count} numbers; fill them in, "
            "with a class of ignore where a label does not count"
        )
    found: np.ndarray[Any, Any] = np.asarray(column.to_numpy(zero_copy_only=False))
    if found.dtype.kind not in "biuf":
        raise DataError(
            f"{what}: column {name!r} of {path} holds {column.type}; expected numbers: write "
            "classes as integers from 0 on"
        )
    return found


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
    if not _FOLDERS:
        _FOLDERS.append(tempfile.TemporaryDirectory(prefix="featfold-columns-"))
    return Path(_FOLDERS[0].name)
