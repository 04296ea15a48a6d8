"""Blocks shared out among processes, each of which has the model and the rows of its own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from pipeline import spawning
from pipeline.chunk import Block
from pipeline.errors import ConfigError, FeatfoldError
from pipeline.extract.passing import Progress
from pipeline.extract.stations import Station, Task

TRIES = 2
"""Workers that one block may kill."""


def share_out(
    task: Task,
    blocks: Sequence[Block],
    workers: int,
    rows: int,
    progress: Progress | None,
    say: Callable[[str], None],
) -> None:
    """Have ``workers`` processes write blocks; the threads of torch are shared out among them.

    A worker that is killed is named, and its block given to another one; a block that kills two is
    an error, and so is whatever a worker raises. Blocks that are finished are kept.
    """
    crew = _Crew(task, workers, say)
    waiting, killed = deque(blocks), Counter[int]()
    left, done = len(blocks), rows - sum(block.rows for block in blocks)
    if progress is not None:
        progress(done, rows)
    try:
        crew.hire(workers)
        while left:
            crew.employ(waiting)
            for worker, message in crew.messages():
                if isinstance(message, int):
                    done += message
                    if progress is not None:
                        progress(done, rows)
                elif isinstance(message, Exception):
                    raise message
                elif message is _DEAD:
                    block = worker.block
                    done -= worker.rows
                    _refuse_again(task, worker, killed)
                    why = f"{task.split}: {worker.ended()}"
                    if block is not None:
                        waiting.appendleft(block)
                        why += f" within {_rows(block)}, which another one takes over"
                    say(why)
                    crew.hire(1)
                elif message is _DONE:
                    left -= 1
    finally:
        crew.dismiss()


class _Signal:
    """What a worker is found to be."""


_DEAD, _DONE, _READY = _Signal(), _Signal(), "ready"


class _Worker:
    """A process, the block that it is at, and the rows of that it has done."""

    def __init__(self, number: int, process: Any, connection: Connection) -> None:
        self.number, self.process, self.connection = number, process, connection
        self.block: Block | None = None
        self.rows = 0
        self.ready = False

    def ended(self) -> str:
        """Say how the process ended."""
        self.process.join()
        code = self.process.exitcode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"worker {self.number} (process {self.process.pid}) {how}"


class _Crew:
    """The processes at work."""

    def __init__(self, task: Task, workers: int, say: Callable[[str], None]) -> None:
        self._task, self._say = task, say
        self._threads = max(1, torch.get_num_threads() // workers)
        self._at_work: dict[Connection, _Worker] = {}
        self._hired = 0

    def hire(self, count: int) -> None:
        """Start processes."""
        context = multiprocessing.get_context("spawn")
        with spawning.shielded():
            for _ in range(count):
                ours, theirs = context.Pipe()
                arguments = (theirs, self._task, self._hired, self._threads)
                process = context.Process(target=_work, args=arguments, daemon=True)
                try:
                    process.start()
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    raise ConfigError(
                        f"workers: model and data cannot be sent to other processes ({error}); "
                        "define them at the top of a module, or extract with one worker"
                    ) from error
                theirs.close()
                self._at_work[ours] = _Worker(self._hired, process, ours)
                self._hired += 1

    def employ(self, waiting: deque[Block]) -> None:
        """Give a block to every worker that has none."""
        for worker in list(self._at_work.values()):
            if worker.ready and worker.block is None and waiting:
                worker.block, worker.rows = waiting.popleft(), 0
                try:
                    worker.connection.send(worker.block)
                except OSError:  # it has just died, which the next message tells
                    worker.ready = False

    def messages(self) -> list[tuple[_Worker, Any]]:
        """Wait for the workers, and return what they say or that they died."""
        found: list[tuple[_Worker, Any]] = []
        for connection in wait(list(self._at_work)):
            worker = self._at_work[connection]  # type: ignore[index]
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                del self._at_work[worker.connection]
                worker.connection.close()
                message = _DEAD
            if message == _READY:
                worker.ready = True
            elif isinstance(message, int):
                worker.rows += message
            elif isinstance(message, Block):
                worker.block, message = None, _DONE
            found.append((worker, message))
        return found

    def dismiss(self) -> None:
        """End all processes: blocks are whole or do not count."""
        for worker in self._at_work.values():
            worker.process.kill()
        for worker in self._at_work.values():
            worker.process.join()
            worker.connection.close()
        self._at_work.clear()


def _refuse_again(task: Task, worker: _Worker, killed: Counter[int]) -> None:
    """Raise where a worker died before it could begin, or a block was the death of several."""
    block = worker.block
    if block is None:
        if not worker.ready:
            raise FeatfoldError(
                f"split {task.split}: {worker.ended()} before it could begin. In a script, each "
                "runs its top level again: put what it does into a function, and call that under "
                '`if __name__ == "__main__":`'
            )
        return
    killed[block.index] += 1
    if killed[block.index] >= TRIES:
        raise FeatfoldError(
            f"split {task.split}: {worker.ended()}, and so was another one within {_rows(block)}; "
            "what is finished is kept. Where memory ran out, choose fewer workers, a smaller batch "
            "or smaller blocks, and run the same again"
        )


def _rows(block: Block) -> str:
    return f"block {block.index} (rows {block.start}-{block.stop})"


def _work(connection: Connection, task: Task, number: int, threads: int) -> None:
    """Write the blocks that are sent, until the connection or the process at its end closes."""
    _end_with_parent()
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(number % torch.cuda.device_count())
    try:
        station = Station(task)
        with station.ready():
            connection.send(_READY)
            while True:
                block = connection.recv()
                station.fill(block, _Steps(connection))
                connection.send(block)
    except EOFError:
        return
    except FeatfoldError as error:
        connection.send(error)
    except Exception as error:
        why = f"worker {number}: {type(error).__name__}: {error}"
        connection.send(FeatfoldError(f"split {task.split}: {why}"))


class _Steps:
    """Tells the rows that were done since it last told."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._done = connection, 0

    def __call__(self, done: int) -> None:
        if done > self._done:
            self._connection.send(done - self._done)
        self._done = done


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has: nobody else may write meanwhile."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
