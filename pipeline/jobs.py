"""Jobs: procedures with the splits they run over, and the trace of what a run did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.chunk import Schema, Split, concatenated
from pipeline.fold import AnyStatistic
from pipeline.plan import Pass
from pipeline.procedure import TRAIN, Procedure


@dataclass(frozen=True)
class Job:
    """A procedure and the splits it runs over, by role; several splits count as one."""

    procedure: Procedure[Any]
    splits: Mapping[str, tuple[Split, ...]]
    asker: str = ""
    """Who is named for what it asks; the name of the job if empty."""

    @property
    def schema(self) -> Schema:
        """Schema of the splits that the procedure is fitted on."""
        return concatenated(self.splits[TRAIN])


@dataclass
class Trace:
    """What a run did: its passes, their time, and the rows each statistic used."""

    passes: list[Pass] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    read_nbytes: int = 0
    rows_used: dict[tuple[str, AnyStatistic], tuple[int, int]] = field(default_factory=dict)
    """(split, statistic) -> rows used, rows read."""
    pinned: set[str] = field(default_factory=set)
    """Jobs that were given results of an earlier fit."""
    turns: list[dict[str, list[list[str]]]] = field(default_factory=list)
    """Per yield: JOB/NAME of each request -> key and root of its partial in each split."""

    def rows_of(self, name: str, split: str) -> tuple[int, int]:
        """Return the most rows of a split that counted for a procedure, and those read of it."""
        asked = {s for pass_ in self.passes for s, names in pass_.asked_by.items() if name in names}
        counts = [count for (of, s), count in self.rows_used.items() if of == split and s in asked]
        return max(counts, default=(0, 0))

    def passes_of(self, name: str) -> int:
        """Return how many passes a procedure asked for something."""
        return sum(any(name in names for names in pass_.asked_by.values()) for pass_ in self.passes)
