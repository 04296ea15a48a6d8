"""Files of torch.save: tensors alone, in dictionaries of any depth; no other object is unpickled.

Rows are copied out of the mapped file, which is opened anew every few megabytes: mapped pages count
as memory until the file is closed.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import CorruptError, DataError
from pipeline.store.importers import Importer, Rows, Unreadable, array_name, has_suffix
from pipeline.store.importers.faults import told
from pipeline.store.importers.sliced import SlicedRows
from pipeline.store.layout import BFLOAT16, DTYPES

SUFFIXES = (".pt", ".pth")
PIECE_NBYTES = 4 * 2**20
HELD_NBYTES = 16 * 2**20
"""Bytes that are read before the file is opened anew."""
SAVE = 'save tensors alone: torch.save({"features": features, "labels": labels}, path)'
NUMPY = {dtype: dtype for dtype in DTYPES} | {BFLOAT16: "uint16"}
"""Dtypes of tensors that can be stored, and those of their bytes."""


class _Tensor:
    """One tensor of a file, which is mapped from the first read on, and again later."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...]) -> None:
        self.path, self.name, self.shape = path, name, shape
        self._tensor: Any = None
        self._read_nbytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tensor, (self.path, self.name, self.shape)

    def fill(self, out: np.ndarray[Any, Any], start: int) -> None:
        step = max(1, PIECE_NBYTES // max(1, math.prod(self.shape[1:]) * out.itemsize))
        for first in range(0, len(out), step):
            piece = out[first : first + step]
            piece[...] = self._rows(start + first, len(piece))
            self._read_nbytes += piece.nbytes
            if self._read_nbytes >= HELD_NBYTES:
                self.close()

    def _rows(self, start: int, rows: int) -> np.ndarray[Any, Any]:
        import torch

        if self._tensor is None:
            self._tensor = dict(_tensors(self.path)).get(self.name)
            if self._tensor is None or tuple(self._tensor.shape) != self.shape:
                raise CorruptError(
                    f"{self.path}: {self.name} was changed while it was read; "
                    "import it again when it lies still"
                )
        part = self._tensor[start : start + rows]
        bits = part.view(torch.uint16) if part.dtype == torch.bfloat16 else part
        found: np.ndarray[Any, Any] = bits.numpy()
        return found

    def close(self) -> None:
        self._tensor, self._read_nbytes = None, 0


def torch_rows(path: Path) -> dict[str, Rows]:
    """Return the rows of every tensor of a file by its name, dotted where dictionaries are nested.

    The one tensor of a file is called by the file. Raises :class:`DataError` for anything but a
    tensor or a dictionary, none of which is unpickled, :class:`CorruptError` for a damaged file.
    """
    found: dict[str, Rows] = {}
    for name, tensor in _tensors(path):
        if name in found:
            raise DataError(f"{path} holds two tensors that would be called {name}; rename one")
        found[name] = _rows_of(path, name, tensor)
    if not found:
        raise DataError(
            f"{path} holds no tensors with rows; expected a tensor, or a dictionary of "
            f"tensors: {SAVE}"
        )
    return found


def _rows_of(path: Path, name: str, tensor: Any) -> Rows:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if str(tensor.layout) != "torch.strided":
        why = f"is sparse ({str(tensor.layout).removeprefix('torch.')}); save its to_dense()"
    elif dtype not in NUMPY:
        why = f"holds {dtype}, which cannot be stored; save its float()"
    elif tensor.numel() and not tensor[0].is_contiguous():
        why = f"has rows that lie apart, strides {tuple(tensor.stride())}; save its contiguous()"
    else:
        return SlicedRows(_Tensor(path, name, shape), shape, np.dtype(NUMPY[dtype]), dtype)
    return Unreadable(f"{path}: {name} {why}", shape)


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors with rows by dotted name; the file stays mapped as long as they live."""
    import torch

    _check_archive(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path} holds other objects than tensors, which are never loaded; {SAVE}"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())[:200]
        raise CorruptError(f"{path} is damaged ({why}); save it again") from error
    if not isinstance(content, (dict, torch.Tensor)):
        raise DataError(
            f"{path} holds a {type(content).__name__}; expected a tensor or a dictionary of "
            f"tensors: {SAVE}"
        )
    yield from _named("", content if isinstance(content, dict) else {array_name(path): content})


def _check_archive(path: Path) -> None:
    """Raise an error for a file that is not of today's torch.save, before anything is unpickled."""
    with told(path, zipfile.BadZipFile):
        with path.open("rb") as file:
            start = file.read(4)
        if start != b"PK\x03\x04":
            raise DataError(
                f"{path} was not saved by torch.save of torch 1.6 or later; load it where it came "
                f"from, and {SAVE}"
            )
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    if any(name.endswith("/constants.pkl") for name in names):
        raise DataError(
            f"{path} is a TorchScript archive, which holds code; load it there, and {SAVE}"
        )


def _named(prefix: str, content: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    import torch

    for key, value in content.items():
        if isinstance(value, dict):
            yield from _named(f"{prefix}{key}.", value)
        elif isinstance(value, torch.Tensor) and value.ndim:
            yield f"{prefix}{key}", value.detach()


FORMAT = Importer("torch", SUFFIXES, has_suffix(*SUFFIXES), torch_rows)
