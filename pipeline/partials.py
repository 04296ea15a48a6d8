"""Partials as files: the closed states of blocks and of merged blocks, kept from run to run.

A partial is found by two names. Its key is what was computed: the content and version of the
statistic, and what it depends on in the schema. Its node is over which bytes: a leaf is named by
the checksums of the arrays it touched in one block, an inner node by the names of its children.
So an appended block, an added detector or a resumed run recompute exactly what is not there yet.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from pipeline import files
from pipeline.chunk import IS_OOD, Split
from pipeline.content import digest
from pipeline.errors import (
    ConfigError,
    CorruptError,
    DamagedPartialError,
    FeatfoldError,
    MissingInputError,
)

NUMBERS = 3
"""Raised by hand when the engine's own arithmetic (grains, the merge tree) changes its bits."""
FAN_IN = 8
"""Siblings that make a node of the merge tree."""
_ENDING = ".npz"
_HEAD = "head"


@dataclass(frozen=True)
class Kept:
    """A closed state over some rows; for row tables, the rows themselves."""

    state: Any
    used: int
    """Rows that the filter of the statistic kept."""
    rows: int


def key_of(request: Any, split: Split) -> str:
    """Return the key of a statistic, or of a table of rows, over splits like ``split``."""
    there = stored_fields(request, split)
    missing = sorted(request.fields - {IS_OOD} - there)
    is_ood = split.is_ood if IS_OOD in request.fields else None
    return digest((NUMBERS, request, split.schema.key(there), is_ood, missing))[:32]


def stored_fields(request: Any, split: Split) -> frozenset[str]:
    """Return the arrays of a split that a request looks at; OOD splits may have no labels."""
    return frozenset(name for name in request.fields if name in split.schema.arrays)


def node_names(leaves: Sequence[str]) -> list[list[str]]:
    """Return the names of the nodes of the merge tree by level, the leaves first.

    A node is named by its children; an only child is its own parent.
    """
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([_parent(below[i : i + FAN_IN]) for i in range(0, len(below), FAN_IN)])
    return levels


def _parent(children: Sequence[str]) -> str:
    if len(children) == 1:
        return children[0]
    return hashlib.sha256("".join(children).encode()).hexdigest()[:32]


class Partials:
    """A directory of partials: one file per key and node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, key: str, node: str) -> Path:
        """Return where a partial is, or would be."""
        return self.directory / key / f"{node}{_ENDING}"

    def has(self, key: str, node: str) -> bool:
        """Tell whether a partial is there."""
        return self.path(key, node).exists()

    def nodes(self, key: str) -> frozenset[str]:
        """Return the nodes that are there for a key."""
        with suppress(FileNotFoundError):
            entries = os.listdir(self.directory / key)
            return frozenset(n.removesuffix(_ENDING) for n in entries if n.endswith(_ENDING))
        return frozenset()

    def put(self, key: str, node: str, kept: Kept) -> Path:
        """Write a partial, whole or not at all; equal ones may be written twice."""
        leaves: list[np.ndarray[Any, Any]] = []
        head = {
            "state": _flatten(kept.state, leaves),
            "used": kept.used,
            "rows": kept.rows,
        }
        named = {str(number): array for number, array in enumerate(leaves)}
        text = np.frombuffer(json.dumps(head).encode(), np.uint8)

        def write(file: BinaryIO) -> None:
            np.savez(file, allow_pickle=False, **{_HEAD: text}, **named)

        path = self.path(key, node)
        files.write_whole(path, write, sum(array.nbytes for array in leaves))
        return path

    def get(self, key: str, node: str) -> Kept:
        """Read a partial; one that is damaged is removed, and named in the error."""
        return read(self.path(key, node))

    def drop(self, key: str, nodes: Iterable[str]) -> None:
        """Remove partials that their merge stands for."""
        for node in nodes:
            self.path(key, node).unlink(missing_ok=True)

    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(stat.st_size for stat, _ in self.entries())

    def trim(self, limit_nbytes: int) -> int:
        """Remove the partials that were used longest ago until ``limit_nbytes`` are left.

        Returns the bytes that were freed.
        """
        found = list(self.entries())
        total, freed = sum(stat.st_size for stat, _ in found), 0
        for stat, path in sorted(found, key=lambda pair: pair[0].st_mtime):
            if total - freed <= limit_nbytes:
                break
            path.unlink(missing_ok=True)
            freed += stat.st_size
        return freed

    def entries(self) -> Iterator[tuple[os.stat_result, Path]]:
        """Yield every file, ``KEY/NODE.npz``, with its size and time."""
        for path in self.directory.rglob(f"*{_ENDING}"):
            with suppress(FileNotFoundError):  # another run may trim the same cache
                yield path.stat(), path


def read(path: Path) -> Kept:
    """Read a partial; a damaged file is removed, so that the next run computes it again.

    Raises :class:`DamagedPartialError` for a file that is damaged, or was removed meanwhile.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            head = json.loads(found[_HEAD].tobytes())
            leaves = (found[str(number)] for number in range(len(found.files) - 1))
            kept = Kept(_restore(head["state"], leaves), head["used"], head["rows"])
    except FeatfoldError:
        raise
    except FileNotFoundError as error:
        raise DamagedPartialError(f"{path} is gone; run the same again to compute it") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError) as error:
        path.unlink(missing_ok=True)
        raise DamagedPartialError(
            f"{path} was damaged ({error}); it is removed: run the same again to compute it anew"
        ) from error
    with suppress(OSError):
        os.utime(path)  # what was used last is trimmed last
    return kept


