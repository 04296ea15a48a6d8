"""A split of a store becomes files that other programs read: streamed, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from pipeline import files
from pipeline.chunk import Schema
from pipeline.errors import (
    ConfigError,
    ExistsRefusedError,
    FeatfoldError,
    MissingInputError,
    UnknownNameError,
)
from pipeline.store import Store, StoredSplit
from pipeline.store.exporters import Exporter, formats

REMEDY = "name another place"


class Progress(Protocol):
    """What is told how far an export is, in bytes."""

    def begin(self, name: str, total: int, /) -> None: ...
    def advance(self, amount: int, /) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    split: str
    rows: int
    files: Mapping[str, int]
    """Bytes of each file."""
    arrays: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the content as plain values for JSON."""
        return {**asdict(self), "arrays": list(self.arrays)}


def export_split(
    store: Store | str | Path,
    split: str,
    place: str | Path,
    *,
    to: str,
    arrays: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write arrays (n, ...) of a split to files, bit for bit; ``to`` is the format.

    ``npy``: ``place`` is a folder, with a file for each array. ``parquet``, ``safetensors``:
    ``place`` is a file; a row of Parquet is a list of fixed length, of lists for tokens. bfloat16
    stays in safetensors and becomes float32, which holds it exactly, in the others. ``arrays`` are
    all of the split unless named. Memory is a few chunks, whatever the rows. Files get their names
    once all of them are complete and on the disk.

    Raises :class:`MissingInputError` or :class:`UnknownNameError` for what is not there,
    :class:`ConfigError` for an unknown format, :class:`ExistsRefusedError` for files that are there
    unless ``overwrite`` is asked for, :class:`FeatfoldError` for a disk that is too small, before
    anything is written; :class:`CorruptError` for rows that are damaged, and nothing is kept then.
    """
    if to not in formats():
        raise ConfigError(f"to: {to!r} is no format; choose {', '.join(formats())}")
    kind, target = formats()[to], Path(place).expanduser().absolute()
    opened = (store if isinstance(store, Store) else Store.open(store)).split(split)
    names = _names(opened, arrays)
    wanted = kind.files(target, names)
    _check_place(kind, str(place), target, wanted, overwrite)
    kind.check()
    nbytes = sum(kind.row_nbytes(opened.schema.arrays[name]) for name in names) * opened.schema.rows
    _check_room(target, nbytes)
    if progress is not None:
        progress.begin(f"export {split}", opened.schema.rows * _row_nbytes(opened.schema, names))
    written = _write(kind, opened, wanted, overwrite, progress)
    if progress is not None:
        progress.end()
    return Exported(split, opened.schema.rows, written, names)


def _row_nbytes(schema: Schema, names: Sequence[str]) -> int:
    return sum(schema.arrays[name].nbytes for name in names)


def _write(
    kind: Exporter,
    split: StoredSplit,
    wanted: Mapping[Path, Sequence[str]],
    overwrite: bool,
    progress: Progress | None,
) -> dict[str, int]:
    """Write all files under other names, then give them their own; return their bytes."""

    def advance(nbytes: int) -> None:
        if progress is not None:
            progress.advance(nbytes)

    folder = next(iter(wanted)).parent
    partial = {path: path.with_name(files.unfinished(path.name)) for path in wanted}
    with ExitStack() as stack:
        stack.enter_context(_told(split.name, folder))
        folder.mkdir(parents=True, exist_ok=True)
        for path, names in wanted.items():
            files.sweep_beside(path)
            stack.callback(_forget, partial[path])
            with partial[path].open("wb") as file:
                kind.write(file, split, names, advance)
                file.flush()
                os.fsync(file.fileno())
        _check_absent(wanted, overwrite)
        for path in wanted:
            partial[path].replace(path)
        files.sync(folder)
    return {str(path): path.stat().st_size for path in wanted}


@contextmanager
def _told(split: str, folder: Path) -> Iterator[None]:
    try:
        yield
    except FeatfoldError:
        raise
    except OSError as error:
        raise FeatfoldError(
            f"{folder}: {split} cannot be written there ({error}); free space, or {REMEDY}; "
            "nothing of it was kept"
        ) from error


def _forget(partial: Path) -> None:
    with suppress(OSError):
        partial.unlink(missing_ok=True)


def _names(split: StoredSplit, asked: Sequence[str] | None) -> tuple[str, ...]:
    there = split.schema.arrays
    if asked is None:
        return tuple(there)
    if not asked:
        raise ConfigError("arrays: none are named; leave it out for all of them")
    for name in asked:
        if name not in there:
            near = get_close_matches(name, there, 1)
            raise UnknownNameError(
                f"split {split.name} has no array {name!r}; it has {', '.join(there)}"
                + (f"; did you mean {near[0]}?" if near else "")
            )
    return tuple(dict.fromkeys(asked))


def _check_place(
    kind: Exporter, given: str, target: Path, wanted: Mapping[Path, Sequence[str]], overwrite: bool
) -> None:
    """Raise an error where files of this format cannot go, or would replace others."""
    if "://" in given:
        raise ConfigError(f"{given}: files are written to a local disk; copy them there afterwards")
    if kind.is_folder and target.exists() and not target.is_dir():
        raise ConfigError(f"{target} is a file; {kind.name} needs a folder, of a file an array")
    if not kind.is_folder and (target.is_dir() or target.suffix.lower() != kind.suffix):
        raise ConfigError(f"{target}: {kind.name} is one file; name it NAME{kind.suffix}")
    if not kind.is_folder and not target.parent.is_dir():
        raise MissingInputError(f"{target.parent} is not there; make the folder first")
    _check_absent(wanted, overwrite)


def _check_absent(wanted: Mapping[Path, Sequence[str]], overwrite: bool) -> None:
    there = [path for path in wanted if path.exists()]
    if there and not overwrite:
        shown = ", ".join(map(str, there[:3])) + (" and more" if len(there) > 3 else "")
        raise ExistsRefusedError(
            f"{shown}: there already; name another place, or replace with --overwrite "
            "(overwrite=True)"
        )


def _check_room(target: Path, nbytes: int) -> None:
    """Raise :class:`FeatfoldError` where the disk is too small for the rows."""
    free_nbytes = files.free_nbytes(target)
    if nbytes > free_nbytes:
        raise FeatfoldError(
            f"{target}: the rows take {nbytes:,} bytes, {free_nbytes:,} are free; free space, or "
            f"{REMEDY}"
        )
