"""The two tasks of a durable pass, fold and merge: their results are files, named by content.

A task whose files are there already does nothing, so a task that runs again after its worker was
lost costs no read.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.chunk import Block, Split
from pipeline.engine.halving import Halving
from pipeline.engine.schedule import FoldStep, MergeStep, Schedule
from pipeline.engine.tree import tree
from pipeline.fold import AnyStatistic, Output, Partial, merge
from pipeline.partials import FAN_IN, Kept, Partials
from pipeline.procedure import Rows


def run_fold(split: Split, step: FoldStep, partials: Partials, halving: Halving) -> int:
    """Fold the blocks of a step and keep what is missing; return the bytes that were read."""
    missing = [e for e in step.statistics if not partials.has(e.key, e.node)]
    tables = [e for e in step.tables if not all(partials.has(e.key, leaf) for leaf in e.leaves)]
    if not missing and not tables:
        return 0
    statistics = [entry.statistic for entry in missing]

    def fold_block(position: int, block: Block) -> Partial:
        asked = [entry.rows for entry in tables]
        found = halving.fold(statistics, split, block, asked)
        for entry, (table,) in zip(tables, found.outputs, strict=True):
            partials.put(entry.key, entry.leaves[position], Kept(table, block.rows, block.rows))
        return found.without_outputs()

    folded = (fold_block(position, block) for position, block in enumerate(step.blocks))
    total: Partial = tree(folded, lambda _, left, right: merge(statistics, (left, right)))
    for entry, state, used in zip(missing, total.states, total.used, strict=True):
        partials.put(entry.key, entry.node, Kept(state, used, total.rows))
    return total.read_nbytes


def run_merge(step: MergeStep, partials: Partials, thin: bool = False) -> None:
    """Merge the children of a node, one at a time; ``thin`` drops them once eight are merged."""
    for statistic, key, node, children in step.statistics:
        if not partials.has(key, node):
            partials.put(key, node, _merged(statistic, key, children, partials))
        if thin and len(children) == FAN_IN:
            partials.drop(key, children)


def _merged(statistic: AnyStatistic, key: str, children: Sequence[str], partials: Partials) -> Kept:
    first, *others = children
    total = partials.get(key, first)
    for child in others:
        other = partials.get(key, child)
        total = Kept(
            statistic.merge(total.state, other.state),
            total.used + other.used,
            total.rows + other.rows,
        )
    return total


def root_of(schedule: Schedule, read_nbytes: int) -> Partial:
    """Return the merged partial of a finished schedule."""
    statistics = [w for w in schedule.wanted if not isinstance(w.request, Rows)]
    roots = [schedule.partials.get(wanted.key, wanted.root) for wanted in statistics]
    tables = [
        tuple(_table(schedule, wanted.key, leaf) for leaf in wanted.levels[0])
        for wanted in schedule.wanted
        if isinstance(wanted.request, Rows)
    ]
    return Partial(
        tuple(root.state for root in roots),
        tuple(root.used for root in roots),
        schedule.work.split.schema.rows,
        read_nbytes,
        tuple(tables),
    )


def _table(schedule: Schedule, key: str, leaf: str) -> Output:
    """Return the rows of a block: their file, or, where files do not outlive the run, an array."""
    if schedule.durable:
        return schedule.partials.path(key, leaf)
    rows: Output = schedule.partials.get(key, leaf).state
    return rows
