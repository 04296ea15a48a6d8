"""Stores of seeds: whether they hold the same kind of rows, so that means over them say something.

Nothing is read but what the stores declare; a split that is not there is for the plan to miss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from pipeline.chunk import Split
from pipeline.config import JobConfig
from pipeline.errors import DataError
from pipeline.inputs import VAL_SPLIT, scales_of
from pipeline.procedure import TRAIN
from pipeline.store import Store

CHANGING = ("labels", "logits", "mask")
"""Arrays whose presence changes what is computed from the others."""
SOURCE = ("tap", "transform")
"""Attributes that say what the features are; the weights are those of each seed."""


def refuse_unlike(config: JobConfig) -> None:
    """Raise :class:`DataError` where the stores of the seeds of a job hold other kinds of rows.

    The splits that the job uses must have the same classes, and arrays with rows of the same shape
    and layout. The message names both stores and all that differs.
    """
    stores = [Store.open(path) for path in config.seeds if Store.is_at(path)]
    if not stores:
        return
    first, *others = stores
    there = first.splits()
    for other in others:
        for name in _used(config):
            if name not in there or name not in other.splits():
                if name in _scaling(config) and (name in there) != (name in other.splits()):
                    raise DataError(
                        f"seeds: {name} is in one of {first.path} and {other.path} alone: by its "
                        "rows ensembles are scaled; give it to both, or choose scales: train"
                    )
                continue
            differing = list(_differences(first.split(name), other.split(name)))
            if differing:
                raise DataError(
                    f"seeds: {name} of {first.path} and of {other.path} differ: "
                    f"{'; '.join(differing)}. Means are taken over stores of one network: extract "
                    "them alike, or run a job for each"
                )


def _used(config: JobConfig) -> Iterator[str]:
    """Yield the names of the splits of a job, each once."""
    names: list[str] = [config.fit.split, *config.further_splits, *_scaling(config)]
    if config.select:
        names += [config.select.id, config.select.ood]
    if config.evaluate:
        tested = config.evaluate
        names += chain([tested.id], tested.near, tested.far, tested.csid)
    yield from dict.fromkeys(names)


def _scaling(config: JobConfig) -> list[str]:
    """Return the split whose rows scale ensembles where it is there."""
    asked = set[str]().union(*map(scales_of, config.detectors.values()))
    return [VAL_SPLIT] if asked - {TRAIN} else []


def _differences(ours: Split, theirs: Split) -> Iterator[str]:
    a, b = ours.schema, theirs.schema
    if a.classes != b.classes:
        yield f"{a.classes} and {b.classes} classes"
    for name in sorted(a.arrays.keys() & b.arrays.keys()):
        one, two = a.arrays[name], b.arrays[name]
        named_apart = one.layout and two.layout and one.layout != two.layout
        if one.shape != two.shape or named_apart:
            yield f"{name} with rows {one.shape} {one.layout} and {two.shape} {two.layout}"
    for name in CHANGING:
        if (name in a.arrays) != (name in b.arrays):
            which = "first" if name in a.arrays else "second"
            yield f"{name} in the {which} alone"
    for key in SOURCE:
        one_said, two_said = _attributes(ours).get(key), _attributes(theirs).get(key)
        if one_said != two_said and None not in (one_said, two_said):
            yield f"{key} {one_said!r} and {two_said!r}"


def _attributes(split: Split) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(split, "attributes", {})
    return found
