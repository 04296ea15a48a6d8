"""Blocks spread over the workers of a dask cluster, each of which makes the model once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pipeline.chunk import Block
from pipeline.engine.spreading import spread
from pipeline.errors import FeatfoldError
from pipeline.extract.passing import Progress
from pipeline.extract.stations import Task, fill_here, is_committed, leave


def spread_out(
    task: Task,
    blocks: Sequence[Block],
    client: Any,
    writer: Any,
    progress: Progress | None,
    say: Callable[[str], None],
) -> None:
    """Have the workers of ``client`` write blocks, one at a time in each of their processes.

    The block of a worker that is lost is given to another one, which is said. Raises what a worker
    raises, and :class:`FeatfoldError` for a block that ends several workers, or that the store of
    this process lacks though a worker wrote it.
    """
    rows, begun = writer.blocks[-1].stop, dict[int, int]()
    before = rows - sum(block.rows for block in blocks)
    if progress is not None:
        progress(before, rows)
    for block, own, done in spread(client, task.split, partial(fill_here, task), blocks, leave):
        named = f"block {block.index} (rows {block.start}-{block.stop})"
        if own == 0 and block.index in begun:
            say(f"{task.split}: {named} is begun again, a worker was lost")
        if done and not is_committed(writer, block):
            raise FeatfoldError(
                f"split {task.split}: a worker has written {named}, but {task.store} lacks it "
                "here: the store must lie where this process and all workers reach it, in a "
                "shared folder or a bucket"
            )
        begun[block.index] = own
        if progress is not None:
            progress(before + sum(begun.values()), rows)
