"""Passes: what is read of which splits, for whom, and in how many tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.bank import searches
from pipeline.chunk import Split
from pipeline.fold import AnyStatistic, fields_read
from pipeline.partials import FAN_IN
from pipeline.procedure import Rows
from pipeline.statistics import fields_of

TASKS_LIMIT = 10_000
"""Most tasks of a work, folds and merges: above, a fold takes a run of 8^k blocks."""
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

    @property
    def banks_nbytes(self) -> int:
        """Bytes of the banks in files that are read for every group of rows."""
        requests: tuple[Any, ...] = (*self.statistics, *self.rows)
        views = (view for request in requests for view in request.views)
        return sum(view.bank.files_nbytes for view in searches(views))  # type: ignore[attr-defined]

    @property
    def folds(self) -> int:
        """Tasks that read."""
        size: int = FAN_IN ** levels_in_a_task(self)
        return -(-len(self.split.blocks) // size)

    @property
    def merges(self) -> int:
        """Tasks that merge: one for each node of the tree above the folds."""
        return merges_of(self.folds) if self.statistics else 0


@dataclass(frozen=True)
class Pass:
    """One sweep over the data: the fused requests of everybody."""

    stage: str
    """``fit`` or ``score``: what people call this part of the job."""
    number: int
    works: tuple[Work, ...]
    asked_by: Mapping[AnyStatistic | Rows, tuple[str, ...]]
    """Names of the procedures that asked for each statistic or output."""
    turn: tuple[int, int] = (1, 1)
    """(i, n): what is folded in n stripes has its i-th one here."""

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
        """Number of blocks that are read."""
        return sum(len(work.split.blocks) for work in self.works)

    @property
    def tasks(self) -> int:
        """Folds and merges, of the whole pass."""
        return sum(work.folds + work.merges for work in self.works)


@dataclass(frozen=True)
class Pending:
    """What is left to read of a pass, and the disk that it will take."""

    blocks: int
    read_nbytes: int
    partials_nbytes: int
    copies_nbytes: int = 0
    """Pooled copies of tokens, for later passes."""
    outputs_nbytes: int = 0
    """Tables of one row per row, such as scores."""
    groups: int = 0
    """Groups of rows for each of which banks in files are read."""
    banks_nbytes: int = 0
    """Bytes that are read of banks in files, for all groups together."""

    @property
    def disk_nbytes(self) -> int:
        """Bytes in the cache."""
        return self.partials_nbytes + self.copies_nbytes + self.outputs_nbytes


def levels_in_a_task(work: Work) -> int:
    """Levels of the merge tree within one task: more than none for very many blocks."""
    blocks, depth = len(work.split.blocks), 0
    while blocks + merges_of(blocks) > TASKS_LIMIT:
        blocks, depth = -(-blocks // FAN_IN), depth + 1
    return depth


def merges_of(leaves: int) -> int:
    """Return the nodes above so many leaves; an only child is its own parent."""
    merges = 0
    while leaves > 1:
        merges += leaves // FAN_IN + (leaves % FAN_IN > 1)
        leaves = -(-leaves // FAN_IN)
    return merges


def describe(statistic: AnyStatistic) -> str:
    """Return a short name of a statistic: its class, the arrays it reads, and its stripe."""
    named = f"{type(statistic).__name__}({', '.join(sorted(fields_of(*statistic.views)))})"
    stripe = getattr(statistic, "stripe", ())
    return f"{named}[{stripe[0]}:{stripe[1]}]" if stripe else named


def human(count: float) -> str:
    """Return bytes for people: powers of 1024 with three digits, or four before the point."""
    power = min(4, int(math.log(max(1.0, abs(count)), 1024)))
    scaled = count / 1024**power
    digits = f"{scaled:.3g}" if abs(scaled) < 999.5 else f"{scaled:.0f}"
    return f"{digits} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
