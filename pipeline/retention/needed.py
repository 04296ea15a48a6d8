"""The partials that kept runs need: what their jobs would find again, and may be pinned to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from pipeline.chunk import Split
from pipeline.config import JobConfig
from pipeline.engine import rehearse
from pipeline.fitted import Fitted
from pipeline.fold import AnyStatistic
from pipeline.partials import key_of, node_names, stored_fields
from pipeline.plan import Pass, Work
from pipeline.planning import Prepared, plan_of
from pipeline.pooled import pools
from pipeline.procedure import Rows
from pipeline.store import Store

Nodes = dict[str, set[str]]
"""Key -> nodes of the partials of a cache."""
DETECTORS = "detectors"


def needed(runs: Iterable[tuple[Path, JobConfig]]) -> Nodes:
    """Return the partials that runs need, given in the order in which they began.

    A job is planned as if it ran now: all that it would find is needed, the parts of merged
    partials among it, since an appended block is merged with them. So is what answered the fit of
    each run. Raises :class:`~pipeline.errors.FeatfoldError` where a job cannot be planned.
    """
    found: Nodes = defaultdict(set)
    newest: dict[str, tuple[JobConfig, Fitted]] = {}
    for directory, job in runs:
        if not (directory / DETECTORS).is_dir():  # the mean over seeds, whose runs are others
            continue
        fitted = Fitted.load(directory / DETECTORS)
        for turn in fitted.turns:
            for roots in turn.values():
                for key, node in roots:
                    found[key].add(node)
        newest[job.resolved()] = job, fitted
    for job, fitted in newest.values():
        if Store.is_at(job.store):
            for pass_ in _passes(job, fitted):
                for work in pass_.works:
                    _add(found, work)
    return found


def _passes(job: JobConfig, fitted: Fitted) -> list[Pass]:
    """Return the passes of a job that ran now, and those that score with what it was fitted to."""
    prepared = Prepared(job)
    planned = plan_of(job, prepared)
    scoring, _ = rehearse(
        prepared.evaluations(fitted), stage="score", room=planned.room,
        skip_nonfinite=job.nonfinite == "skip",
    )  # fmt: skip
    return [*planned.passes, *scoring]


def _add(found: Nodes, work: Work) -> None:
    """Add every node of the trees of a work, and the pooled copies that it would read."""
    split = work.split
    requests: tuple[AnyStatistic | Rows, ...] = (*work.statistics, *work.rows)
    for request in requests:
        found[key_of(request, split)] |= _nodes(split, stored_fields(request, split))
        for table, key in pools(request.views, split):
            found[key] |= _nodes(split, table.fields)


def _nodes(split: Split, fields: frozenset[str]) -> set[str]:
    leaves = [split.identity(block, fields) for block in split.blocks]
    return {node for level in node_names([leaf for leaf in leaves if leaf]) for node in level}
