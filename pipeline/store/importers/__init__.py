"""Formats of files that people hold features in: one module each, and plug-ins beside them.

A module offers ``FORMAT``, an :class:`Importer`; other packages offer theirs through entry points
of the group ``featfold.importers``. A format only tells which arrays a file or folder holds and
gives their rows where they are sliced: what is checked, converted and written is the same for all.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pipeline.errors import DataError, MissingInputError
from pipeline.store.importers.faults import not_there

GROUP = "featfold.importers"
_NUMBER = re.compile(r"[._-]\d+([._-]?of[._-]?\d+)?$")
"""What ends the stem of one file of several: ``_2``, ``-00003-of-00008``, ``.0017``."""


@runtime_checkable
class Rows(Protocol):
    """An array (n, ...) whose rows are read where they are sliced, and no others.

    May offer ``read_into(out, start)``, which fills a contiguous array of the same dtype from row
    ``start`` on; ``close()``, which lets go of a file that it keeps open; and ``logical_dtype``,
    the name of a dtype that numpy lacks: ``bfloat16``, whose bits come as uint16.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, rows: slice, /) -> np.ndarray[Any, Any]: ...


@dataclass(frozen=True)
class Unreadable:
    """An array that a file lists and that is no rows of numbers: it is shown, and refused."""

    why: str
    """Which file, what is wrong, and the remedy."""
    shape: tuple[int, ...] = (0,)
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(object))

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Raise :class:`DataError`."""
        raise DataError(self.why)


@dataclass(frozen=True)
class Importer:
    """A format: which files and folders are of it, and the arrays that one of them holds."""

    name: str
    suffixes: tuple[str, ...]
    """Ends of names, such as ``.npy``; empty for a format that is known by its folder."""
    opens: Callable[[Path], bool]
    """Whether a path is of this format; looks at names, never at rows."""
    arrays: Callable[[Path], Mapping[str, Rows]]
    """The arrays by name. Reads heads only; keeps no file open. Raises MissingInputError,
    DataError or CorruptError that name the path. Arrays among others that cannot be read, or are
    no numbers (:class:`Unreadable`, or rows of strings), are listed all the same: they are shown,
    and left out or refused by name."""


@cache
def formats() -> tuple[Importer, ...]:
    """Return all formats, those of plug-ins first: they may know a folder better."""
    found = [plugin.load() for plugin in entry_points(group=GROUP)]
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        own = getattr(importlib.import_module(f"{__name__}.{module}"), "FORMAT", None)
        found += [own] if isinstance(own, Importer) else []
    return tuple(found)


def format_of(path: Path) -> Importer:
    """Return the format of a file or folder; raises :class:`MissingInputError` or DataError."""
    for one in formats():
        if one.opens(path):
            return one
    if not path.exists():
        raise MissingInputError(not_there(path))
    known = ", ".join(f"{one.name} ({' '.join(one.suffixes) or 'a folder'})" for one in formats())
    raise DataError(f"{path} is of no format that is known here: {known}; save it as one of them")


def has_suffix(*suffixes: str) -> Callable[[Path], bool]:
    """Return what tells files by the ends of their names, upper case or lower."""
    return lambda path: path.name.lower().endswith(suffixes) and path.is_file()


def array_name(path: Path) -> str:
    """Return what the one array of a file is called: its stem, without the number of a shard.

    ``img_emb_2.npy`` and ``img_emb-00002-of-00010.npy`` are ``img_emb``; ``layer4.npy`` stays.
    """
    return _NUMBER.sub("", path.stem) or path.stem


def logical_dtype(rows: Rows) -> str:
    """Return the name of the dtype that the numbers have: ``bfloat16`` for its bits."""
    return str(getattr(rows, "logical_dtype", "") or rows.dtype.newbyteorder("=").name)


def read_into(rows: Rows, out: np.ndarray[Any, Any], start: int) -> None:
    """Fill a contiguous array of native byte order with the rows from ``start`` on."""
    if hasattr(rows, "read_into") and rows.dtype == out.dtype:
        rows.read_into(out, start)
    else:
        out[...] = rows[start : start + len(out)]


def close(rows: Any) -> None:
    """Let go of the file that rows keep open, if they do."""
    if hasattr(rows, "close"):
        rows.close()
