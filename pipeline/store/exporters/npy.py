"""npy: a file for each array; bfloat16, which numpy lacks, becomes float32 of the same values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np

from pipeline.chunk import ArraySpec, Split
from pipeline.store.exporters import Advance, Exporter, chunks


def write(file: BinaryIO, split: Split, names: Sequence[str], advance: Advance) -> None:
    """Write the head, then the rows, chunk by chunk."""
    (name,) = names
    spec = split.schema.arrays[name]
    dtype = spec.memory_dtype.newbyteorder("<")
    head = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (split.schema.rows, *spec.shape),
    }
    np.lib.format.write_array_header_1_0(file, head)
    for chunk in chunks(split, names, None, advance):
        file.write(np.ascontiguousarray(chunk[name], dtype=dtype).data)


def _row_nbytes(spec: ArraySpec) -> int:
    return math.prod(spec.shape) * spec.memory_dtype.itemsize


FORMAT = Exporter("npy", ".npy", True, _row_nbytes, lambda: None, write)
