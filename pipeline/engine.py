"""The engine: drives procedures pass by pass, and walks one merge tree whoever executes it.

:func:`run_serial` is the specification: a few lines that compute the same numbers over the same
tree as threads and dask, which only run its folds and merges elsewhere. Block results are merged
eight to a node by their position in the manifest, never by who finished first.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from threadpoolctl import threadpool_limits

from pipeline.arrays import HOST, Place
from pipeline.chunk import Block, Split
from pipeline.content import constants_in, read_constants_from, replaced
from pipeline.errors import BudgetError, ConfigError, DataError, FeatfoldError
from pipeline.fold import AnyStatistic, Partial, RowTable, fold, merge
from pipeline.jobs import Job as Job
from pipeline.jobs import Trace as Trace
from pipeline.plan import FAN_IN, WINDOW, Pass, Work, describe
from pipeline.procedure import REHEARSING, TRAIN, On, Passes, Procedure, Rows, together
from pipeline.synthetic import SyntheticSplit
from pipeline.views import Both, Correct, Finite, Valid

BLAS_THREADS = 1
"""Threads of linear algebra, everywhere: its results differ in bits between thread counts."""
Finished = Callable[[Pass, Work, Block], None]
"""Told of every block that was folded."""


class Execute(Protocol):
    """Runs a pass and returns the merged partial of each of its works, in order."""

    def __call__(self, pass_: Pass) -> Sequence[Partial]: ...


def tree(leaves: Iterable[Any], join: Callable[[int, Any, Any], Any]) -> Any:
    """Merge leaves in the fixed tree, eight neighbours to a node, each as soon as it is there.

    ``join(level, left, right)`` merges two neighbours. Eight siblings are merged from left to
    right, and so are their nodes on the next level: the grouping depends on nothing but the number
    of leaves, and no more than one node of each level waits.
    """
    waiting: list[tuple[Any, int]] = []  # per level: the siblings merged so far, and their number

    def add(level: int, node: Any) -> None:
        if level == len(waiting):
            waiting.append((None, 0))
        left, count = waiting[level]
        node = join(level + 1, left, node) if count else node
        waiting[level] = (node, count + 1)
        if count + 1 == FAN_IN:
            waiting[level] = (None, 0)
            add(level + 1, node)

    for leaf in leaves:
        add(0, leaf)
    level = 0
    while level < len(waiting) - 1:
        node, count = waiting[level]
        if count:
            add(level + 1, node)
        level += 1
    return waiting[level][0]


def run_serial(pass_: Pass) -> Sequence[Partial]:
    """Run a pass in this thread, block after block: the specification of the other executors."""
    return [_run_work(work) for work in pass_.works]


def _run_work(work: Work) -> Partial:
    folds = (fold(work.statistics, work.split, block, work.rows) for block in work.split.blocks)
    return _merged(work, folds)


def _merged(work: Work, folds: Iterable[Partial]) -> Partial:
    return tree(folds, lambda _, left, right: merge(work.statistics, (left, right)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Threads:
    """Folds on threads of this process, each with one thread of linear algebra; merges here."""

    workers: int
    place: Place = HOST
    tables: Path | None = None
    finished: Finished | None = None

    def __call__(self, pass_: Pass) -> Sequence[Partial]:
        with ThreadPoolExecutor(self.workers, thread_name_prefix=pass_.name) as pool:
            try:
                return [_merged(work, self._folds(pool, pass_, work)) for work in pass_.works]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _folds(self, pool: ThreadPoolExecutor, pass_: Pass, work: Work) -> Iterator[Partial]:
        """Yield the partials of the blocks in order, with a bounded number in flight."""

        def fold_block(block: Block) -> Partial:
            partial = fold(work.statistics, work.split, block, work.rows, self.place, self.tables)
            if self.finished:
                self.finished(pass_, work, block)
            return partial

        flying: deque[Future[Partial]] = deque()
        for block in work.split.blocks:
            if len(flying) >= WINDOW * self.workers:
                yield flying.popleft().result()
            flying.append(pool.submit(fold_block, block))
        while flying:
            yield flying.popleft().result()


@dataclass(frozen=True)
class Dask:
    """Runs folds and merges as tasks of a dask client, named for its dashboard.

    Constants reach a worker as files of ``constants``, which all workers can read; only the root
    of each tree comes back to the client.
    """

    client: Any
    constants: Path
    place: Place = HOST
    tables: Path | None = None
    finished: Finished | None = None

    def __call__(self, pass_: Pass) -> Sequence[Partial]:
        for constant in constants_in([(work.statistics, work.rows) for work in pass_.works]):
            constant.save(self.constants)
        token = uuid.uuid4().hex[:8]
        try:
            roots = [self._submit(pass_, work, token) for work in pass_.works]
            return self.client.gather(roots)  # type: ignore[no-any-return]
        except Exception as error:
            if type(error).__name__ == "KilledWorker":
                raise FeatfoldError(_lost_workers(pass_, error)) from error
            raise

    def _submit(self, pass_: Pass, work: Work, token: str) -> Any:
        merges = iter(range(len(work.split.blocks)))

        def join(level: int, left: Any, right: Any) -> Any:
            key = (_merge_name(pass_), work.split.name, f"L{level}-{next(merges):04d}", token)
            return self.client.submit(_merge_task, work.statistics, left, right, key=key)

        return tree(self._folds(pass_, work, token), join)

    def _folds(self, pass_: Pass, work: Work, token: str) -> Iterator[Any]:
        """Submit the folds in order, with a bounded number in flight."""
        from distributed import wait

        window = WINDOW * max(1, sum(self.client.nthreads().values()))
        flying: set[Any] = set()
        for block in work.split.blocks:
            if len(flying) >= window:
                done, flying = wait(list(flying), return_when="FIRST_COMPLETED")
                for future in done:
                    if future.status == "error":  # raised now: no further block is read
                        future.result()
            future = self.client.submit(
                _fold_task, replace(work, split=work.split.only(block)), block, self,
                key=(pass_.name, work.split.name, f"block{block.index:04d}", token),
            )  # fmt: skip
            future.add_done_callback(lambda done, block=block: self._tell(done, pass_, work, block))
            flying.add(future)
            yield future

    def _tell(self, future: Any, pass_: Pass, work: Work, block: Block) -> None:
        if self.finished is not None and future.status == "finished":
            self.finished(pass_, work, block)

    def __reduce__(self) -> Any:
        # What a fold needs on a worker: everything but the client and the callback.
        return Dask, (None, self.constants, self.place, self.tables)


def _lost_workers(pass_: Pass, error: Any) -> str:
    """Say what kept killing its worker: a KilledWorker holds the key of the task."""
    _, split, block, _ = error.task
    return (
        f"{pass_.name}: {block} of {split} ended its worker {error.allowed_failures + 1} times, "
        "most likely for want of memory; see the projection of `featfold plan`, raise --memory, "
        "lower --workers, or leave out detectors"
    )


def _merge_name(pass_: Pass) -> str:
    return pass_.name.replace("fit", "merge") if pass_.stage == "fit" else f"merge-{pass_.name}"


def _fold_task(work: Work, block: Block, settings: Dask) -> Partial:
    read_constants_from(settings.constants, constants_in((work.statistics, work.rows)))
    _limit_blas()
    return fold(work.statistics, work.split, block, work.rows, settings.place, settings.tables)


def _merge_task(statistics: Sequence[AnyStatistic], left: Partial, right: Partial) -> Partial:
    _limit_blas()
    return merge(statistics, (left, right))


@cache
def _limit_blas() -> None:
    """Limit the threads of this worker for good: an end of the limit would reach other tasks."""
    threadpool_limits(BLAS_THREADS)


def run(
    procedures: Mapping[str, Procedure[Any]],
    splits: Mapping[str, Split | Sequence[Split]] | Split,
    execute: Execute = run_serial,
) -> dict[str, Any]:
    """Run procedures over splits by role (``train``, ``val``, ``val_ood``); return their outcomes.

    A single split is the ``train`` one; a sequence of splits counts as their concatenation.
    """
    roles = splits if isinstance(splits, Mapping) else {TRAIN: splits}
    whole = {
        role: tuple(given) if isinstance(given, Sequence) else (given,)
        for role, given in roles.items()
    }
    return run_jobs({name: Job(p, whole) for name, p in procedures.items()}, execute)


def run_jobs(
    jobs: Mapping[str, Job],
    execute: Execute = run_serial,
    *,
    stage: str = "fit",
    skip_nonfinite: bool = False,
    trace: Trace | None = None,
) -> dict[str, Any]:
    """Advance all jobs in lockstep, one fused pass per yield; return their outcomes by name.

    Raises :class:`DataError` where a statistic finds no usable row.
    """
    with threadpool_limits(BLAS_THREADS):
        return _Run(jobs, execute, stage, skip_nonfinite, trace or Trace()).outcomes()


class _Run:
    """The results that are known so far, and the passes that bring the missing ones."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        execute: Execute,
        stage: str,
        skip_nonfinite: bool,
        trace: Trace,
    ) -> None:
        self.jobs = list(jobs.values())
        self.names = list(jobs)
        self.askers = [job.asker or name for name, job in jobs.items()]
        self.execute, self.stage, self.trace = execute, stage, trace
        self.skip_nonfinite = skip_nonfinite
        self.known: dict[tuple[Split, Any], Any] = {}

    def outcomes(self) -> dict[str, Any]:
        lockstep: Passes[dict[str, Any]] = together(
            {str(n): job.procedure.passes(job.schema) for n, job in enumerate(self.jobs)}
        )
        results: Mapping[str, Any] | None = None
        while True:
            try:
                asked = next(lockstep) if results is None else lockstep.send(results)
            except StopIteration as stop:
                return dict(zip(self.names, stop.value.values(), strict=True))
            settled = {key: self._settle(key, request) for key, request in asked.items()}
            self._learn(settled)
            results = {key: self._answer(*wanted) for key, wanted in settled.items()}

    def _job(self, key: str) -> int:
        return int(key.partition("/")[0])

    def _settle(self, key: str, request: Any) -> tuple[tuple[Split, ...], Any]:
        """Return the splits of a request and the statistic or rows it stands for."""
        job = self.jobs[self._job(key)]
        role, asked = (
            (request.role, request.statistic) if isinstance(request, On) else (TRAIN, request)
        )
        if role not in job.splits:
            raise ConfigError(
                f"{self.askers[self._job(key)]} needs a {role!r} split; given: "
                f"{', '.join(sorted(job.splits))}"
            )
        if self.skip_nonfinite and isinstance(asked, Rows):
            asked = replaced(asked, strict=False)
        elif self.skip_nonfinite:
            finite = Finite(tuple(sorted(asked.fields - {"is_ood"})))
            asked = replaced(asked, where=Both(asked.where, finite))
        return job.splits[role], asked

    def _learn(self, settled: Mapping[str, tuple[tuple[Split, ...], Any]]) -> None:
        """Run one pass for what is asked and not yet known."""
        missing: dict[Split, dict[Any, None]] = {}
        askers: dict[Any, dict[str, None]] = {}
        for key, (splits, asked) in settled.items():
            askers.setdefault(asked, {})[self.askers[self._job(key)]] = None
            for split in splits:
                if (split, asked) not in self.known:
                    missing.setdefault(split, {})[asked] = None
        if not missing:
            return
        works = tuple(
            Work(
                split,
                tuple(a for a in asked if not isinstance(a, Rows)),
                tuple(a for a in asked if isinstance(a, Rows)),
            )
            for split, asked in missing.items()
        )
        asked_by = {asked: tuple(names) for asked, names in askers.items()}
        pass_ = Pass(self.stage, len(self.trace.passes) + 1, works, asked_by)
        began = time.perf_counter()
        roots = self.execute(pass_)
        self.trace.passes.append(pass_)
        self.trace.seconds.append(time.perf_counter() - began)
        for work, root in zip(works, roots, strict=True):
            self._keep(work, root, asked_by)

    def _keep(self, work: Work, root: Partial, asked_by: Mapping[Any, tuple[str, ...]]) -> None:
        self.trace.read_nbytes += root.read_nbytes
        for statistic, state, used in zip(work.statistics, root.states, root.used, strict=True):
            self.known[work.split, statistic] = (state, used)
            self.trace.rows_used[work.split.name, statistic] = (used, root.rows)
        for rows, parts in zip(work.rows, root.outputs, strict=True):
            self.known[work.split, rows] = parts

    def _answer(self, splits: tuple[Split, ...], asked: Any) -> Any:
        """Return the result of a request from the states of its splits."""
        found = [self.known[split, asked] for split in splits]
        if isinstance(asked, Rows):
            return RowTable([part for parts in found for part in parts])
        if not sum(used for _, used in found):
            raise DataError(self._no_usable_row(splits, asked))
        state = found[0][0]
        for other, _ in found[1:]:
            state = asked.merge(state, other)
        return asked.finalize(state)

    def _no_usable_row(self, splits: tuple[Split, ...], statistic: AnyStatistic) -> str:
        names = " + ".join(split.name for split in splits)
        rows = sum(split.schema.rows for split in splits)
        asked_by = self.trace.passes[-1].asked_by.get(statistic, ())
        return (
            f"{names}: no usable row for {', '.join(asked_by)}: none of {rows} rows passes the "
            f"filter {statistic.where} of {describe(statistic)}; fits need labels >= 0"
        )


def rehearse(jobs: Mapping[str, Job], *, stage: str = "fit") -> tuple[list[Pass], dict[str, Any]]:
    """Return the passes that jobs will need, and outcomes of the right shape; nothing is read.

    The jobs run over 64 synthetic rows that look like those of their splits.
    """
    trace = Trace()

    def execute(pass_: Pass) -> Sequence[Partial]:
        works = (_rehearsed(work) for work in pass_.works)
        return run_serial(replace(pass_, works=tuple(works)))

    token = REHEARSING.set(True)
    try:
        outcomes = run_jobs(jobs, execute, stage=stage, trace=trace)
    except MemoryError as error:
        raise BudgetError(
            f"the states of this job do not fit this process: {error}; check classes and shapes"
        ) from error
    finally:
        REHEARSING.reset(token)
    return trace.passes, outcomes


def _rehearsed(work: Work) -> Work:
    """Return the work over synthetic rows: a known head may well get none of them right."""
    statistics = tuple(
        replaced(s, where=Valid()) if isinstance(s.where, Correct) else s for s in work.statistics
    )
    return replace(work, split=SyntheticSplit.of(work.split), statistics=statistics)
