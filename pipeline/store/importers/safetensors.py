"""safetensors files: their head is read here, and rows like those of npy files.

The format is a length, a head in JSON, and the bytes of each tensor in C order, little-endian
(https://huggingface.co/docs/safetensors). bfloat16 stays as it is: its bits, as uint16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import CorruptError
from pipeline.store.file_rows import FileRows
from pipeline.store.importers import Importer, Rows, Unreadable, has_suffix
from pipeline.store.importers.faults import told

LENGTH_NBYTES = 8
LONGEST_HEAD_NBYTES = 100_000_000
"""What the format itself allows."""
DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2",
}  # fmt: skip


class BFloat16Rows(FileRows):
    """Rows of bfloat16 numbers, given as their bits."""

    logical_dtype = "bfloat16"


def safetensors_rows(path: Path) -> dict[str, Rows]:
    """Return the rows of every tensor of a file by name; reads its head.

    Raises :class:`CorruptError` for a head that is damaged, and for a file that is cut off.
    """
    with told(path, ValueError, KeyError, TypeError, AttributeError):
        nbytes = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_NBYTES), "little")
            if length > min(LONGEST_HEAD_NBYTES, nbytes):
                raise ValueError(f"a head of {length:,} bytes")
            tensors = json.loads(file.read(length))
        tensors.pop("__metadata__", None)
        start = LENGTH_NBYTES + length
        return {name: _rows(path, name, entry, start, nbytes) for name, entry in tensors.items()}


def _rows(path: Path, name: str, entry: Mapping[str, Any], start: int, nbytes: int) -> Rows:
    shape = tuple(int(n) for n in entry["shape"])
    if entry["dtype"] not in DTYPES:
        return Unreadable(
            f"{path}, {name}: dtype {entry['dtype']} cannot be stored; convert it", shape
        )
    dtype = np.dtype(DTYPES[entry["dtype"]])
    first, last = entry["data_offsets"]
    if last - first != math.prod(shape) * dtype.itemsize or start + last > nbytes:
        raise CorruptError(
            f"{path} has {nbytes:,} bytes; {name} {shape} takes those from {start + first:,} to "
            f"{start + last:,}: save it again"
        )
    kind = BFloat16Rows if entry["dtype"] == "BF16" else FileRows
    return kind(path, shape, dtype, start + first)


FORMAT = Importer("safetensors", (".safetensors",), has_suffix(".safetensors"), safetensors_rows)
