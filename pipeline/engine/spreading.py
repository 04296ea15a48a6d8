"""Blocks that the workers of a dask client write, one at a time in each of their processes."""

from __future__ import annotations

import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline.chunk import Block
from pipeline.engine.distributed import lost_scheduler
from pipeline.errors import ConfigError, FeatfoldError

Write = Callable[[str, Block, Callable[[int], None], int], None]
"""Called in a worker with a token of the whole, a block, what is told its rows, and threads."""
PATIENCE_SECONDS = 60
"""How long nothing may be heard while no worker is connected."""

TELL_SECONDS = 0.1
"""How often a worker tells its rows, at most: all that is told passes through the scheduler."""


class AbandonedError(FeatfoldError):
    """A block that nobody waits for any more: its worker stops within it."""


def spread(
    client: Any, split: str, write: Write, blocks: Sequence[Block], leave: Callable[[], None]
) -> Iterator[tuple[Block, int, bool]]:
    """Have every block written by some worker; yield (block, its rows so far, whether it is done).

    A block of 0 rows has been begun: once more, where its worker was lost. ``write`` is sent once,
    and ``leave`` is called in all workers at the end. What a worker raises is raised.
    """
    token = uuid.uuid4().hex[:8]
    topic = _topic(token)
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.subscribe_topic(topic, lambda event: news.put(event[1]))
    waiting, left = deque(blocks), {block.index: block for block in blocks}
    flying: dict[Any, Any] = {}
    sent = _sent(client, write, token)
    try:
        while waiting or flying:
            busy = {address for _, address in flying.values()}
            for address in _addresses(client) - busy if waiting else ():
                if waiting:
                    block = waiting.popleft()
                    future = client.submit(
                        _task, sent, token, block, workers=[address], allow_other_workers=True,
                        key=("extract", split, f"block{block.index:04d}", token),
                    )  # fmt: skip
                    flying[future] = block, address
                    future.add_done_callback(news.put)
            try:
                message = news.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                if not _addresses(client):
                    raise FeatfoldError(
                        f"split {split}: no worker is left at {client.scheduler.address}; start "
                        "some, and run the same again: what is finished is kept"
                    ) from None
                continue
            if message in flying:
                block, _ = flying.pop(message)
                message.result()
                del left[block.index]
                yield block, block.rows, True
            elif isinstance(message, (list, tuple)) and message[0] in left:
                yield left[message[0]], message[1], False
    except Exception as error:
        if why := _lost(split, error):
            raise FeatfoldError(why) from error
        raise
    finally:
        if client.status == "running":
            client.cancel(list(flying))
            client.unsubscribe_topic(topic)
            client.run(leave, on_error="ignore")


def _addresses(client: Any) -> set[str]:
    """Return where the workers are that are connected now."""
    from distributed.comm import CommClosedError

    try:
        return set(client.nthreads())
    except OSError as error:
        raise CommClosedError(str(error)) from error


def _sent(client: Any, write: Write, token: str) -> Any:
    """Send what is called to the cluster, which keeps it for workers that are lost."""
    import dask

    try:
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
            return client.submit(_same, write, key=("extract-model", token))
    except (TypeError, AttributeError) as error:
        raise ConfigError(
            f"cluster: model and data cannot be sent to workers ({error}); define them at the top "
            "of a module that all of them have"
        ) from error


def _same(write: Write) -> Write:
    return write


def _task(write: Write, token: str, block: Block) -> None:
    """Write a block on this worker, as long as it is waited for."""
    from distributed import get_worker

    worker = get_worker()
    key, topic = worker.get_current_task(), _topic(token)
    told = time.monotonic()

    def tell(rows: int) -> None:
        nonlocal told
        task = worker.state.tasks.get(key)
        gone = worker.status.name in ("closing", "closed")
        if gone or task is None or task.state != "executing":
            raise AbandonedError(f"block {block.index} is waited for no more")
        if time.monotonic() - told > TELL_SECONDS:
            told = time.monotonic()
            worker.log_event(topic, [block.index, rows])

    worker.log_event(topic, [block.index, 0])
    write(token, block, tell, worker.state.nthreads)


def _topic(token: str) -> str:
    return f"featfold-{token}"


def _lost(split: str, error: Any) -> str:
    """Say what was lost, workers or the scheduler; nothing for other errors."""
    if type(error).__name__ != "KilledWorker":
        return lost_scheduler(f"split {split}", error)
    return (
        f"split {split}: {error.task[2]} ended its worker {error.allowed_failures + 1} times; what "
        "is finished is kept. Where memory ran out, choose a smaller batch or smaller blocks, and "
        "run the same again"
    )
