"""HDF5: every dataset of a file by its path, read by rows; each chunk is decompressed once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.store.importers import Importer, Rows, Unreadable, has_suffix
from pipeline.store.importers.faults import is_packed, native, package, told
from pipeline.store.importers.sliced import SlicedRows, in_bands

SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")


class _Dataset:
    """One dataset, whose file is open from the first read on."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._file: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Dataset, (self.path, self.name)

    def fill(self, out: np.ndarray[Any, Any], start: int) -> None:
        rows = slice(start, start + len(out))
        where = f"rows {rows.start}-{rows.stop} of {self.name}"
        with told(self.path, RuntimeError, KeyError, TypeError, where=where):
            if self._file is None:
                self._file = package("h5py", "h5", self.path).File(self.path, "r")
            self._file[self.name].read_direct(out, rows)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def hdf5_rows(path: Path) -> dict[str, Rows]:
    """Return the rows of every dataset of a file by its path; links are not followed.

    Raises :class:`CorruptError` for a file that is damaged, :class:`DataError` for one without
    datasets, and :class:`ConfigError` without h5py.
    """
    h5py = package("h5py", "h5", path)
    found: dict[str, Rows] = {}

    def add(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.shape:
            found[name] = _rows(path, name, node)

    with told(path, RuntimeError, KeyError, TypeError), h5py.File(path, "r") as file:
        file.visititems(add)
    if not found:
        raise DataError(f"{path} holds no datasets with rows; name a file with arrays (n, ...)")
    return found


def _rows(path: Path, name: str, node: Any) -> Rows:
    shape, dtype = tuple(node.shape), native(node.dtype)
    what = f"{path}, {name}"
    if why := _unfit(node, dtype):
        return Unreadable(f"{what} {why}", shape, dtype)
    row_nbytes = math.prod(shape[1:]) * dtype.itemsize
    band_rows = node.chunks[0] if node.chunks else 1
    try:
        source = in_bands(_Dataset(path, name), shape[0], band_rows, row_nbytes, what)
    except DataError as error:
        return Unreadable(str(error), shape, dtype)
    return SlicedRows(source, shape, dtype)


def _unfit(node: Any, dtype: np.dtype[Any]) -> str:
    """Say why a dataset has no rows of numbers of its own, or nothing."""
    if dtype.kind not in "biuf":
        what = "text" if dtype.kind in "OSTU" else str(dtype)
        return f"holds {what}; expected numbers: save it as such"
    if is_packed(node.attrs):
        return "is packed by scale_factor and add_offset; save the numbers themselves"
    if node.is_virtual or node.external:
        return "lies in other files, and rows of those that are gone would be made up; import them"
    if node.chunks is None and node.size and not node.id.get_storage_size():
        return (
            f"was created and never written: its rows read as the fill value {node.fillvalue}; "
            "finish writing it"
        )
    lacking = _chunks(node) - node.id.get_num_chunks() if node.chunks else 0
    if lacking > 0:
        return (
            f"lacks {lacking:,} of {_chunks(node):,} chunks, whose rows read as the fill value "
            f"{node.fillvalue}; finish writing it"
        )
    return ""


def _chunks(node: Any) -> int:
    """Return how many chunks a dataset has once all are written."""
    return math.prod(-(-n // size) for n, size in zip(node.shape, node.chunks, strict=True))


FORMAT = Importer("hdf5", SUFFIXES, has_suffix(*SUFFIXES), hdf5_rows)
