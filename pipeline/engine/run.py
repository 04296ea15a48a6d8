"""The run: drives procedures pass by pass, and hands every yield what it asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from pipeline.chunk import Split
from pipeline.content import replaced
from pipeline.engine.pin import Pin, root_name
from pipeline.engine.serial import Execute, run_serial, run_work
from pipeline.engine.settings import BLAS_THREADS
from pipeline.errors import BudgetError, ConfigError, DataError
from pipeline.fold import AnyStatistic, Partial, by_element
from pipeline.jobs import Job, Trace
from pipeline.machine import give_back, memory_limit_nbytes
from pipeline.partials import RowTable
from pipeline.plan import (
    Pass,
    Room,
    Work,
    check_client,
    describe,
    in_stripes,
    pieces_of,
    project_client,
)
from pipeline.procedure import REHEARSING, TRAIN, On, Passes, Procedure, Rows, together
from pipeline.synthetic import SyntheticSplit
from pipeline.views import Both, Correct, Finite, Valid


def run(
    procedures: Mapping[str, Procedure[Any]],
    splits: Mapping[str, Split | Sequence[Split]] | Split,
    execute: Execute = run_serial,
    *,
    skip_nonfinite: bool = False,
) -> dict[str, Any]:
    """Run procedures over splits by role (``train``, ``val``, ``val_ood``); return their outcomes.

    A single split is the ``train`` one; a sequence of splits counts as their concatenation.
    """
    roles = splits if isinstance(splits, Mapping) else {TRAIN: splits}
    whole = {
        role: tuple(given) if isinstance(given, Sequence) else (given,)
        for role, given in roles.items()
    }
    jobs = {name: Job(p, whole) for name, p in procedures.items()}
    return run_jobs(jobs, execute, skip_nonfinite=skip_nonfinite)


def run_jobs(
    jobs: Mapping[str, Job],
    execute: Execute = run_serial,
    *,
    stage: str = "fit",
    skip_nonfinite: bool = False,
    trace: Trace | None = None,
    pin: Pin | None = None,
    room: Room | None = None,
) -> dict[str, Any]:
    """Advance all jobs in lockstep, one fused pass per yield; return their outcomes by name.

    ``pin`` holds all passes but the last of each job to the results of an earlier fit. ``room``
    is what a worker may hold: states that are larger are folded stripe by stripe, in more passes.

    Raises :class:`DataError` where a statistic finds no usable row.
    """
    with threadpool_limits(BLAS_THREADS):
        return _Run(jobs, execute, stage, skip_nonfinite, trace or Trace(), pin, room).outcomes()


class _Found(NamedTuple):
    """What a split holds of a statistic, or of a stripe of it."""

    statistic: AnyStatistic
    state: Any
    used: int


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
        room: Room | None,
    ) -> None:
        self.pin, self.room = pin, room
        self.stripes: dict[AnyStatistic, int] = {}
        self.jobs = list(jobs.values())
        self.names = list(jobs)
        self.askers = [job.asker or name for name, job in jobs.items()]
        self.execute, self.stage, self.trace = execute, stage, trace
        self.skip_nonfinite = skip_nonfinite
        self.known: dict[tuple[Split, Any], Any] = {}
        """Rows, or the stripes of a statistic: one, where it is not cut."""

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
            results = None  # what a procedure does not keep makes room for what it asks next
            settled = {key: self._settle(key, request) for key, request in asked.items()}
            self._learn(settled)
            turn = len(self.trace.turns)
            self._record(settled)
            results = {key: self._answer(turn, key, *settled[key]) for key in settled}
            self._forget(settled)

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
        if self.room is not None:
            self.stripes = {**self.room.stripes(pass_), **self.stripes}
        for part in in_stripes(pass_, self.stripes):
            began = time.perf_counter()
            roots = self.execute(part)
            give_back()  # what folds have freed, before the algebra takes its own
            self.trace.passes.append(part)
            self.trace.seconds.append(time.perf_counter() - began)
            for work, root in zip(part.works, roots, strict=True):
                self._keep(work, root)
        for work in works:
            for statistic in work.statistics:
                pieces = self._pieces(work.split, statistic)
                self.known[work.split, statistic] = [
                    found for piece in pieces for found in self.known[work.split, piece]
                ]

    def _pieces(self, split: Split, statistic: AnyStatistic) -> Sequence[AnyStatistic]:
        return pieces_of(statistic, split.schema, self.stripes.get(statistic, 1))

    def _keep(self, work: Work, root: Partial) -> None:
        self.trace.read_nbytes += root.read_nbytes
        for statistic, state, used in zip(work.statistics, root.states, root.used, strict=True):
            self.known[work.split, statistic] = [_Found(statistic, state, used)]
            self.trace.rows_used[work.split.name, statistic] = (used, root.rows)
        for rows, parts in zip(work.rows, root.outputs, strict=True):
            self.known[work.split, rows] = parts

    def _record(self, settled: Mapping[str, tuple[tuple[Split, ...], Any]]) -> None:
        """Note which partials answer the requests of this turn, for a later fit to pin."""
        turn: dict[str, list[list[str]]] = {}
        if REHEARSING.get():
            settled = {}  # made-up rows leave no partials
        for key, (splits, asked) in settled.items():
            if isinstance(asked, Rows):
                continue
            each = [self._pieces(split, asked) for split in splits]
            for number, pieces in enumerate(zip(*each, strict=True), 1):
                pairs = zip(pieces, splits, strict=True)
                roots = [root_name(piece, split) for piece, split in pairs]
                if None not in roots:
                    name = self._named(key, number, len(each[0]))
                    # A fit that is pinned to a pinned one keeps what that kept.
                    kept = self.pin.roots(len(self.trace.turns), name) if self.pin else None
                    turn[name] = [list(root) for root in kept or roots if root]
        self.trace.turns.append(turn)

    def _forget(self, settled: Mapping[str, tuple[tuple[Split, ...], Any]]) -> None:
        """Let go of states that nobody asks for again, such as those of one range of many."""
        for splits, asked in settled.values():
            if getattr(asked, "transient", False):
                for split in splits:
                    self.known.pop((split, asked), None)

    def _named(self, key: str, number: int, pieces: int) -> str:
        """Return the key of a request with the name of its job in place of its number."""
        stripe = f" {number}/{pieces}" if pieces > 1 else ""
        return f"{self.names[self._job(key)]}/{key.partition('/')[2]}{stripe}"

    def _answer(self, turn: int, key: str, splits: tuple[Split, ...], asked: Any) -> Any:
        """Return the result of a request from the states of its splits."""
        found = [self.known[split, asked] for split in splits]
        if isinstance(asked, Rows):
            return RowTable([part for parts in found for part in parts])
        if not sum(first.used for first, *_ in found) and not all(map(by_element, splits)):
            raise DataError(self._no_usable_row(splits, asked))
        pieces = list(zip(*found, strict=True))
        results = [
            self._result(turn, self._named(key, number, len(pieces)), of_splits)
            for number, of_splits in enumerate(pieces, 1)
        ]
        return results[0] if len(results) == 1 else asked.join(results)

    def _result(self, turn: int, name: str, of_splits: Sequence[_Found]) -> Any:
        """Return the result of a statistic, or of a stripe of it, over all splits."""
        pinned = self.pin.states(turn, name) if self.pin else None
        if pinned is not None:
            self.trace.pinned.add(name.partition("/")[0])
        statistic = of_splits[0].statistic
        first, *others = pinned or [found.state for found in of_splits]
        for other in others:
            first = statistic.merge(first, other)
        return statistic.finalize(first)

    def _no_usable_row(self, splits: tuple[Split, ...], statistic: AnyStatistic) -> str:
        names = " + ".join(split.name for split in splits)
        rows = sum(split.schema.rows for split in splits)
        asked_by = self.trace.passes[-1].asked_by.get(statistic, ())
        return (
            f"{names}: no usable row for {', '.join(asked_by)}: none of {rows} rows passes the "
            f"filter {statistic.where} of {describe(statistic)}; fits need labels >= 0"
        )


Known = Callable[[Work], Partial | None]
"""Returns what earlier runs left of a work, where that is all of it."""


def nothing_known(work: Work) -> None:
    """Return nothing: there was no earlier run."""


def rehearse(
    jobs: Mapping[str, Job],
    *,
    stage: str = "fit",
    skip_nonfinite: bool = False,
    known: Known = nothing_known,
    pin: Pin | None = None,
    room: Room | None = None,
) -> tuple[list[Pass], dict[str, Any]]:
    """Return the passes that jobs will need, and outcomes of the right shape; no data is read.

    What is not ``known`` comes from a few synthetic rows that look like those of the split.
    """
    trace = Trace()

    def execute(pass_: Pass) -> Sequence[Partial]:
        _check_room(pass_)
        found = [known(work) for work in pass_.works]
        if None in found:
            REHEARSING.set(True)
        pairs = zip(pass_.works, found, strict=True)
        return [partial or run_work(_rehearsed(work)) for work, partial in pairs]

    token = REHEARSING.set(False)
    try:
        outcomes = run_jobs(
            jobs, execute, stage=stage, skip_nonfinite=skip_nonfinite, trace=trace, pin=pin,
            room=room,
        )  # fmt: skip
    except MemoryError as error:
        if isinstance(error, BudgetError):
            raise
        raise BudgetError(
            f"the states of this job do not fit this process: {error}; check classes and shapes"
        ) from error
    finally:
        REHEARSING.reset(token)
    return trace.passes, outcomes


def _check_room(pass_: Pass) -> None:
    """Raise :class:`BudgetError` where this process could not hold the results of a pass."""
    needed = project_client([pass_], 0, 1)
    limit = memory_limit_nbytes()
    if needed.nbytes > limit:
        check_client(needed, limit)


def _rehearsed(work: Work) -> Work:
    """Return the work over synthetic rows: a known head may well get none of them right."""
    statistics = tuple(
        replaced(s, where=Valid()) if isinstance(s.where, Correct) else s for s in work.statistics
    )
    # A row for every class makes scorers as large as they will be; but where a class has a matrix
    # of its own, matrices of nothing but zeros take no memory.
    small = all(s.stripes(work.split.schema, 2) is None for s in work.statistics)
    made_up = SyntheticSplit.of(work.split, every_class=small)
    return replace(work, split=made_up, statistics=statistics)
