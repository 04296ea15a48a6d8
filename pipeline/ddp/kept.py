"""What a partial file holds of a collection: its states, and all that is needed to use them.

Beside the states of the metrics there may be a confusion matrix of every element that has a class,
ignored classes included: what metrics are made of that nobody had asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.choice import Choice
from pipeline.collection import Collection
from pipeline.content import from_tree, to_tree
from pipeline.ddp.files import Moment, Partial, Run
from pipeline.errors import CorruptError

__all__ = [
    "MATRIX", "METRICS", "arrays_of", "definition", "merge", "merged", "part_of",
]  # fmt: skip

METRICS, MATRIX = "metrics", "matrix"
Arrays = Mapping[str, np.ndarray[Any, Any]]


def definition(choice: Choice) -> dict[str, Any]:
    """Return what a collection is made of, for JSON."""
    return {
        "metrics": to_tree(dict(choice.metrics)),
        "classes": list(choice.class_names) or choice.classes,
        "task": choice.task,
    }


def arrays_of(states: Mapping[str, Arrays]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the states of several collections by name, each arrays by key, as one mapping."""
    return {
        f"{name}:{key}": array for name, state in states.items() for key, array in state.items()
    }


def part_of(arrays: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the states of one collection of those that :func:`arrays_of` put together."""
    start = f"{name}:"
    return {key[len(start) :]: x for key, x in arrays.items() if key.startswith(start)}


def merged(partials: Sequence[Partial], name: str = METRICS) -> Collection | None:
    """Return the collection of that name that all partials add up to; None if one has none."""
    total: Collection | None = None
    for partial in partials:
        made = _collection(partial, name)
        if made is None:
            return None
        if total is None:
            total = made
        else:
            total.merge(made)
    return total


def merge(
    run: str | Path | Run,
    moment: Moment,
    attempt: int | None = None,
    wait_seconds: float = 0.0,
    group: Sequence[int] | None = None,
) -> Collection:
    """Return the collection that the partials of all ranks at a moment add up to.

    Any process may do so, at any time; ranks that have not written yet are waited for. Which
    attempt is taken, and what is raised where a rank is missing, there twice or of other metrics,
    says :meth:`Run.gathered`.
    """
    where = run if isinstance(run, Run) else Run(run)
    total = merged(where.gathered(moment, attempt, wait_seconds, group))
    assert total is not None
    total.of_all_ranks = True
    return total


def _collection(partial: Partial, name: str) -> Collection | None:
    declared = partial.about["definitions"].get(name)
    if declared is None:
        return None
    made = Collection(
        from_tree(declared["metrics"], {}),
        classes=declared["classes"],
        task=declared["task"],
        prefix=partial.about["prefix"],
    )
    if name == METRICS and made.declaration != partial.declaration:
        raise CorruptError(
            f"rank {partial.rank}, attempt {partial.attempt} of {partial.run}: {partial.moment} "
            "was written by another version of featfold, whose numbers differ; merge with that one"
        )
    made.load_state_dict(part_of(partial.arrays, name))
    return made
