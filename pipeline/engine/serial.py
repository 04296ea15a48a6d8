"""Block after block in this thread: the specification of the other executors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from pipeline.engine.tree import tree
from pipeline.fold import Partial, fold, merge
from pipeline.plan import Pass, Work


class Execute(Protocol):
    """Runs a pass and returns the merged partial of each of its works, in order."""

    def __call__(self, pass_: Pass) -> Sequence[Partial]: ...


def run_serial(pass_: Pass) -> Sequence[Partial]:
    """Run a pass in this thread: a few lines that compute what threads and dask compute."""
    return [run_work(work) for work in pass_.works]


def run_work(work: Work) -> Partial:
    """Fold the blocks of a work and merge their partials."""
    folds = (fold(work.statistics, work.split, block, work.rows) for block in work.split.blocks)
    return merged(work, folds)


def merged(work: Work, folds: Iterable[Partial]) -> Partial:
    """Merge the partials of blocks, in their order, over the one tree."""
    return tree(folds, lambda _, left, right: merge(work.statistics, (left, right)))  # type: ignore[no-any-return]
