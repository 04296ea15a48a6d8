"""Blocks of a split, filled by a model from a source whose rows are read by range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.chunk import Block
from pipeline.errors import DataError
from pipeline.extract.passing import Contents, Pass, Progress
from pipeline.extract.sources import Source
from pipeline.store import Store
from pipeline.store.repair import damaged_blocks


class Writer(Protocol):
    """What extraction asks of a split that is being written."""

    @property
    def name(self) -> str: ...
    @property
    def blocks(self) -> Sequence[Block]: ...
    def missing(self) -> Sequence[Block]: ...
    def write(self, block_index: int, contents: Mapping[str, NDArray[Any]], /) -> None: ...


def fill_blocks(
    run: Pass,
    source: Source,
    writer: Any,
    blocks: Iterable[Block],
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write the given blocks of a split, one after the other."""
    rows = writer.blocks[-1].stop if writer.blocks else 0
    if rows != len(source):
        raise DataError(
            f"split {writer.name} holds {rows} rows, source {source.name!r} has {len(source)}"
        )
    blocks = list(blocks)
    done = rows - sum(block.rows for block in blocks)
    if blocks and progress is not None:
        progress(done, rows)
    for block in blocks:
        contents: Contents = {}
        start = block.start
        while start < block.stop:
            stop = min(start + run.batch_rows, block.stop)
            batch = run.checked(source.read(start, stop), start, stop - start)
            place(contents, run.arrays(batch, start), block, start, writer.name)
            done += stop - start
            start = stop
            if progress is not None:
                progress(done, rows)
        writer.write(block.index, contents, **({"overwrite": True} if overwrite else {}))


def place(contents: Contents, found: Contents, block: Block, start: int, split: str) -> None:
    """Copy the arrays of a batch to their rows of a block, which the first batch lays out."""
    if not contents:
        for name, rows in found.items():
            contents[name] = np.empty((block.rows, *rows.shape[1:]), rows.dtype)
    expected = {name: (rows.shape[1:], rows.dtype.name) for name, rows in contents.items()}
    got = {name: (rows.shape[1:], rows.dtype.name) for name, rows in found.items()}
    if got != expected:
        raise DataError(
            f"split {split} from row {start}: expected rows of {expected}, as in the batches "
            f"before, got {got}"
        )
    for name, rows in found.items():
        # A copy, so that nothing keeps the model's larger buffers alive.
        contents[name][start - block.start :][: len(rows)] = rows


def damaged(store: Store, name: str) -> list[Block]:
    """Return the committed blocks of a split whose bytes are not those of the manifest.

    All that is committed is read once, behind a missing block too. Raises :class:`CorruptError` for
    damage that no block mends.
    """
    return damaged_blocks(store, name)
