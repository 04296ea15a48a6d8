"""Several files as one source: which files are meant, and their arrays, one after the other.

Files go in natural order, ``img_emb_2.npy`` before ``img_emb_10.npy``, however they were given: a
shell sorts its globs another way.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.store.importers import (
    Rows,
    Unreadable,
    close,
    format_of,
    formats,
    logical_dtype,
    read_into,
)
from pipeline.store.importers.faults import not_there

LEFT = ": save one entry a row as a number, or leave it out by mapping others"
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One array of one file."""

    path: Path
    rows: Rows


class Shards:
    """An array (n, ...) whose rows lie in several files; each is opened when they are reached."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        first = parts[0]
        for part in parts[1:]:
            _check_alike(name, first, part)
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(part.rows.shape[0] for part in parts)]).tolist()
        """The first row of each file, and the number of all rows."""
        self.shape = (self.starts[-1], *first.rows.shape[1:])
        self.dtype, self.logical_dtype = first.rows.dtype, logical_dtype(first.rows)
        self.columns = _columns(first)
        self._last: Rows | None = None

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Read rows, of as many files as they lie in."""
        start, stop, _ = rows.indices(self.shape[0])
        found = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self.read_into(found, start)
        return found

    def read_into(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill a contiguous array from row ``start`` on; raises MissingInputError past the end."""
        stop = start + len(out)
        if stop > self.shape[0]:
            raise MissingInputError(f"rows {start}-{stop} were asked for; there are {self.shape}")
        for part, first, last in zip(self.parts, self.starts, self.starts[1:], strict=False):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                self._reach(part.rows)
                read_into(part.rows, out[begin - start : end - start], begin - first)

    def check(self) -> None:
        """Compare whole files with checksums of their own, where their format has some."""
        for part in self.parts:
            if hasattr(part.rows, "check"):
                part.rows.check()

    def close(self) -> None:
        """Close the file that is open."""
        if self._last is not None:
            close(self._last)
        self._last = None

    def _reach(self, rows: Rows) -> None:
        """Have no other file open than that of ``rows``."""
        if self._last is not rows:
            self.close()
            self._last = rows


@dataclass(frozen=True)
class Found:
    """What the sources hold: their files, and their arrays by name."""

    files: tuple[Path, ...]
    formats: tuple[str, ...]
    arrays: Mapping[str, Shards | Unreadable]


def gather(sources: Sequence[str | Path]) -> Found:
    """Open sources: files, folders and globs, each perhaps as ``NAME=SRC``, and read no rows.

    Arrays of one name in several files become one, in the natural order of their files. ``NAME=``
    calls the one array of all files of a source so. Raises :class:`MissingInputError` for what is
    not there, :class:`DataError` for files that do not fit together, ConfigError for a name that
    has several arrays.
    """
    if not sources:
        raise ConfigError("there are no sources; name files, folders or globs")
    files: list[Path] = []
    parts: dict[str, list[Part]] = {}
    bad: dict[str, Unreadable] = {}
    kinds: dict[str, None] = {}
    for path, name in sorted(_paths(sources), key=lambda pair: natural(str(pair[0]))):
        kind = format_of(path)
        kinds[kind.name] = None
        files += files_of(path)
        for own, rows in _renamed(kind.arrays(path), name, path).items():
            if why := _unfit(own, rows, path):
                bad.setdefault(own, why)
            else:
                own_parts = rows.parts if isinstance(rows, Shards) else [Part(path, rows)]
                parts.setdefault(own, []).extend(own_parts)
    arrays: dict[str, Shards | Unreadable] = {
        name: Shards(name, each) for name, each in parts.items() if name not in bad
    }
    return Found(tuple(dict.fromkeys(files)), tuple(kinds), arrays | bad)


def _unfit(name: str, rows: Rows, path: Path) -> Unreadable | None:
    """Return what stands for an array that is no rows of numbers."""
    if isinstance(rows, Unreadable):
        return rows
    if not rows.shape:
        return Unreadable(
            f"{path}, {name}: one number; expected rows (n, ...){LEFT}", (), rows.dtype
        )
    if rows.dtype.kind in "SUOV":
        what = "text" if rows.dtype.kind in "SU" else f"{rows.dtype}"
        return Unreadable(f"{path}, {name}: {what}; expected numbers{LEFT}", rows.shape, rows.dtype)
    return None


def natural(text: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts numbers in names by their value."""
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts]


def files_of(path: Path) -> list[Path]:
    """Return a file, or every file below a folder, in natural order."""
    if not path.is_dir():
        return [path]
    return sorted((f for f in path.rglob("*") if f.is_file()), key=lambda f: natural(str(f)))


def _paths(sources: Sequence[str | Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files and folders of sources once each, and what their one array is called."""
    seen: dict[Path, str] = {}
    for source in sources:
        name, where = _split(source)
        for path in _matches(where):
            if seen.setdefault(path, name) != name:
                raise ConfigError(
                    f"{path} is named twice, as {seen[path]!r} and as {name!r}; name it once"
                )
    yield from seen.items()


def _split(source: str | Path) -> tuple[str, str]:
    """Return the NAME of ``NAME=SRC``, which may be empty, and the source."""
    text = str(source)
    found = _NAMED.fullmatch(text)
    if isinstance(source, Path) or found is None or Path(text).exists():
        return "", text
    return found[1], found[2]


def _matches(where: str) -> list[Path]:
    path = Path(where).expanduser().absolute()
    if path.exists():
        if path.is_dir() and not any(one.opens(path) for one in formats()):
            _refuse_folder(path)
        return [path]
    if not glob.has_magic(where):
        raise MissingInputError(not_there(path))
    found = [Path(each) for each in glob.glob(str(path), recursive=True)]
    if not found:
        raise MissingInputError(not_there(path, "is a pattern that no file matches"))
    return found


def _refuse_folder(path: Path) -> None:
    kinds = {f.suffix for f in path.iterdir() if any(one.opens(f) for one in formats())}
    globs = " or ".join(f"{path}/*{suffix}" for suffix in sorted(kinds))
    raise DataError(
        f"{path} is a folder of no format that is known here"
        + (f"; name its files: {globs} (in quotes)" if kinds else "; name files in it")
    )


def _renamed(arrays: Mapping[str, Rows], name: str, path: Path) -> Mapping[str, Rows]:
    if not name:
        return arrays
    if len(arrays) != 1:
        raise ConfigError(
            f"{name}={path} names one array, but there are {len(arrays)}: {', '.join(arrays)}; "
            "leave the name out and map them"
        )
    return {name: next(iter(arrays.values()))}


def _columns(part: Part) -> tuple[str, ...]:
    """Return the names of the columns of a table that the rows of a part are."""
    return tuple(getattr(part.rows, "columns", ()))


def _check_alike(name: str, first: Part, part: Part) -> None:
    if _columns(part) != _columns(first):
        raise DataError(
            f"{name}: {part.path} has columns {_columns(part)[0]} to {_columns(part)[-1]}, "
            f"{first.path} has {_columns(first)[0]} to {_columns(first)[-1]}; expected the same: "
            "number them alike, or import the files into splits of their own"
        )
    ours = (part.rows.shape[1:], logical_dtype(part.rows), part.rows.dtype)
    theirs = (first.rows.shape[1:], logical_dtype(first.rows), first.rows.dtype)
    if ours != theirs:
        raise DataError(
            f"{name}: rows of {part.path} are {ours[0]} {ours[1]}, those of {first.path} are "
            f"{theirs[0]} {theirs[1]}; expected shards of one array (NAME=SRC calls them apart)"
        )
