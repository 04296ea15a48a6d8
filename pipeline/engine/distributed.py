"""Folds and merges as tasks of a dask client, named for its dashboard."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from pipeline import stopping
from pipeline.arrays import HOST, Place
from pipeline.chunk import Split
from pipeline.content import constants_in, read_constants_from
from pipeline.engine.halving import Halving
from pipeline.engine.schedule import FoldStep, MergeStep, Schedule
from pipeline.engine.settings import (
    BLAS_THREADS,
    CONSTANTS,
    DEFAULTS,
    Finished,
    Say,
    Settings,
    log,
    mended,
    window,
)
from pipeline.engine.tasks import root_of, run_fold, run_merge
from pipeline.errors import FeatfoldError
from pipeline.fold import Partial
from pipeline.partials import Partials
from pipeline.plan import Pass, Work, human, project

if TYPE_CHECKING:
    from pipeline.store.shared import SharedRows


Told = tuple[int, list[str]]
"""What a task returns: the bytes that it read, and what there is to say of it."""


@dataclass(frozen=True)
class Dask:
    """Runs passes on the workers of a dask client.

    Partials and constants are files of ``cache``, which all workers reach: a task is sent names and
    returns the number of bytes it read, so neither the scheduler nor the client holds states.
    Rows in memory become files of ``cache`` too, and they and their partials last as long as
    ``shared``, or else the pass.
    """

    client: Any
    cache: Path
    settings: Settings = DEFAULTS
    place: Place = HOST
    finished: Finished | None = None
    shared: SharedRows | None = None
    say: Say = log

    def __call__(self, pass_: Pass) -> Sequence[Partial]:
        halving = Halving(self.place, self.settings, self.say)
        for constant in constants_in([(work.statistics, work.rows) for work in pass_.works]):
            constant.save(self.cache / CONSTANTS)
        try:
            with self._sharing() as shared:
                works = [replace(work, split=shared.of(work.split)) for work in pass_.works]
                homes = [self.cache if _is_durable(w) else shared.directory for w in works]
                return [
                    mended(partial(self._run, halving, pass_, work, home))
                    for work, home in zip(works, homes, strict=True)
                ]
        except Exception as error:
            if lost := _lost(pass_, error):
                raise FeatfoldError(lost) from error
            raise

    def _sharing(self) -> AbstractContextManager[SharedRows]:
        from pipeline.store.shared import shared_rows  # zarr, which not every command needs

        return nullcontext(self.shared) if self.shared else shared_rows(self.cache)

    def _run(self, halving: Halving, pass_: Pass, work: Work, home: Path) -> Partial:
        read = 0
        for schedule in self.settings.schedules(work, home):
            try:
                read += self._drive(halving, pass_, schedule)
                stopping.check()
                root = root_of(schedule, read) if schedule.part is None else None
            finally:
                schedule.forget()
        assert root is not None  # the last schedule is that of all parts
        return root

    def _drive(self, halving: Halving, pass_: Pass, schedule: Schedule) -> int:
        """Run the steps in order, with a bounded number of folds in flight; return the bytes read.

        A task is let go once it is done and its merge is submitted, so that workers and scheduler
        forget it: what they hold does not grow with the number of blocks.
        """
        from distributed import as_completed

        token = uuid.uuid4().hex[:8]
        limit = window(sum(self.client.nthreads().values()))
        made: dict[tuple[str, str], Any] = {}
        # Not with_results: a connection that breaks while one is fetched would end in a wait.
        done = as_completed(loop=self.client.loop)
        flying: set[Any] = set()
        read: int = 0
        for step in schedule.steps:
            if stopping.requested():
                break
            if isinstance(step, MergeStep):
                future = self._merge(pass_, schedule, step, made, token)
            else:
                while len(flying) >= limit:
                    finished = done.next_batch()
                    flying.difference_update(finished)
                    read += self._gathered(finished, halving)
                future = self._fold(halving, pass_, schedule, step, token)
                flying.add(future)
            for name in step.inputs:
                made.pop(name, None)
            made |= dict.fromkeys(step.outputs, future)
            done.add(future)
        return read + sum(self._gathered(finished, halving) for finished in done.batches())

    def _gathered(self, futures: Sequence[Any], halving: Halving) -> int:
        """Return the bytes that tasks have read; raise what they raised, say what they noted."""
        read = 0
        for nbytes, notes in self.client.gather(futures):
            read += nbytes
            halving.tell(notes)
        return read

    def _fold(
        self, halving: Halving, pass_: Pass, schedule: Schedule, step: FoldStep, token: str
    ) -> Any:
        work = schedule.work_of(step)
        block = step.blocks[0]
        source = work.split.only(block) if len(step.blocks) == 1 else work.split
        future = self.client.submit(
            _fold_task, source, step, self.cache / CONSTANTS, schedule.partials.directory,
            halving,
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


def _lost(pass_: Pass, error: Exception) -> str:
    """Say what a pass has lost, workers or the scheduler; nothing for other errors."""
    if type(error).__name__ == "KilledWorker":
        return _lost_workers(pass_, error)
    return lost_scheduler(pass_.name, error)


def lost_scheduler(what: str, error: Exception) -> str:
    """Say that the scheduler is gone, where that is the error."""
    if type(error).__name__ not in ("FutureCancelledError", "CommClosedError"):
        return ""
    return (
        f"{what}: the scheduler is gone, or the connection to it; start it again, and run the same "
        "again. Finished blocks are kept"
    )


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


def _is_durable(work: Work) -> bool:
    """Tell whether partials of a work can be found again: its bytes are known by checksum."""
    return work.split.identity(work.split.blocks[0], frozenset()) is not None


def _fold_task(
    split: Split, step: FoldStep, constants: Path, partials: Path, halving: Halving
) -> Told:
    read_constants_from(constants, constants_in((step.statistics, step.tables)))
    _limit_blas()
    return run_fold(split, step, Partials(partials), halving), halving.notes


def _merge_task(step: MergeStep, directory: Path, thin: bool, needed: Sequence[Told]) -> Told:
    _limit_blas()
    run_merge(step, Partials(directory), thin)
    return 0, []


@cache
def _limit_blas() -> None:
    """Limit the threads of this worker for good: an end of the limit would reach other tasks."""
    threadpool_limits(BLAS_THREADS)
