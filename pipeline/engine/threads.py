"""Folds and merges on threads of this process, each with one thread of linear algebra."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline import stopping
from pipeline.arrays import HOST, Place
from pipeline.chunk import Block
from pipeline.engine.halving import Halving
from pipeline.engine.schedule import FoldStep, MergeStep, Schedule
from pipeline.engine.serial import merged
from pipeline.engine.settings import DEFAULTS, Finished, Say, Settings, log, mended, window
from pipeline.engine.tasks import root_of, run_fold, run_merge
from pipeline.fold import Partial
from pipeline.plan import Pass, Work


@dataclass(frozen=True)
class Threads:
    """Runs passes on ``workers`` threads.

    With a ``cache``, the partials of stored splits are files in it, and those that are there are
    not computed again. Arrays in memory, and everything without a cache, stay in memory.
    """

    workers: int
    cache: Path | None = None
    settings: Settings = DEFAULTS
    place: Place = HOST
    finished: Finished | None = None
    say: Say = log

    def __call__(self, pass_: Pass) -> Sequence[Partial]:
        halving = Halving(self.place, self.settings, self.say)
        with ThreadPoolExecutor(self.workers, thread_name_prefix=pass_.name) as pool:
            try:
                return [
                    mended(partial(self._run, pool, halving, pass_, work)) for work in pass_.works
                ]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _run(self, pool: ThreadPoolExecutor, halving: Halving, pass_: Pass, work: Work) -> Partial:
        if self.cache is None or not self.settings.schedule(work, self.cache).durable:
            return merged(work, self._folds(pool, halving, pass_, work))
        read = 0
        for schedule in self.settings.schedules(work, self.cache):
            read += sum(self._steps(pool, halving, pass_, schedule))
        return root_of(schedule, read)

    def _folds(
        self, pool: ThreadPoolExecutor, halving: Halving, pass_: Pass, work: Work
    ) -> Iterator[Partial]:
        """Yield the partials of the blocks in order, with a bounded number in flight."""

        def fold_block(block: Block) -> Partial:
            partial = halving.fold(work.statistics, work.split, block, work.rows)
            self._tell(pass_, work, (block,))
            return partial

        flying: deque[Future[Partial]] = deque()
        for block in work.split.blocks:
            stopping.check()
            if len(flying) >= window(self.workers):
                yield flying.popleft().result()
            flying.append(pool.submit(fold_block, block))
        while flying:
            yield flying.popleft().result()

    def _steps(
        self, pool: ThreadPoolExecutor, halving: Halving, pass_: Pass, schedule: Schedule
    ) -> Iterator[int]:
        """Run the steps; yield the bytes that each read."""
        made: dict[tuple[str, str], Future[int]] = {}
        flying: deque[Future[int]] = deque()

        def run_step(step: FoldStep | MergeStep, needed: Sequence[Future[int]]) -> int:
            for future in needed:  # submitted before this one, so they run or have run
                future.result()
            if isinstance(step, MergeStep):
                run_merge(step, schedule.partials, schedule.thin)
                return 0
            work = schedule.work_of(step)
            read = run_fold(work.split, step, schedule.partials, halving)
            self._tell(pass_, work, step.blocks)
            return read

        for step in schedule.steps:
            if stopping.requested():
                break
            if len(flying) >= window(self.workers):
                yield flying.popleft().result()
            needed = [made[name] for name in step.inputs if name in made]
            future = pool.submit(run_step, step, needed)
            made |= dict.fromkeys(step.outputs, future)
            flying.append(future)
        while flying:
            yield flying.popleft().result()
        stopping.check()

    def _tell(self, pass_: Pass, work: Work, blocks: Sequence[Block]) -> None:
        if self.finished is not None:
            for block in blocks:
                self.finished(pass_, work, block)
