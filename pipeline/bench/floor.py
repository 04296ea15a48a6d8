"""The floor of a pass: the time that reading its files, and its symmetric products, cost at least.

Both are measured in as many processes as the pass has workers, with one BLAS thread each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.bench.measuring import Processes
from pipeline.calibration import drop_from_memory, product_seconds, read_through
from pipeline.chunk import Schema
from pipeline.plan import Pass
from pipeline.store import StoredSplit

BUFFER_NBYTES = 32 * 2**20
FAST_ROWS = 4096


@dataclass(frozen=True)
class Products:
    """Symmetric products of rows (n, d) that a pass cannot do without."""

    rows: int
    features: int
    dtype: str
    at_once: int
    """Rows that are multiplied at once: a chunk, or as many as make a product fast."""

    @property
    def flops(self) -> float:
        """Operations, counted as 2 n d^2."""
        return 2.0 * self.rows * self.features**2


def products_of(passes: Sequence[Pass]) -> list[Products]:
    """Return the products behind every scatter matrix that passes over one split ask for."""
    return [
        _products(statistic, work.split.schema, work.split.chunk_rows)
        for pass_ in passes
        for work in pass_.works
        for statistic in work.statistics
        if hasattr(statistic.empty(work.split.schema), "scatter")
    ]


def _products(statistic: object, schema: Schema, chunk_rows: int) -> Products:
    *tokens, features = statistic.of.shape(schema)  # type: ignore[attr-defined]
    each = math.prod(tokens)
    dtype = getattr(statistic, "products", "float64")
    at_once = max(chunk_rows * each, FAST_ROWS)
    return Products(schema.rows * each, features, dtype, at_once)


def files_of(passes: Sequence[Pass]) -> list[Path]:
    """Return the chunk files that passes read, in order; twice if two passes read them."""
    return [
        path
        for pass_ in passes
        for work in pass_.works
        if isinstance(work.split, StoredSplit)
        for name in sorted(work.fields)
        for path in _chunk_files(work.split.root / work.split.name / name)
    ]


def _chunk_files(array: Path) -> Iterator[Path]:
    """Yield the chunk files of an array by index."""
    chunks = (array / "c").iterdir()
    for chunk in sorted(chunks, key=lambda path: int(path.name)):
        if chunk.is_file():
            yield chunk
        else:
            yield from (path for path in chunk.rglob("*") if path.is_file())


def drop(paths: Sequence[Path]) -> None:
    """Have all files read from disk the next time; what is not written yet is written first."""
    os.sync()
    for path in set(paths):
        drop_from_memory(path)


def read_seconds(processes: Processes, paths: Sequence[Path]) -> float:
    """Return the time to read the files, shared out in runs, into a reused buffer."""
    size = math.ceil(len(paths) / processes.count)
    shares = [(list(paths[i * size : (i + 1) * size]),) for i in range(processes.count)]
    return processes.seconds(_read, shares)


def _read(paths: list[Path]) -> None:
    largest = max((path.stat().st_size for path in paths), default=0)
    read_through(paths, memoryview(bytearray(min(largest, BUFFER_NBYTES) or 1)))


def products_seconds(processes: Processes, asked: Sequence[Products]) -> float:
    """Return the time of the products, shared out evenly, ``at_once`` rows at a time.

    Every process multiplies one hot block of rows again and again. Adding each product to a float64
    matrix counts; making the rows does not.
    """
    return sum(_product_seconds(processes, products) for products in asked)


def _product_seconds(processes: Processes, asked: Products) -> float:
    times = math.ceil(asked.rows / asked.at_once / processes.count)
    given = (asked.at_once, asked.features, asked.dtype, times)
    seconds = processes.each(product_seconds, [given] * processes.count)
    done = times * asked.at_once * processes.count
    return seconds * asked.rows / done  # of the last block a part may be too much
