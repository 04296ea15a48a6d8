"""The plan: what a pass reads and holds, known and checked before the first byte is read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.chunk import Split
from pipeline.content import constants_in
from pipeline.errors import BudgetError
from pipeline.fold import AnyStatistic, closure, fields_read, grain_rows, step_of
from pipeline.partials import FAN_IN
from pipeline.pooled import pools
from pipeline.procedure import Rows
from pipeline.statistics import fields_of
from pipeline.views import View

KNOBS = 3
TASKS_LIMIT = 10_000
"""Most tasks of a pass: above, a task folds a run of 8^k blocks."""
WINDOW = 2
"""Folds in flight per worker: one runs while the next is on its way."""


@dataclass(frozen=True)
class Work:
    """What one pass does to one split."""

    split: Split
    statistics: tuple[AnyStatistic, ...]
    rows: tuple[Rows, ...] = ()

    @property
    def fields(self) -> frozenset[str]:
        """Stored arrays that are read; all others stay closed."""
        return fields_read(self.split, self.statistics, self.rows)

    @property
    def read_nbytes(self) -> int:
        """Logical bytes that are read."""
        return self.split.schema.rows * self.split.schema.row_nbytes(self.fields)


@dataclass(frozen=True)
class Pass:
    """One sweep over the data: the fused requests of everybody."""

    stage: str
    """``fit`` or ``score``: what people call this part of the job."""
    number: int
    works: tuple[Work, ...]
    asked_by: Mapping[AnyStatistic | Rows, tuple[str, ...]]
    """Names of the procedures that asked for each statistic or output."""

    @property
    def name(self) -> str:
        """Name in logs and on the dashboard, e.g. ``fit-pass1``."""
        return f"{self.stage}-pass{self.number}" if self.stage == "fit" else self.stage

    @property
    def read_nbytes(self) -> int:
        """Logical bytes that are read."""
        return sum(work.read_nbytes for work in self.works)

    @property
    def blocks(self) -> int:
        """Number of blocks, each a task."""
        return sum(len(work.split.blocks) for work in self.works)


@dataclass(frozen=True)
class Pending:
    """What is left to read of a pass, and the disk that its new partials take."""

    blocks: int
    read_nbytes: int
    partials_nbytes: int


@dataclass(frozen=True)
class Part:
    """One term of the memory of a worker."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Projection:
    """Memory that one worker needs for a pass, by part, and the statistic that costs most."""

    parts: tuple[Part, ...]
    worst: AnyStatistic | None
    worst_nbytes: int
    asked_by: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes per worker."""
        return _total(self.parts)


def project(pass_: Pass, reserved_nbytes: int, shrink: int = 0) -> Projection:
    """Project the memory of a worker: the largest of the works of a pass, folding or merging.

    ``shrink`` halves the rows that are read at once. The worst statistic is the one whose states,
    temporaries and views are largest by themselves.
    """
    parts = _heaviest(pass_.works, reserved_nbytes, shrink)
    own = {s: _own_nbytes(s, work.split, shrink) for work in pass_.works for s in work.statistics}
    worst = max(own, key=own.__getitem__, default=None)
    if worst is None:
        return Projection(parts, None, 0, ())
    return Projection(parts, worst, own[worst], pass_.asked_by.get(worst, ()))


def _heaviest(works: Sequence[Work], reserved_nbytes: int, shrink: int) -> tuple[Part, ...]:
    each = [_project_work(work, reserved_nbytes, shrink) for work in works]
    return max(each, key=_total, default=(Part("reserved", reserved_nbytes),))


def _total(parts: Sequence[Part]) -> int:
    return sum(part.nbytes for part in parts)


def _project_work(work: Work, reserved_nbytes: int, shrink: int) -> tuple[Part, ...]:
    split, schema = work.split, work.split.schema
    step_rows = step_of(split, shrink)
    sizes = [s.state_nbytes(schema) for s in work.statistics]
    fold_work = max((_work_nbytes(s, split) for s in work.statistics), default=0)
    asked = [*(s.views for s in work.statistics), *(r.views for r in work.rows)]
    views = _views_nbytes(asked, split, step_rows)
    held = sum(_held_nbytes(s, split) for s in work.statistics)
    folding = (
        # While a task folds a run of blocks, a node of each level waits.
        Part("states", sum(sizes) * (1 + levels_in_a_task(work))),
        Part("chunk", split.reading_nbytes(work.fields, step_rows)),
        Part("views", views + held),
        Part("work", fold_work),
        Part("outputs", _outputs_nbytes(work)),
    )
    # A merge holds two partials of one statistic and their merge.
    merge_work = max((s.work_nbytes(schema, 0) for s in work.statistics), default=0)
    merging = (Part("merge", 3 * max(sizes, default=0) + merge_work),)
    return (
        Part("reserved", reserved_nbytes),
        Part("constants", _constants_nbytes(work)),
        *max(folding, merging, key=_total),  # a worker does one of them at a time
    )


def _outputs_nbytes(work: Work) -> int:
    """Bytes of the tables of a block, the pooled copies that a pass keeps among them."""
    split = work.split
    rows = max((block.rows for block in split.blocks), default=0)
    views = [view for statistic in work.statistics for view in statistic.views]
    tables = [table for table, _ in pools(views, split).values()]
    widths = [math.prod(table.view.shape(split.schema)) for table in (*work.rows, *tables)]
    return 8 * rows * sum(widths)


def levels_in_a_task(work: Work) -> int:
    """Levels of the merge tree within one task: more than none for very many blocks."""
    blocks, depth = len(work.split.blocks), 0
    while blocks > TASKS_LIMIT * FAN_IN**depth:
        depth += 1
    return depth


def _constants_nbytes(work: Work) -> int:
    """Bytes of the fitted arrays that a worker loads, and of the copy while it checks one."""
    distinct = set(constants_in((work.statistics, work.rows)))
    sizes = [math.prod(constant.shape) * constant.dtype.itemsize for constant in distinct]
    return sum(sizes) + max(sizes, default=0)


def _own_nbytes(statistic: AnyStatistic, split: Split, shrink: int) -> int:
    """Bytes that a statistic needs by itself, apart from reading."""
    views = _views_nbytes([statistic.views], split, step_of(split, shrink))
    own = _work_nbytes(statistic, split) + _held_nbytes(statistic, split)
    return 3 * statistic.state_nbytes(split.schema) + own + views


def _views_nbytes(asked: Iterable[Iterable[View]], split: Split, rows: int) -> int:
    """Bytes that distinct views, and those they are made of, hold for the rows of a step."""
    views = set(closure(view for several in asked for view in several))
    return sum(view.nbytes(split.schema, rows) for view in views)


def _grain(statistic: AnyStatistic, split: Split) -> int:
    """Return the rows that are absorbed at once: a grain, or a block where that is smaller."""
    largest = max((block.rows for block in split.blocks), default=0)
    return min(grain_rows(statistic, split.schema), largest)


def _work_nbytes(statistic: AnyStatistic, split: Split) -> int:
    return statistic.work_nbytes(split.schema, _grain(statistic, split))


def _held_nbytes(statistic: AnyStatistic, split: Split) -> int:
    """Bytes of the views that wait for a grain to fill."""
    views = (view.shape(split.schema) for view in statistic.views)
    row_nbytes = sum(8 * int(np.prod(shape, dtype=np.int64)) for shape in views)
    return row_nbytes * _grain(statistic, split)


def check(passes: Sequence[Pass], projections: Sequence[Projection], allowed_nbytes: int) -> None:
    """Raise :class:`BudgetError` for the heaviest pass if a worker could not hold it.

    The message names the worst statistic, who asked for it, and up to three knobs that fix it.
    """
    pairs = zip(passes, projections, strict=True)
    heaviest = max(pairs, key=lambda pair: pair[1].nbytes, default=None)
    if heaviest is not None and heaviest[1].nbytes > allowed_nbytes:
        raise BudgetError(_refusal(*heaviest, allowed_nbytes))


def _refusal(pass_: Pass, projection: Projection, allowed_nbytes: int) -> str:
    lines = [
        f"refused before reading: {pass_.name} needs {human(projection.nbytes)} per worker, "
        f"{human(allowed_nbytes)} are allowed",
        "  " + ", ".join(f"{part.name} {human(part.nbytes)}" for part in projection.parts),
    ]
    if projection.worst is not None:
        lines.append(
            f"  worst statistic: {describe(projection.worst)} with {human(projection.worst_nbytes)}"
            f", asked for by {', '.join(projection.asked_by) or 'a metric'}"
        )
    knobs = _knobs(pass_, projection, allowed_nbytes)[:KNOBS]
    lines.append("  any of these fixes it:" if len(knobs) > 1 else "  what fixes it:")
    lines += [f"    {knob}" for knob in knobs]
    return "\n".join(lines)


def _knobs(pass_: Pass, projection: Projection, allowed_nbytes: int) -> list[str]:
    """Return remedies that are enough by the same projection, the cheapest first."""
    knobs = []
    if leave := _leaving_out(pass_, projection, allowed_nbytes):
        knobs.append(f"leave out {', '.join(leave)}")
    chunk = next((part.nbytes for part in projection.parts if part.name == "chunk"), 0)
    excess = projection.nbytes - allowed_nbytes
    if excess < chunk:
        rows = max(1, pass_.works[0].split.chunk_rows * (chunk - excess) // (2 * chunk))
        knobs.append(f"store the features in chunks of {rows} rows")
    step = 50 * 2**20
    return [*knobs, f"--memory {math.ceil(projection.nbytes / step) * step // 2**20}MiB"]


def _leaving_out(pass_: Pass, projection: Projection, allowed_nbytes: int) -> list[str]:
    """Return whom the pass would fit without, worst first; nobody if that leaves nobody."""
    everybody = {name for names in pass_.asked_by.values() for name in names}
    reserved = projection.parts[0].nbytes
    left: dict[str, None] = {}
    while projection.nbytes > allowed_nbytes and projection.asked_by:
        left |= dict.fromkeys(projection.asked_by)
        pass_ = _without(pass_, left)
        projection = project(pass_, reserved)
    enough = projection.nbytes <= allowed_nbytes and left.keys() < everybody
    return list(left) if enough else []


def _without(pass_: Pass, names: Collection[str]) -> Pass:
    """Return the pass without what nobody else than ``names`` asked for."""

    def wanted(asked: AnyStatistic | Rows) -> bool:
        return any(name not in names for name in pass_.asked_by.get(asked, ("",)))

    works = [
        replace(
            work,
            statistics=tuple(filter(wanted, work.statistics)),
            rows=tuple(filter(wanted, work.rows)),
        )
        for work in pass_.works
    ]
    return replace(pass_, works=tuple(works))


def explain(
    passes: Sequence[Pass],
    projections: Sequence[Projection],
    pending: Sequence[Pending],
    allowed_nbytes: int,
) -> str:
    """Return the table that ``featfold plan`` prints."""
    lines = []
    for pass_, projection, left in zip(passes, projections, pending, strict=True):
        lines.append(
            f"{pass_.name}: {_reads(pass_, left)}, projected {human(projection.nbytes)} per "
            f"worker of {human(allowed_nbytes)} allowed"
        )
        lines.append(
            "  memory: " + ", ".join(f"{p.name} {human(p.nbytes)}" for p in projection.parts)
        )
        for work in pass_.works:
            lines.append(f"  {work.split.name}: {', '.join(sorted(work.fields)) or 'nothing'}")
        lines += _statistic_lines(pass_)
    return "\n".join(lines)


def _reads(pass_: Pass, left: Pending) -> str:
    if not left.blocks:
        return f"nothing to read: the partials of all {pass_.blocks} blocks are there"
    blocks = f"{left.blocks} of {pass_.blocks} blocks"
    whole = f"{pass_.blocks} {'block' if pass_.blocks == 1 else 'blocks'}"
    kept = f", partials {human(left.partials_nbytes)} on disk" if left.partials_nbytes else ""
    return (
        f"{whole if left.blocks == pass_.blocks else blocks}, reads {human(left.read_nbytes)}{kept}"
    )


def _statistic_lines(pass_: Pass) -> list[str]:
    """Return a line for each distinct statistic of a pass, whatever the splits it folds."""
    states = {
        statistic: statistic.state_nbytes(work.split.schema)
        for work in pass_.works
        for statistic in work.statistics
    }
    return [
        f"    {describe(statistic)}  state {human(nbytes)}  for "
        f"{', '.join(pass_.asked_by.get(statistic, ()))}"
        for statistic, nbytes in states.items()
    ]


def describe(statistic: AnyStatistic) -> str:
    """Return a short name of a statistic: its class and the arrays it reads."""
    return f"{type(statistic).__name__}({', '.join(sorted(fields_of(*statistic.views)))})"


def human(count: float) -> str:
    """Return bytes for people: powers of 1024 with three digits."""
    power = min(3, int(math.log(max(1.0, abs(count)), 1024)))
    return f"{count / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
