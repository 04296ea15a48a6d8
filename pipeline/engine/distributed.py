"""Folds and merges as tasks of a dask client, named for its dashboard."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from pipeline import stopping
from pipeline.arrays import HOST, Place
from pipeline.chunk import Split
from pipeline.content import constants_in, read_constants_from
from pipeline.engine.schedule import FoldStep, MergeStep, Schedule
from pipeline.engine.settings import (
    BLAS_THREADS,
    CONSTANTS,
    DEFAULTS,
    PARTIALS,
    Finished,
    Settings,
    mended,
    window,
)
from pipeline.engine.tasks import root_of, run_fold, run_merge
from pipeline.errors import FeatfoldError
from pipeline.fold import Partial
from pipeline.partials import Partials
from pipeline.plan import Pass, Work, human, project


@dataclass(frozen=True)
class Dask:
    """Runs passes on the workers of a dask client.

    Partials and constants are files of ``cache``, which all workers reach: a task is sent names and
    returns the number of bytes it read, so neither the scheduler nor the client holds states.
    """

    client: Any
    cache: Path
    settings: Settings = DEFAULTS
    place: Place = HOST
    finished: Finished | None = None

    def __call__(self, pass_: Pass) -> Sequence[Partial]:
        for constant in constants_in([(work.statistics, work.rows) for work in pass_.works]):
            constant.save(self.cache / CONSTANTS)
        try:
            return [mended(partial(self._run, pass_, work)) for work in pass_.works]
        except Exception as error:
            if type(error).__name__ == "KilledWorker":
                raise FeatfoldError(_lost_workers(pass_, error)) from error
            raise

    def _run(self, pass_: Pass, work: Work) -> Partial:
        read = 0
        for schedule in self.settings.schedules(work, self.cache):
            try:
                read += sum(self.client.gather(self._submit(pass_, schedule)))
                stopping.check()
                root = root_of(schedule, read) if schedule.part is None else None
            finally:
                schedule.forget()
        assert root is not None  # the last schedule is that of all parts
        return root

    def _submit(self, pass_: Pass, schedule: Schedule) -> list[Any]:
        """Submit the steps in order, with a bounded number of folds in flight."""
        token = uuid.uuid4().hex[:8]
        limit = window(sum(self.client.nthreads().values()))
        made: dict[tuple[str, str], Any] = {}
        flying: set[Any] = set()
        submitted = []
        for step in schedule.steps:
            if stopping.requested():
                break
            if isinstance(step, MergeStep):
                future = self._merge(pass_, schedule, step, made, token)
            else:
                flying = _wait_for_room(flying, limit)
                future = self._fold(pass_, schedule, step, token)
                flying.add(future)
            for name in step.inputs:
                made.pop(name, None)
            made |= dict.fromkeys(step.outputs, future)
            submitted.append(future)
        return submitted

    def _fold(self, pass_: Pass, schedule: Schedule, step: FoldStep, token: str) -> Any:
        work = schedule.work_of(step)
        block = step.blocks[0]
        source = work.split.only(block) if len(step.blocks) == 1 else work.split
        future = self.client.submit(
            _fold_task, source, step, self.cache, self.settings.shrink, self.place,
            key=(pass_.name, work.split.name, f"block{block.index:04d}", token),
        )  # fmt: skip
        future.add_done_callback(lambda done: self._tell(done, pass_, work, step))
        return future

    def _merge(
        self, pass_: Pass, schedule: Schedule, step: MergeStep, made: dict[Any, Any], token: str
    ) -> Any:
        level, position = step.node
        needed = {made[name] for name in step.inputs if name in made}
        return self.client.submit(
            _merge_task, step, schedule.partials.directory, schedule.thin, sorted(needed, key=str),
            key=(_merge_name(pass_), schedule.work.split.name, f"L{level}-{position:04d}", token),
            priority=1,
        )  # fmt: skip

    def _tell(self, future: Any, pass_: Pass, work: Work, step: FoldStep) -> None:
        if self.finished is not None and future.status == "finished":
            for block in step.blocks:
                self.finished(pass_, work, block)


def _wait_for_room(flying: set[Any], limit: int) -> set[Any]:
    """Return the tasks that are in flight, once there are fewer than ``limit``."""
    from distributed import wait

    if len(flying) < limit:
        return flying
    done, rest = wait(list(flying), return_when="FIRST_COMPLETED")
    for future in done:
        if future.status == "error":  # raised now: no further block is read
            future.result()
    return set(rest)


def _lost_workers(pass_: Pass, error: Any) -> str:
    """Say what kept killing its worker: a KilledWorker holds the key of the task."""
    _, split, block, _ = error.task
    return (
        f"{pass_.name}: {block} of {split} ended its worker {error.allowed_failures + 1} times, "
        f"most likely for want of memory: {human(project(pass_, 0).nbytes)} were projected for it "
        "beside what a fresh worker holds; raise --memory, lower --workers, or leave out "
        "detectors. Finished blocks are kept"
    )


def _merge_name(pass_: Pass) -> str:
    return pass_.name.replace("fit", "merge") if pass_.stage == "fit" else f"merge-{pass_.name}"


def _fold_task(split: Split, step: FoldStep, cache: Path, shrink: int, place: Place) -> int:
    read_constants_from(cache / CONSTANTS, constants_in((step.statistics, step.tables)))
    _limit_blas()
    return run_fold(split, step, Partials(cache / PARTIALS), place, shrink)


def _merge_task(step: MergeStep, directory: Path, thin: bool, needed: Sequence[int]) -> int:
    _limit_blas()
    run_merge(step, Partials(directory), thin)
    return 0


@cache
def _limit_blas() -> None:
    """Limit the threads of this worker for good: an end of the limit would reach other tasks."""
    threadpool_limits(BLAS_THREADS)
