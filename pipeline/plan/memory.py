"""Memory: what a pass holds on a worker, and what a job holds where it was started."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.arrays.devices import SLOTS
from pipeline.bank import BANK_LIMIT_NBYTES, group_nbytes, searches, streamed, waiting
from pipeline.chunk import Split
from pipeline.content import constants_in
from pipeline.fold import AnyStatistic, closure, grain_rows, group_of, row_nbytes, step_of
from pipeline.plan.passes import WINDOW, Pass, Work, levels_in_a_task
from pipeline.pooled import pools

NARROWEST = 2**62
"""Asks for as many stripes as there are classes or positions."""
SLACK_NBYTES = 8 * 2**20
"""How far what a worker holds before any work varies, and what is lost between its arrays."""
DEVICE_SLACK_NBYTES = 40 * 2**20
"""What libraries of linear algebra keep of a device's pool, and what is lost between its arrays."""
KEPT_NBYTES = 32 * 2**20
"""Freed memory that an allocator keeps: that of arrays below this size."""
TASK_NBYTES = 16 * 1024
"""What a client, and the scheduler within it, keep of a task."""
SOLVING = 4
"""Matrices as large as the largest result, beside it, while a procedure solves for a scorer."""


@dataclass(frozen=True)
class Part:
    """One term of the memory of a process."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Projection:
    """Memory that one process needs, by part, and the statistic that costs most."""

    parts: tuple[Part, ...]
    worst: AnyStatistic | None = None
    worst_nbytes: int = 0
    asked_by: tuple[str, ...] = ()
    shrink: int = 0
    """The rows that are read at once are halved so many times."""
    device: Projection | None = None
    """That of the device of a worker, where it has one."""

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return _total(self.parts)

    @property
    def facts(self) -> dict[str, Any]:
        """What ``plan --json`` says of it."""
        return {
            "projected_nbytes": self.nbytes,
            "parts": {part.name: part.nbytes for part in self.parts},
        }


def project(
    pass_: Pass, reserved_nbytes: int, shrink: int = 0, *, on_device: bool = False
) -> Projection:
    """Project the memory of a worker: the largest of the works of a pass, folding or merging.

    ``shrink`` halves the rows that are read at once. The worst statistic is the one whose states,
    temporaries and views are largest by themselves. Where rows are folded ``on_device``, the host
    brings them there and merges what comes home; the projection of the device comes with it.
    """
    each = [_project_work(work, reserved_nbytes, shrink, on_device) for work in pass_.works]
    parts = max(each, key=_total, default=(Part("reserved", reserved_nbytes),))
    found = _with_worst(pass_, parts, shrink, _merged_nbytes if on_device else _own_nbytes)
    return replace(found, device=project_device(pass_, shrink)) if on_device else found


def project_device(pass_: Pass, shrink: int = 0) -> Projection:
    """Project the memory of the device of a worker, beside its context.

    The largest of the works of a pass: the slots that rows arrive in, views, states, and the most
    that one statistic takes to absorb rows or to close its state. Nothing is merged there.
    """
    each = [_project_fold(work, shrink) for work in pass_.works]
    return _with_worst(pass_, max(each, key=_total, default=()), shrink, _folded_nbytes)


def _with_worst(
    pass_: Pass,
    parts: tuple[Part, ...],
    shrink: int,
    own_nbytes: Callable[[AnyStatistic, Split, int], int],
) -> Projection:
    own = {s: own_nbytes(s, work.split, shrink) for work in pass_.works for s in work.statistics}
    worst = max(own, key=own.__getitem__, default=None)
    if worst is None:
        return Projection(parts, shrink=shrink)
    return Projection(parts, worst, own[worst], pass_.asked_by.get(worst, ()), shrink)


def project_client(
    passes: Sequence[Pass], reserved_nbytes: int, workers: int, fitted: Any = ()
) -> Projection:
    """Project the memory of the process that drives a job, beside its workers.

    It keeps what was merged, and its result, of every statistic of a stage: what is cut into
    stripes is whole here, and so is what is ``fitted`` from it. Of splits in memory it holds the
    partials that are not merged yet, too; those of stored splits are files.
    """
    stages = {pass_.stage: [p for p in passes if p.stage == pass_.stage] for pass_ in passes}
    works = [work for pass_ in passes for work in pass_.works]
    constants = {c for work in works for c in constants_in((work.statistics, work.rows))}
    constants.update(constants_in(fitted))
    scorers = sum(math.prod(c.shape) * c.dtype.itemsize for c in constants)
    parts = max(
        (_stage_parts(several, workers) for several in stages.values()), key=_total, default=()
    )
    sizes = {
        statistic: statistic.state_nbytes(work.split.schema)
        for work in works
        for statistic in work.statistics
    }
    worst = max(sizes, key=sizes.__getitem__, default=None)
    whole = (Part("reserved", reserved_nbytes), Part("scorers", scorers), *parts)
    if worst is None:
        return Projection(whole)
    asked_by = next(pass_.asked_by[worst] for pass_ in passes if worst in pass_.asked_by)
    return Projection(whole, worst, sizes[worst], asked_by)


def _stage_parts(passes: Sequence[Pass], workers: int) -> tuple[Part, ...]:
    works = [work for pass_ in passes for work in pass_.works]
    states = [*_kept_nbytes(works), max((_passing_nbytes(pass_) for pass_ in passes), default=0)]
    waiting = max((_waiting_nbytes(work, workers) for work in works), default=0)
    return (
        Part("states", sum(states)),
        Part("results", sum(states)),
        Part("solving", SOLVING * max(map(_solved_nbytes, works), default=0)),
        Part("partials", waiting),
        Part(
            "tables",
            sum(_tables_nbytes(work, pass_.stage) for pass_ in passes for work in pass_.works),
        ),
        Part("tasks", TASK_NBYTES * max((pass_.tasks for pass_ in passes), default=0)),
    )


def _kept_nbytes(works: Sequence[Work]) -> Iterator[int]:
    """Yield the bytes of the states that outlive their pass."""
    for work in works:
        for statistic in work.statistics:
            if not getattr(statistic, "transient", False):
                yield statistic.state_nbytes(work.split.schema)


def _passing_nbytes(pass_: Pass) -> int:
    """Bytes of the states of a pass that are let go of once they are answered."""
    return sum(
        statistic.state_nbytes(work.split.schema)
        for work in pass_.works
        for statistic in work.statistics
        if getattr(statistic, "transient", False)
    )


def _solved_nbytes(work: Work) -> int:
    """Bytes of the largest state, or of one class or position where there is a matrix for each."""
    schema = work.split.schema
    parts = ((s.stripes(schema, NARROWEST) or [s])[0] for s in work.statistics)
    return max((part.state_nbytes(schema) for part in parts), default=0)


def _waiting_nbytes(work: Work, workers: int) -> int:
    """Bytes of the partials of a split in memory that wait for their neighbours."""
    split = work.split
    if not split.blocks or split.identity(split.blocks[0], frozenset()) is not None:
        return 0
    levels = len(split.blocks).bit_length() // 3 + 1
    return (WINDOW * workers + levels) * _sum_of_states(work)


def _tables_nbytes(work: Work, stage: str) -> int:
    """Bytes of what becomes of tables of rows: arrays of splits in memory, and banks.

    What a fit asks for of a stored split becomes a bank, unless that is too large and stays in the
    files. One at a time, it is there twice.
    """
    split = work.split
    sizes = [8 * split.schema.rows * math.prod(r.view.shape(split.schema)) for r in work.rows]
    if not split.blocks or split.identity(split.blocks[0], frozenset()) is None:
        return 2 * sum(sizes) + max(sizes, default=0)
    limit = BANK_LIMIT_NBYTES if stage == "fit" else 0
    held = [min(nbytes, limit) for nbytes in sizes if nbytes <= 2 * limit]  # of float32, half
    return sum(held) + max(held, default=0)


def _sum_of_states(work: Work) -> int:
    return sum(s.state_nbytes(work.split.schema) for s in work.statistics)


def _total(parts: Sequence[Part]) -> int:
    return sum(part.nbytes for part in parts)


def _project_work(
    work: Work, reserved_nbytes: int, shrink: int, on_device: bool
) -> tuple[Part, ...]:
    split, schema = work.split, work.split.schema
    sizes = [s.state_nbytes(schema) for s in work.statistics]
    folding = (
        # While a task folds a run of blocks, a node of each level waits.
        Part("states", sum(sizes) * (1 + levels_in_a_task(work))),
        Part("chunk", split.reading_nbytes(work.fields, step_of(split, work.statistics, shrink))),
        *(_feeding(work, shrink) if on_device else _computing(work, shrink)),
        Part("outputs", _outputs_nbytes(work)),
    )
    # A merge holds two partials of one statistic and their merge, beside what the allocator has not
    # given back of folding.
    merge_work = max((s.work_nbytes(schema, 0) for s in work.statistics), default=0)
    kept = min(KEPT_NBYTES, sum(part.nbytes for part in folding[1:]))
    merging = (Part("merge", 3 * max(sizes, default=0) + merge_work), Part("kept", kept))
    return (
        Part("reserved", reserved_nbytes),
        Part("slack", SLACK_NBYTES),
        Part("constants", _constants_nbytes(work)),
        *max(folding, merging, key=_total),  # a worker does one of them at a time
    )


def _project_fold(work: Work, shrink: int) -> tuple[Part, ...]:
    """Return what the device of a worker holds while it folds a block."""
    sizes = [s.state_nbytes(work.split.schema) for s in work.statistics]
    views, folding = _computing(work, shrink)
    closing = max((_closing_nbytes(s, work.split) for s in work.statistics), default=0)
    constants = set(constants_in((work.statistics, work.rows)))
    return (
        Part("slack", DEVICE_SLACK_NBYTES),
        Part("constants", sum(math.prod(c.shape) * c.dtype.itemsize for c in constants)),
        Part("slots", _slots_nbytes(work, shrink)),
        Part("states", sum(sizes)),
        views,
        Part("work", max(folding.nbytes, closing)),
    )


def _computing(work: Work, shrink: int) -> tuple[Part, Part]:
    """Return the views of a step, with rows that wait for a grain, and the largest temporaries."""
    split = work.split
    held = sum(_held_nbytes(s, split, _rows_at_once(s, work, shrink)) for s in work.statistics)
    folding = max((_work_nbytes(s, split) for s in work.statistics), default=0)
    return Part("views", _views_nbytes(work, shrink) + held), Part("work", folding)


def _feeding(work: Work, shrink: int) -> tuple[Part, ...]:
    """Return what a host holds of rows on their way to a device, of tiles of banks, of tables."""
    requests: tuple[Any, ...] = (*work.statistics, *work.rows)
    banks = [view.bank for view in searches(waiting(requests))]  # type: ignore[attr-defined]
    rows = _rows_of_a_step(work, shrink)
    return (
        Part("pinned", _slots_nbytes(work, shrink)),
        Part("banks", max((bank.reading_nbytes for bank in banks), default=0)),
        Part("tables", 8 * rows * max(_table_widths(work), default=0)),
    )


def _slots_nbytes(work: Work, shrink: int) -> int:
    """Bytes of the slots in which steps of rows wait, on the host as on the device."""
    rows = _rows_of_a_step(work, shrink)
    specs = (work.split.schema.arrays[name] for name in work.fields)
    return SLOTS * rows * sum(math.prod(spec.shape) * spec.memory_dtype.itemsize for spec in specs)


def _rows_of_a_step(work: Work, shrink: int) -> int:
    return min(step_of(work.split, work.statistics, shrink), _block_rows(work.split))


def _outputs_nbytes(work: Work) -> int:
    """Bytes of the tables of a block."""
    return 8 * _block_rows(work.split) * sum(_table_widths(work))


def _table_widths(work: Work) -> list[int]:
    """Return the numbers in a row of each table, the pooled copies that a pass keeps among them."""
    views = [view for statistic in work.statistics for view in statistic.views]
    tables = [table for table, _ in pools(views, work.split)]
    return [math.prod(table.view.shape(work.split.schema)) for table in (*work.rows, *tables)]


def _constants_nbytes(work: Work) -> int:
    """Bytes of the fitted arrays that a worker loads, and of the copy while it checks one."""
    distinct = set(constants_in((work.statistics, work.rows)))
    sizes = [math.prod(constant.shape) * constant.dtype.itemsize for constant in distinct]
    return sum(sizes) + max(sizes, default=0)


def _own_nbytes(statistic: AnyStatistic, split: Split, shrink: int) -> int:
    """Bytes that a statistic needs by itself, apart from reading."""
    parts = _computing(Work(split, (statistic,)), shrink)
    return 3 * statistic.state_nbytes(split.schema) + _total(parts)


def _folded_nbytes(statistic: AnyStatistic, split: Split, shrink: int) -> int:
    """Bytes that a statistic needs by itself on a device: its state, and to fold or to close it."""
    views, work = _computing(Work(split, (statistic,)), shrink)
    state = statistic.state_nbytes(split.schema)
    return state + max(views.nbytes + work.nbytes, _closing_nbytes(statistic, split))


def _merged_nbytes(statistic: AnyStatistic, split: Split, shrink: int) -> int:
    """Bytes that a statistic needs by itself where it is merged only."""
    return 3 * statistic.state_nbytes(split.schema) + statistic.work_nbytes(split.schema, 0)


def _closing_nbytes(statistic: AnyStatistic, split: Split) -> int:
    """Bytes of a closed state, beside the open one it is made of."""
    return statistic.state_nbytes(split.schema) + statistic.work_nbytes(split.schema, 0)


def _views_nbytes(work: Work, shrink: int) -> int:
    """Bytes that distinct views, and those they are made of, hold for the rows of a step.

    What waits for a search in a bank in files holds a group of rows, and what they are made of.
    """
    split = work.split
    requests: tuple[Any, ...] = (*work.statistics, *work.rows)
    views = {view for request in requests for view in closure(request.views)}
    step, group = step_of(split, work.statistics, shrink), _group_rows(work, shrink)
    late = waiting(requests)
    nbytes = sum(
        view.nbytes(split.schema, group if streamed(view) else step)
        for view in views.union(searches(late))
    )
    return nbytes + group_nbytes(late, split.schema, group)


def _group_rows(work: Work, shrink: int) -> int:
    """Return the rows of a group that searches banks in files, none longer than a block."""
    rows = group_of(work.split, work.statistics, work.rows, shrink)
    return min(rows, _block_rows(work.split))


def _rows_at_once(statistic: AnyStatistic, work: Work, shrink: int) -> int:
    """Return the rows that come to a statistic at a time: a step, or a group that searches."""
    if waiting([statistic]):
        return _group_rows(work, shrink)
    return step_of(work.split, work.statistics, shrink)


def _block_rows(split: Split) -> int:
    """Return the rows of the largest block."""
    return max((block.rows for block in split.blocks), default=0)


def _grain(statistic: AnyStatistic, split: Split) -> int:
    """Return the rows that are absorbed at once: a grain, or a block where that is smaller."""
    return min(grain_rows(statistic, split.schema), _block_rows(split))


def _work_nbytes(statistic: AnyStatistic, split: Split) -> int:
    return statistic.work_nbytes(split.schema, _grain(statistic, split))


def _held_nbytes(statistic: AnyStatistic, split: Split, step_rows: int) -> int:
    """Bytes of the views that wait for a grain to fill: none where whole grains are read."""
    grain = _grain(statistic, split)
    if grain and min(step_rows, _block_rows(split)) % grain == 0:
        return 0
    return grain * sum(row_nbytes(view, split.schema) for view in statistic.views)
