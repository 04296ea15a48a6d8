"""The run: drives procedures pass by pass, and hands every yield what it asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from pipeline.chunk import Split
from pipeline.content import replaced
from pipeline.engine.pin import Pin, root_name
from pipeline.engine.serial import Execute, run_serial
from pipeline.engine.settings import BLAS_THREADS, Settings, mended
from pipeline.engine.tasks import root_of
from pipeline.errors import BudgetError, ConfigError, DataError
from pipeline.fold import AnyStatistic, Partial
from pipeline.jobs import Job, Trace
from pipeline.partials import RowTable
from pipeline.plan import Pass, Work, describe
from pipeline.procedure import REHEARSING, TRAIN, On, Passes, Procedure, Rows, together
from pipeline.synthetic import SyntheticSplit
from pipeline.views import Both, Correct, Finite, Valid


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
    pin: Pin | None = None,
) -> dict[str, Any]:
    """Advance all jobs in lockstep, one fused pass per yield; return their outcomes by name.

    ``pin`` holds all passes but the last of each job to the results of an earlier fit.

    Raises :class:`DataError` where a statistic finds no usable row.
    """
    with threadpool_limits(BLAS_THREADS):
        return _Run(jobs, execute, stage, skip_nonfinite, trace or Trace(), pin).outcomes()


class _Run:
    """The results that are known so far, and the passes that bring the missing ones."""

    def __init__(
        self,
        jobs: Mapping[str, Job],
        execute: Execute,
        stage: str,
        skip_nonfinite: bool,
        trace: Trace,
        pin: Pin | None,
    ) -> None:
        self.pin = pin
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
            turn = len(self.trace.turns)
            self._record(settled)
            results = {key: self._answer(turn, key, *settled[key]) for key in settled}

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

    def _record(self, settled: Mapping[str, tuple[tuple[Split, ...], Any]]) -> None:
        """Note which partials answer the requests of this turn, for a later fit to pin."""
        turn: dict[str, list[list[str]]] = {}
        if REHEARSING.get():
            settled = {}  # made-up rows leave no partials
        for key, (splits, asked) in settled.items():
            roots = [root_name(asked, split) for split in splits]
            if None not in roots and not isinstance(asked, Rows):
                turn[self._named(key)] = [list(root) for root in roots if root]
        self.trace.turns.append(turn)

    def _named(self, key: str) -> str:
        """Return the key of a request with the name of its job in place of its number."""
        return f"{self.names[self._job(key)]}/{key.partition('/')[2]}"

    def _answer(self, turn: int, key: str, splits: tuple[Split, ...], asked: Any) -> Any:
        """Return the result of a request from the states of its splits."""
        found = [self.known[split, asked] for split in splits]
        if isinstance(asked, Rows):
            return RowTable([part for parts in found for part in parts])
        if not sum(used for _, used in found):
            raise DataError(self._no_usable_row(splits, asked))
        pinned = self.pin.states(turn, self._named(key)) if self.pin else None
        if pinned is not None:
            self.trace.pinned.add(self.names[self._job(key)])
        first, *others = pinned or [state for state, _ in found]
        for other in others:
            first = asked.merge(first, other)
        return asked.finalize(first)

    def _no_usable_row(self, splits: tuple[Split, ...], statistic: AnyStatistic) -> str:
        names = " + ".join(split.name for split in splits)
        rows = sum(split.schema.rows for split in splits)
        asked_by = self.trace.passes[-1].asked_by.get(statistic, ())
        return (
            f"{names}: no usable row for {', '.join(asked_by)}: none of {rows} rows passes the "
            f"filter {statistic.where} of {describe(statistic)}; fits need labels >= 0"
        )


def rehearse(
    jobs: Mapping[str, Job], *, stage: str = "fit", skip_nonfinite: bool = False
) -> tuple[list[Pass], dict[str, Any]]:
    """Return the passes that jobs will need, and outcomes of the right shape; nothing is read.

    The jobs run over 64 synthetic rows that look like those of their splits.
    """
    trace = Trace()

    def execute(pass_: Pass) -> Sequence[Partial]:
        works = (_rehearsed(work) for work in pass_.works)
        return run_serial(replace(pass_, works=tuple(works)))

    token = REHEARSING.set(True)
    try:
        outcomes = run_jobs(jobs, execute, stage=stage, skip_nonfinite=skip_nonfinite, trace=trace)
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


def replay(
    jobs: Mapping[str, Job],
    settings: Settings,
    cache: Path,
    *,
    stage: str = "fit",
    skip_nonfinite: bool = False,
) -> tuple[list[Pass], Pass | None, dict[str, Any]]:
    """Run jobs on what earlier runs left in ``cache``; nothing else is read.

    Returns the passes that need no reading, the first that does (None if there is no such), and
    the outcomes where all passes were there.
    """
    return mended(partial(_replayed, jobs, settings, cache, stage, skip_nonfinite))


def _replayed(
    jobs: Mapping[str, Job], settings: Settings, cache: Path, stage: str, skip_nonfinite: bool
) -> tuple[list[Pass], Pass | None, dict[str, Any]]:
    trace = Trace()

    def execute(pass_: Pass) -> Sequence[Partial]:
        schedules = [settings.schedule(work, cache) for work in pass_.works]
        if any(schedule.steps for schedule in schedules):
            raise _UnfinishedError(pass_)
        return [root_of(schedule, 0) for schedule in schedules]

    try:
        outcomes = run_jobs(jobs, execute, stage=stage, skip_nonfinite=skip_nonfinite, trace=trace)
    except _UnfinishedError as unfinished:
        return trace.passes, unfinished.pass_, {}
    return trace.passes, None, outcomes


class _UnfinishedError(Exception):
    """A pass that cannot be answered from files."""

    def __init__(self, pass_: Pass) -> None:
        super().__init__(pass_.name)
        self.pass_ = pass_
