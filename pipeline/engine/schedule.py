"""What is left to do of a work: the blocks to fold and the nodes to merge that no file holds yet.

A task folds a run of 8^k neighbouring blocks, the smallest k that keeps a pass within
``plan.TASKS_LIMIT`` tasks; its partial is the node of those blocks in the merge tree.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from pipeline.chunk import Block, Split
from pipeline.fold import AnyStatistic, group_of
from pipeline.partials import FAN_IN, Partials, key_of, node_names, stored_fields
from pipeline.plan import Work, levels_in_a_task
from pipeline.pooled import PooledSplit, copies_of, pools, stored_means
from pipeline.procedure import Rows
from pipeline.views import Pooled, View

T = TypeVar("T")


@dataclass(frozen=True)
class Wanted:
    """A request, with the names of its partials in the tree."""

    request: AnyStatistic | Rows
    key: str
    levels: tuple[tuple[str, ...], ...]
    """Names of the nodes, by level and position."""

    @property
    def root(self) -> str:
        """Name of the node of all blocks."""
        return self.levels[-1][0]


class Folded(NamedTuple):
    """A statistic to fold, and the partial that it leaves."""

    statistic: AnyStatistic
    key: str
    node: str


class Tabled(NamedTuple):
    """Rows to compute, and the partial of each block that they are kept in."""

    rows: Rows
    key: str
    leaves: tuple[str, ...]


class Merged(NamedTuple):
    """A statistic to merge, the partial that it leaves, and those that it is made from."""

    statistic: AnyStatistic
    key: str
    node: str
    children: tuple[str, ...]


@dataclass(frozen=True)
class FoldStep:
    """Read a run of blocks, once, for the requests whose partials of it are missing."""

    blocks: tuple[Block, ...]
    statistics: tuple[Folded, ...]
    tables: tuple[Tabled, ...]

    @property
    def views(self) -> list[View]:
        """Everything that it looks at."""
        views = [view for entry in self.statistics for view in entry.statistic.views]
        return views + [view for entry in self.tables for view in entry.rows.views]

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """It needs no partials."""
        return []

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """(key, node) of the partials that it makes."""
        return [(entry.key, entry.node) for entry in self.statistics]


@dataclass(frozen=True)
class MergeStep:
    """Merge the children of a node for the statistics that lack it."""

    node: tuple[int, int]
    """Level above the folds, and position."""
    statistics: tuple[Merged, ...]

    @property
    def inputs(self) -> list[tuple[str, str]]:
        """(key, node) of the partials that it needs."""
        return [(entry.key, child) for entry in self.statistics for child in entry.children]

    @property
    def outputs(self) -> list[tuple[str, str]]:
        """(key, node) of the partials that it makes."""
        return [(entry.key, entry.node) for entry in self.statistics]


@dataclass
class Schedule:
    """The steps of a work in the order in which a stream of blocks completes the nodes."""

    work: Work
    partials: Partials
    thin: bool = False
    """Whether children are dropped once their merge stands for them."""
    part: tuple[int, int] | None = None
    """(i, n): the i-th of n shares of the folds, and no merges."""
    wanted: list[Wanted] = field(init=False)
    durable: bool = field(init=False)
    """Whether the partials outlive the run: the bytes of the split are known by checksum."""

    def __post_init__(self) -> None:
        self._leaves: dict[frozenset[str], tuple[tuple[str, ...], ...]] = {}
        self._sources: dict[tuple[tuple[str, str], ...], Split] = {}
        self._memo: dict[tuple[str, tuple[str, ...]], Any] = {}
        split = self.work.split
        self.durable = split.identity(split.blocks[0], frozenset()) is not None
        self._token = uuid.uuid4().hex
        asked: tuple[AnyStatistic | Rows, ...] = (*self.work.statistics, *self.work.rows)
        self.wanted = [Wanted(a, key_of(a, split), self._levels(a)) for a in asked]

    @cached_property
    def depth(self) -> int:
        """Level of the tree that a task folds up to: k of 8^k blocks."""
        return levels_in_a_task(self.work)

    def _levels(self, request: AnyStatistic | Rows) -> tuple[tuple[str, ...], ...]:
        split = self.work.split
        stored = stored_fields(request, split)
        if stored not in self._leaves:
            leaves = [
                split.identity(block, stored) or f"{self._token}-{block.index}"
                for block in split.blocks
            ]
            self._leaves[stored] = tuple(tuple(level) for level in node_names(leaves))
        return self._leaves[stored]

    @property
    def done(self) -> bool:
        """Whether every root, and every block of a table of rows, is there already."""
        return self.durable and all(
            self.partials.has(wanted.key, node)
            for wanted in self.wanted
            for node in (wanted.levels[0] if isinstance(wanted.request, Rows) else [wanted.root])
        )

    @cached_property
    def steps(self) -> Sequence[FoldStep | MergeStep]:
        """All steps: children before their parents."""
        folds: dict[int, list[Folded]] = {}
        merges: dict[tuple[int, int], list[Merged]] = {}
        for wanted in self.wanted:
            if not isinstance(wanted.request, Rows):
                self._need(wanted.request, wanted, folds, merges)
        tables = self._tables()
        if self.part is not None:
            folds, tables, merges = self._share(folds), self._share(tables), {}
        return tuple(self._in_order(folds, tables, merges))

    def _share(self, tasks: dict[int, Any]) -> dict[int, Any]:
        """Return the tasks of this part of an array job: neighbouring blocks, as even as may be."""
        assert self.part is not None
        index, parts = self.part
        count = -(-len(self.work.split.blocks) // FAN_IN**self.depth)
        own = range(count * (index - 1) // parts, count * index // parts)
        return {task: asked for task, asked in tasks.items() if task in own}

    def source(self, step: FoldStep) -> Split:
        """Return the split that a step reads: pooled copies where they are there and enough."""
        if not self.durable:
            return self.work.split
        copies = self._alike(step, "copies", lambda: copies_of(step.views, self.work.split))
        there = {
            field: key
            for field, (table, key) in copies.items()
            if self._all_there(table, key, step.blocks)
        }
        stored = stored_means(self.work.split)
        if stored in copies and copies[stored][0].view == Pooled("mean", stored):
            there[stored] = ""
        return self._pooled(tuple(there.items()))

    def _pooled(self, there: tuple[tuple[str, str], ...]) -> Split:
        if there not in self._sources:
            pooled = PooledSplit(self.work.split, self.partials, dict(there))
            self._sources[there] = pooled if there else self.work.split
        return self._sources[there]

    def _alike(self, step: FoldStep, what: str, compute: Callable[[], T]) -> T:
        """Return what is the same for all steps that make the same, computed once."""
        made = (*(entry.key for entry in step.statistics), *(entry.key for entry in step.tables))
        if (what, made) not in self._memo:
            self._memo[what, made] = compute()
        return self._memo[what, made]  # type: ignore[no-any-return]

    def _all_there(self, table: Rows, key: str, blocks: Sequence[Block]) -> bool:
        return all(self.partials.has(key, leaf) for leaf in self._leaves_of(table, blocks))

    def _leaves_of(self, table: Rows, blocks: Sequence[Block]) -> tuple[str, ...]:
        identities = (self.work.split.identity(block, table.fields) for block in blocks)
        return tuple(identity or "" for identity in identities)

    def _kept(self, step: FoldStep) -> FoldStep:
        """Return the step with the pooled copies that it computes anyway, to be kept as well."""
        if not self.durable or isinstance(self.source(step), PooledSplit):
            return step
        copies = tuple(
            Tabled(table, key, self._leaves_of(table, step.blocks))
            for table, key in self._alike(step, "pools", lambda: pools(step.views, self.work.split))
            if not self._all_there(table, key, step.blocks)
        )
        return replace(step, tables=(*step.tables, *copies))

    def forget(self) -> None:
        """Drop the partials of rows that no checksum names: nobody could find them again."""
        if not self.durable:
            for wanted in self.wanted:
                self.partials.drop(wanted.key, {n for level in wanted.levels for n in level})

    def _need(
        self,
        statistic: AnyStatistic,
        wanted: Wanted,
        folds: dict[int, list[Folded]],
        merges: dict[tuple[int, int], list[Merged]],
    ) -> None:
        """Collect the folds and merges without which the root of a statistic is not there."""
        there = self.partials.nodes(wanted.key) if self.durable else frozenset()
        stack = [(len(wanted.levels) - 1, 0)]
        while stack:
            level, position = stack.pop()
            name = wanted.levels[level][position]
            if name in there:
                continue
            if level <= self.depth:
                folds.setdefault(position, []).append(Folded(statistic, wanted.key, name))
                continue
            children = range(position * FAN_IN, (position + 1) * FAN_IN)
            below = wanted.levels[level - 1]
            names = below[children.start : children.stop]
            stack += [(level - 1, children.start + i) for i in range(len(names))]
            if len(names) > 1:
                entry = Merged(statistic, wanted.key, name, names)
                merges.setdefault((level, position), []).append(entry)

    def _tables(self) -> dict[int, list[Tabled]]:
        """Return, by task, the tables of rows that lack a block."""
        size = FAN_IN**self.depth
        missing: dict[int, list[Tabled]] = {}
        for wanted in self.wanted:
            if not isinstance(wanted.request, Rows):
                continue
            there = self.partials.nodes(wanted.key) if self.durable else frozenset()
            leaves = wanted.levels[0]
            for position in range(-(-len(leaves) // size)):
                own = leaves[position * size : (position + 1) * size]
                if not there.issuperset(own):
                    missing.setdefault(position, []).append(Tabled(wanted.request, wanted.key, own))
        return missing

    def _in_order(
        self, folds: dict[int, Any], tables: dict[int, Any], merges: dict[Any, Any]
    ) -> Iterator[FoldStep | MergeStep]:
        blocks, size = self.work.split.blocks, FAN_IN**self.depth
        last = -(-len(blocks) // size) - 1
        closing: dict[int, list[tuple[int, int]]] = {}
        for level, position in sorted(merges):
            stop = (position + 1) * FAN_IN ** (level - self.depth) - 1
            closing.setdefault(min(stop, last), []).append((level, position))
        for task in sorted({*folds, *tables, *closing}):
            if task in folds or task in tables:
                step = FoldStep(
                    tuple(blocks[task * size : (task + 1) * size]),
                    tuple(folds.get(task, ())),
                    tuple(tables.get(task, ())),
                )
                yield self._kept(step)
            for level, position in closing.get(task, ()):
                yield MergeStep((level - self.depth, position), tuple(merges[level, position]))

    @property
    def folds(self) -> list[FoldStep]:
        """The steps that read."""
        return [step for step in self.steps if isinstance(step, FoldStep)]

    def step_nbytes(self, step: FoldStep) -> int:
        """Logical bytes that a step reads."""
        source = self.source(step)

        def row_nbytes() -> int:
            return source.schema.row_nbytes(self.work_of(step).fields)

        what = "pooled" if isinstance(source, PooledSplit) else "stored"
        return sum(block.rows for block in step.blocks) * self._alike(step, what, row_nbytes)

    def banks_read(self, step: FoldStep, shrink: int) -> tuple[int, int]:
        """Return for how many groups of rows a step reads banks in files, and the bytes of all."""

        def of_group() -> tuple[int, int]:
            work = self.work_of(step)
            rows = group_of(work.split, work.statistics, work.rows, shrink)
            return rows, work.banks_nbytes

        pooled = isinstance(self.source(step), PooledSplit)
        rows, nbytes = self._alike(step, f"group of {'pooled' if pooled else 'stored'}", of_group)
        groups = sum(-(-block.rows // rows) for block in step.blocks) if rows else 0
        return groups, groups * nbytes

    def work_of(self, step: FoldStep) -> Work:
        """Return the part of the work that a step does."""
        return Work(
            self.source(step),
            tuple(entry.statistic for entry in step.statistics),
            tuple(entry.rows for entry in step.tables),
        )

    @property
    def partials_nbytes(self) -> int:
        """Bytes of the states that the steps will write, and that stay."""
        if not self.durable:
            return 0
        schema = self.work.split.schema
        states = sum(
            entry.statistic.state_nbytes(schema) for step in self.steps for entry in step.statistics
        )
        if self.thin:
            states -= sum(
                len(entry.children) * entry.statistic.state_nbytes(schema)
                for step in self.steps
                if isinstance(step, MergeStep)
                for entry in step.statistics
                if len(entry.children) == FAN_IN
            )
        return max(0, states)

    def tables_nbytes(self, step: FoldStep, *, wanted: bool) -> int:
        """Bytes of the rows that a step will write: those asked for, or the pooled copies."""
        if not self.durable:
            return 0
        asked = {entry.key for entry in self.wanted}
        rows = sum(block.rows for block in step.blocks)
        return sum(
            8 * rows * math.prod(entry.rows.view.shape(self.work.split.schema))
            for entry in step.tables
            if (entry.key in asked) == wanted
        )
