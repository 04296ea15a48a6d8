"""Hugging Face datasets as ``save_to_disk`` leaves them, and single files of Arrow (Feather).

The files are read here, by the format of Arrow's messages: the library maps them for good, and
mapped pages count as memory. Classes (ClassLabel) are their integers, arrays (Array2D) rows.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError, MissingInputError
from pipeline.store import arrow
from pipeline.store.arrow import RowType
from pipeline.store.importers import Importer, Rows, Unreadable, has_suffix
from pipeline.store.importers.arrow_columns import column_rows
from pipeline.store.importers.faults import told
from pipeline.store.importers.shards import Part, Shards

SUFFIXES = (".arrow", ".feather")
STATE, SPLITS = "state.json", "dataset_dict.json"
PIECE_NBYTES = 16 * 2**20
_FILE_MAGIC = b"ARROW1\0\0"
"""Starts a file that ends in an index; a stream of messages follows it, as in files without."""


@dataclass(frozen=True)
class _Batches:
    """Where the record batches of a file lie: bytes and rows before each, and of all."""

    offsets: tuple[int, ...]
    starts: tuple[int, ...]


class _Columns:
    """A column of a file, or several of one number a row side by side.

    The file is mapped for as long as a few megabytes of it are copied.
    """

    def __init__(
        self, path: Path, names: tuple[str, ...], kind: RowType, batches: _Batches
    ) -> None:
        self.path, self.names, self.kind, self.batches = path, names, kind, batches

    def fill(self, out: np.ndarray[Any, Any], start: int) -> None:
        pa = arrow.pyarrow(f"reading {self.path}", "hf")
        step = max(1, PIECE_NBYTES // max(1, self.kind.row_nbytes))
        stop, starts = start + len(out), self.batches.starts
        at = start
        while at < stop:
            batch = bisect_right(starts, at) - 1
            end = min(stop, starts[batch + 1], at + step)
            where = f"rows {at}-{end} of column {', '.join(map(repr, self.names[:3]))}"
            with told(self.path, pa.ArrowException, KeyError, where=where):
                self._read(pa, out[at - start : end - start], batch, at - starts[batch])
            at = end

    def _read(self, pa: Any, out: np.ndarray[Any, Any], batch: int, first: int) -> None:
        """Fill an array; the mapped file goes with what was cut from it."""
        with pa.memory_map(str(self.path)) as file:
            schema = _schema(pa, file, self.path)
            file.seek(self.batches.offsets[batch])
            found = pa.ipc.read_record_batch(pa.ipc.read_message(file), schema)
        row = self.batches.starts[batch] + first
        for index, name in enumerate(self.names):
            column = found.column(schema.get_field_index(name)).slice(first, len(out))
            made = arrow.numbers(column, self.kind.lengths, f"{self.path}, column {name!r}", row)
            if len(self.names) == 1:
                out[...] = made.reshape(out.shape)
            else:
                out[:, index] = made

    def close(self) -> None:
        """Nothing is held open."""


class _Table:
    """A file whose messages were looked at."""

    def __init__(self, path: Path, pa: Any) -> None:
        self.path, self._pa = path, pa
        with _mapped(pa, path) as file:
            self.fields = _schema(pa, file, path)
            self.batches = _find(pa, file, self.fields)
        self.rows = self.batches.starts[-1]

    def first(self, name: str) -> Any:
        with _mapped(self._pa, self.path) as file:
            file.seek(self.batches.offsets[0])
            batch = self._pa.ipc.read_record_batch(self._pa.ipc.read_message(file), self.fields)
            return batch.column(self.fields.get_field_index(name)).slice(0, 1)

    def source(self, names: tuple[str, ...], kind: RowType) -> _Columns:
        return _Columns(self.path, names, kind, self.batches)


@contextmanager
def _mapped(pa: Any, path: Path) -> Iterator[Any]:
    with told(path, pa.ArrowException, KeyError, EOFError), pa.memory_map(str(path)) as file:
        yield file


def _schema(pa: Any, file: Any, path: Path) -> Any:
    """Read the schema at the start of a file, and stop behind it."""
    if file.read(len(_FILE_MAGIC)) != _FILE_MAGIC:
        file.seek(0)
    schema = pa.ipc.read_schema(pa.ipc.read_message(file))
    if coded := [field.name for field in schema if pa.types.is_dictionary(field.type)]:
        raise DataError(
            f"{path} holds categories ({', '.join(coded)}), whose values lie apart from their "
            "rows; save their codes as integers, or leave them out"
        )
    return schema


def _find(pa: Any, file: Any, schema: Any) -> _Batches:
    """Walk over the messages behind the schema: only their heads are touched."""
    offsets, starts, size = [], [0], file.size()
    while True:
        at = file.tell()
        try:
            message = pa.ipc.read_message(file)
        except EOFError:
            if at == size:  # a writer that was killed between batches leaves no end
                raise pa.ArrowInvalid("the end of the stream is missing") from None
            break
        if message.type == "record batch":
            rows = pa.ipc.read_record_batch(message, schema).num_rows
            if rows:
                offsets.append(at)
                starts.append(starts[-1] + rows)
    return _Batches(tuple(offsets), tuple(starts))


def arrow_rows(path: Path) -> Mapping[str, Rows]:
    """Return the rows of every column of a file of Arrow, or of a folder of ``save_to_disk``.

    Of a dataset of several splits they are called ``SPLIT/COLUMN``. Raises MissingInputError for a
    file that the folder names and that is gone, CorruptError for a damaged one, DataError for one
    without rows and ConfigError without pyarrow.
    """
    if path.is_file():
        pa = arrow.pyarrow(f"reading {path}", "hf")
        return column_rows(_Table(path, pa))
    if (path / SPLITS).is_file():
        splits = _inside(path / SPLITS, lambda found: found["splits"])
        found = {split: _saved(path / split) for split in splits}
        return {f"{split}/{name}": rows for split in splits for name, rows in found[split].items()}
    return _saved(path)


def _saved(folder: Path) -> Mapping[str, Rows]:
    """Return the rows of a dataset whose files the state of the folder names, in their order."""
    if not (folder / STATE).is_file():
        raise MissingInputError(f"{folder} has no {STATE}; save the dataset with save_to_disk")
    names = _inside(folder / STATE, lambda found: [f["filename"] for f in found["_data_files"]])
    tables = {folder / name: arrow_rows(folder / name) for name in names}
    if not tables:
        raise DataError(f"{folder} holds no rows; save the dataset again, or name another")
    first = next(iter(tables.values()))
    return {name: _joined(name, {f: table[name] for f, table in tables.items()}) for name in first}


def _joined(name: str, parts: Mapping[Path, Rows]) -> Rows:
    for rows in parts.values():
        if isinstance(rows, Unreadable):
            return rows
    return Shards(name, [Part(path, rows) for path, rows in parts.items()])


def _inside(path: Path, listed: Callable[[Any], Any]) -> list[str]:
    """Return the names beside a file that it lists, none of which may lie elsewhere."""
    with told(path, ValueError, KeyError, TypeError):
        names = [str(name) for name in listed(json.loads(path.read_text(encoding="utf-8")))]
    if strange := [name for name in names if Path(name).name != name]:
        raise DataError(f"{path} names {strange[0]}, which lies elsewhere; save it again")
    return names


def _opens(path: Path) -> bool:
    folder = (path / SPLITS).is_file() or (path / STATE).is_file()
    return folder or has_suffix(*SUFFIXES)(path)


FORMAT = Importer("huggingface", SUFFIXES, _opens, arrow_rows)
