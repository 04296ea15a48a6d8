"""What each statistic of a pass costs by itself, in one process of one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from pipeline.bench.fitting import described
from pipeline.chunk import Split
from pipeline.fold import AnyStatistic, fold
from pipeline.store import ArraySplit


def alone_seconds(split: Split, statistics: Sequence[AnyStatistic]) -> dict[str, dict[str, float]]:
    """Return of each statistic the seconds per GB of its arrays, and their bytes in the split.

    Over the first block, held in memory; views that statistics share are paid for by each.
    """
    found = {}
    for name, statistic in zip(described(statistics), statistics, strict=True):
        fields = split.schema.touched(statistic.fields)
        held = _held(split, fields)
        with threadpool_limits(1):
            began = time.perf_counter()
            fold([statistic], held, held.blocks[0])
            seconds = time.perf_counter() - began
        row_nbytes = split.schema.row_nbytes(fields)
        gigabytes = held.schema.rows * row_nbytes / 1e9
        nbytes = split.schema.rows * row_nbytes
        found[name] = {"seconds_per_gb": seconds / gigabytes, "nbytes": nbytes}
    return found


def _held(split: Split, fields: frozenset[str]) -> ArraySplit:
    """Return the first block of a split in memory, with chunks of the same rows."""
    parts = [
        {name: np.array(chunk[name]) for name in fields}
        for chunk in split.read(split.blocks[0], fields)
    ]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in fields}
    rows = split.blocks[0].rows
    return ArraySplit(
        arrays=whole,
        classes=split.schema.classes,
        name=split.name,
        block_rows=rows,
        chunk_rows=min(rows, split.chunk_rows),
    )
