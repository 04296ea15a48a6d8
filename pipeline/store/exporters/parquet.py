"""Parquet: one file, a column for each array, whose rows are lists of fixed length (of lists).

bfloat16, which Arrow lacks, becomes float32 of the same values. Pages carry checksums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from pipeline.chunk import ArraySpec, Split
from pipeline.store import arrow
from pipeline.store.exporters import Advance, Exporter, chunks

GROUP_NBYTES = 32 * 2**20
GROUP_ROWS = 2**20


def write(file: BinaryIO, split: Split, names: Sequence[str], advance: Advance) -> None:
    """Write row groups, each from one chunk of all arrays."""
    pa = arrow.pyarrow("writing Parquet")
    specs = {name: split.schema.arrays[name] for name in names}
    schema = pa.schema([(name, _type(pa, spec)) for name, spec in specs.items()])
    rows = min(GROUP_ROWS, max(1, GROUP_NBYTES // sum(map(_row_nbytes, specs.values()))))
    with pa.parquet.ParquetWriter(
        file, schema, compression="zstd", compression_level=1, use_dictionary=False,
        write_page_checksum=True,
    ) as writer:  # fmt: skip
        for chunk in chunks(split, names, rows, advance):
            columns = [_column(pa, chunk[name], spec) for name, spec in specs.items()]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=rows)


def _type(pa: Any, spec: ArraySpec) -> Any:
    kind = pa.from_numpy_dtype(spec.memory_dtype)
    for length in reversed(spec.shape):
        kind = pa.list_(kind, length)
    return kind


def _column(pa: Any, rows: Any, spec: ArraySpec) -> Any:
    found = pa.array(np.ascontiguousarray(rows).reshape(-1))
    for length in reversed(spec.shape):
        found = pa.FixedSizeListArray.from_arrays(found, length)
    return found


def _row_nbytes(spec: ArraySpec) -> int:
    return math.prod(spec.shape) * spec.memory_dtype.itemsize


FORMAT = Exporter(
    "parquet", ".parquet", False, lambda _: 0, lambda: arrow.pyarrow("writing Parquet"), write
)