class StoredRows:
    """The rows of a table in one partial, read in order, a run at a time."""

    def __init__(self, member: IO[bytes], checksum: int) -> None:
        self.checksum = checksum
        """CRC-32 of the rows and their head, as the file states it."""
        self._member = member
        version = np.lib.format.read_magic(member)
        if version != (1, 0):
            raise ValueError(f"rows of format {version}")
        self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(member)

    def read(self, rows: int) -> np.ndarray[Any, Any]:
        """Return the next rows, fewer at the end; the bytes of all are checked with the last."""
        nbytes = self.dtype.itemsize * math.prod(self.shape[1:])
        found = self._member.read(rows * nbytes)
        return np.frombuffer(found, self.dtype).reshape(-1, *self.shape[1:])


@contextmanager
def opened_rows(path: Path) -> Iterator[StoredRows]:
    """Open the partial of a block of a table without reading it whole.

    Raises :class:`MissingInputError` where it is gone, :class:`CorruptError` where it is damaged.
    """
    try:
        with zipfile.ZipFile(path) as file, file.open("0.npy") as member:
            yield StoredRows(member, file.getinfo("0.npy").CRC)
    except FeatfoldError:
        raise
    except FileNotFoundError as error:
        raise MissingInputError(f"{path} is not there any more") from error
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError) as error:
        raise CorruptError(f"{path} was damaged ({error})") from error
    with suppress(OSError):
        os.utime(path)  # what was used last is trimmed last


class RowTable:
    """One output row per input row, kept block by block in memory or in files."""

    def __init__(self, parts: Sequence[np.ndarray[Any, Any] | Path]) -> None:
        self.parts = tuple(parts)

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        for part in self.parts:
            yield part if isinstance(part, np.ndarray) else read(part).state

    def array(self) -> np.ndarray[Any, Any]:
        """Return all rows as one array."""
        return np.concatenate(list(self))

    def save(self, path: Path) -> None:
        """Write all rows as one npy file, a block at a time."""
        rows = sum(len(part) for part in self)
        first = next(iter(self))
        shape = (rows, *first.shape[1:])
        head = {
            "descr": np.lib.format.dtype_to_descr(first.dtype),
            "fortran_order": False,
            "shape": shape,
        }

        def write(file: BinaryIO) -> None:
            np.lib.format.write_array_header_1_0(file, head)
            for part in self:  # not into mapped memory: a full disk would end this process
                file.write(np.ascontiguousarray(part, first.dtype).data)

        nbytes = first.dtype.itemsize * math.prod(shape)
        files.write_whole(path, write, nbytes, "name another directory for the runs")


def _flatten(tree: Any, leaves: list[np.ndarray[Any, Any]]) -> Any:
    """Return the structure of a state as JSON, and append its arrays to ``leaves``."""
    if isinstance(tree, (np.ndarray, np.generic)):
        leaves.append(np.asarray(tree))
        return "array"
    if isinstance(tree, tuple):
        kind = type(tree)
        name = "" if kind is tuple else f"{kind.__module__}:{kind.__qualname__}"
        return {"tuple": name, "of": [_flatten(entry, leaves) for entry in tree]}
    if isinstance(tree, dict):
        return {"dict": [[key, _flatten(entry, leaves)] for key, entry in tree.items()]}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return {"plain": tree}
    raise ConfigError(f"a state holds (named) tuples of arrays and numbers, not {type(tree)}")


def _restore(tree: Any, leaves: Iterator[np.ndarray[Any, Any]]) -> Any:
    if tree == "array":
        return next(leaves)
    if "plain" in tree:
        return tree["plain"]
    if "dict" in tree:
        return {key: _restore(entry, leaves) for key, entry in tree["dict"]}
    entries = [_restore(entry, leaves) for entry in tree["of"]]
    return _tuple_class(tree["tuple"])(*entries) if tree["tuple"] else tuple(entries)


def _tuple_class(name: str) -> Any:
    """Return a named tuple class of a module that is loaded already: nothing is imported for it."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple)):
        raise ConfigError(f"{name} is not a state class that is known here: import its module")
    return found
