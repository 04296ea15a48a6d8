"""safetensors: one file, its head first, then array after array; bfloat16 stays as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from pipeline.chunk import Split
from pipeline.store import layout
from pipeline.store.exporters import Advance, Exporter, chunks
from pipeline.store.importers.safetensors import DTYPES, LENGTH_NBYTES

ALIGNED_NBYTES = 8
"""To a multiple of which the head is padded, so that tensors begin there."""
BF16 = "BF16"


def write(file: BinaryIO, split: Split, names: Sequence[str], advance: Advance) -> None:
    """Write the head, then the rows of each array, those of wide numbers first."""
    specs = split.schema.arrays
    ordered = sorted(names, key=lambda name: (-layout.stored_dtype(specs[name]).itemsize, name))
    file.write(_head(split, ordered))
    for name in ordered:
        for chunk in chunks(split, [name], None, advance):
            file.write(layout.encode(chunk[name], specs[name]).data)


def _head(split: Split, names: Sequence[str]) -> bytes:
    schema, start = split.schema, 0
    metadata = {"split": split.name, "classes": str(schema.classes)}
    head: dict[str, object] = {"__metadata__": metadata}
    for name in names:
        spec = schema.arrays[name]
        stop = start + schema.rows * spec.nbytes
        shape = [schema.rows, *spec.shape]
        head[name] = {"dtype": _code(spec.dtype), "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED_NBYTES)
    return len(text).to_bytes(LENGTH_NBYTES, "little") + text


def _code(dtype: str) -> str:
    if dtype == layout.BFLOAT16:
        return BF16
    stored = {np.dtype(each): code for code, each in DTYPES.items() if code != BF16}
    return stored[np.dtype(dtype)]


FORMAT = Exporter(
    "safetensors", ".safetensors", False, lambda spec: spec.nbytes, lambda: None, write
)
