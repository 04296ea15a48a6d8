"""Rows in temporary files: written batch by batch, then read as a split for as long as they lie."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import FeatfoldError
from pipeline.plan import human
from pipeline.store import ArraySplit, SavedHead
from pipeline.store.file_rows import FileRows


class ExtractedSplit(ArraySplit):
    """Rows in files, and what is known of the model that they came from."""

    def __init__(
        self,
        rows: Mapping[str, FileRows],
        *,
        classes: int,
        name: str,
        attributes: Mapping[str, str],
    ) -> None:
        super().__init__(arrays=rows, classes=classes, name=name)
        self.head: SavedHead | None = None
        """The final layer of the model, where it carries one."""
        self.attributes = attributes
        """What identifies the model, for whoever scores rows of another one."""


class TemporaryRows:
    """Arrays of one split as files of a folder: of each, the bytes of its rows and nothing else.

    A context manager: closed, they can be read. Whoever made the folder removes it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0
        self._arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._files: dict[str, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> TemporaryRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, contents: Mapping[str, NDArray[Any]], rows: int) -> None:
        """Write rows of every array; the first ones say what all others must look like."""
        try:
            for name, array in contents.items():
                if name not in self._files:
                    self._open(name, array)
                self._files[name].write(np.ascontiguousarray(array).data)
        except OSError as error:
            nbytes = sum(array.nbytes for array in contents.values())
            raise FeatfoldError(
                f"{self.folder}: {nbytes:,} bytes behind row {self.rows} of a loader could not be "
                f"written ({error}); {_REMEDY}"
            ) from error
        self.rows += rows

    def _open(self, name: str, array: NDArray[Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._files[name] = self._stack.enter_context((self.folder / name).open("wb"))
        self._arrays[name] = array.shape[1:], array.dtype

    def arrays(self) -> dict[str, FileRows]:
        """Return what was written."""
        return self.promised(self._arrays, self.rows)

    def promised(
        self, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], rows: int
    ) -> dict[str, FileRows]:
        """Return ``rows`` rows of arrays as they will lie here."""
        return {
            name: FileRows(self.folder / name, (rows, *shape), dtype)
            for name, (shape, dtype) in arrays.items()
        }

    def check_room(self, promised: Mapping[str, FileRows]) -> None:
        """Raise :class:`FeatfoldError` where the disk is too small for what will be written."""
        nbytes = sum(rows.shape[0] * rows.row_nbytes for rows in promised.values())
        place = next(parent for parent in (self.folder, *self.folder.parents) if parent.exists())
        free_nbytes = shutil.disk_usage(place).free
        if nbytes > free_nbytes:
            raise FeatfoldError(
                f"{place}: the rows of the loader take {human(nbytes)} while detectors are fitted, "
                f"{human(free_nbytes)} are free; {_REMEDY}, or have the model pool its tokens"
            )


_REMEDY = "free space, or name a directory on another disk with cache="
