"""Rows in memory, written to files once, so that worker processes read them from there.

Sent with their tasks they would pass through the scheduler, and be copied at every stop. The files
lie in a folder of the cache that goes with the run, or, where that is killed, when the next starts.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.chunk import Split
from pipeline.store.file_rows import FileRows
from pipeline.store.memory import ArraySplit
from pipeline.store.objects import is_lazy

_REMEDY = "choose cluster: threads, which needs no copy of rows in memory"


class SharedRows:
    """What the workers of a run are sent in place of splits in memory: the names of files."""

    def __init__(self, cache: Path, here: bool) -> None:
        self.directory = cache.absolute() / files.unfinished("rows")
        """Folder of what no other run could find again."""
        self.here = here
        """Whether the workers are of this machine, and reach whatever file this process does."""
        self._made: dict[ArraySplit, ArraySplit] = {}

    def of(self, split: Split) -> Split:
        """Return a split with the same rows that is small to send; stored ones are already.

        Raises :class:`~pipeline.errors.FeatfoldError` where the disk is too full for the rows.
        """
        if not isinstance(split, ArraySplit):
            return split
        if split not in self._made:
            self._made[split] = split.with_arrays(
                {name: self._shared(split, name, a) for name, a in split.arrays.items()}
            )
        return self._made[split]

    def _shared(self, split: ArraySplit, name: str, array: Any) -> Any:
        if is_lazy(array) or isinstance(array, FileRows):
            return array
        mapped = mapped_rows(array) if self.here else None
        return mapped or self._write(split, name)

    def _write(self, split: ArraySplit, name: str) -> FileRows:
        rows, spec = split.schema.rows, split.schema.arrays[name]
        path = self.directory / f"{len(self._made)}.{split.name.replace('/', '+')}.{name}"
        written = FileRows(path, (rows, *spec.shape), spec.memory_dtype)
        what = f"a copy of {name} of {split.name} for the workers"
        with files.told(what, self.directory, rows * written.row_nbytes, _REMEDY):
            self.directory.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for start in range(0, rows, split.chunk_rows):
                    file.write(split.rows(name, start, min(start + split.chunk_rows, rows)).data)
        return written


@contextmanager
def shared_rows(cache: Path, here: bool = False) -> Iterator[SharedRows]:
    """Yield what shares rows through files in ``cache``, and remove them at the end."""
    shared = SharedRows(cache, here)
    try:
        yield shared
    finally:
        shutil.rmtree(shared.directory, ignore_errors=True)


def mapped_rows(array: Any) -> FileRows | None:
    """Return the file of rows that are mapped from one as they are, as by numpy's ``mmap_mode``."""
    whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
    if not (whole and array.filename and array.mode != "c" and array.flags.c_contiguous):
        return None
    path = Path(array.filename).absolute()
    return FileRows(path, array.shape, array.dtype, array.offset) if path.is_file() else None
