"""Choosing one member of each sweep on validation rows, as OpenOOD's parameter search does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import evaluation
from pipeline.chunk import Split
from pipeline.detectors import fit_split_name
from pipeline.engine import Job, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.evaluation import Evaluation, Sets
from pipeline.fitted import Fitted, FittedDetector
from pipeline.inputs import as_split
from pipeline.procedure import Scored
from pipeline.workplace import workplace

VAL_OOD = "ood/val"
METRICS = {"auroc": max, "aupr_in": max, "aupr_out": max, "fpr95": min}
"""Metrics that choose, and which end of them is best."""


def select(
    fitted: Fitted,
    id_val: Any,
    ood_val: Any,
    *,
    metric: str = "auroc",
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    device_memory: str | int = "auto",
    cache: str | Path | None = None,
) -> Fitted:
    """Return the fitted detectors with the best member of each sweep under the sweep's name.

    All members are scored in one pass over ``id_val``, in-distribution validation rows, and
    ``ood_val``, out-of-distribution ones; the first of equals wins. What is no member of a sweep
    stays as it is. Every choice is recorded: ``fitted[name].choice``, and in what is saved.

    Raises :class:`ConfigError` for an unknown ``metric``, where nothing was swept, and for splits
    that are tested on: a hyper-parameter chosen on them makes their numbers mean nothing.

    Reference: Zhang et al. 2023, "OpenOOD v1.5: enhanced benchmark for out-of-distribution
    detection", arXiv 2306.09301.
    """
    any_member = next(iter(fitted.values()))
    classes = any_member.schema.classes
    splits = (
        as_split(id_val, name="id/val", classes=classes),
        as_split(ood_val, name=VAL_OOD, classes=classes),
    )
    prepared = selection_jobs(fitted, *splits, metric)
    with workplace(
        prepared, cluster, workers, memory, cache, device_memory=device_memory, stage="select"
    ) as place:
        outcomes = run_jobs(prepared, place.execute, stage="select", room=place.room)
    return selected(fitted, outcomes, *splits, metric)


def selection_jobs(fitted: Fitted, id_val: Split, ood_val: Split, metric: str) -> dict[str, Job]:
    """Return the jobs that rank the validation rows by every member of a sweep."""
    if metric not in METRICS:
        raise ConfigError(f"metric: {metric!r} is unknown; choose {', '.join(METRICS)}")
    fit_split_name(id_val.name, "id_val")
    if ood_val.name != VAL_OOD and not ood_val.name.startswith(f"{VAL_OOD}/"):
        raise ConfigError(
            f"ood_val: {ood_val.name!r} may be tested on; choose hyper-parameters on {VAL_OOD}, "
            "out-of-distribution rows kept for that"
        )
    swept = _swept(fitted)
    if not swept:
        raise ConfigError(
            "no detector was swept: give an option as a list, as in "
            "{'name': 'knn', 'k': [10, 50, 200]}"
        )
    for name in {member.sweep for member in swept.values()} & fitted.keys():
        if name not in swept or swept[name].sweep != name:
            raise ConfigError(f"{name} is a detector and a sweep; give one another id")
    for name, member in swept.items():
        if member.schema.split == id_val.name:
            raise ConfigError(
                f"id_val: {name} was fitted on {id_val.name}; choose on rows that it has not seen"
            )
        for split in (id_val, ood_val):
            member.accept(split)
    views = {name: Scored(member.scorer) for name, member in swept.items()}
    return evaluation.jobs(views, _sets(id_val, ood_val), None, tables=False)


def selected(
    fitted: Fitted, outcomes: Mapping[str, Any], id_val: Split, ood_val: Split, metric: str
) -> Fitted:
    """Return the fitted detectors after the choice, from the outcomes of its jobs."""
    swept = _swept(fitted)
    views = {name: Scored(member.scorer) for name, member in swept.items()}
    found = evaluation.collect(outcomes, views, _sets(id_val, ood_val))
    splits = (id_val.name, ood_val.name)
    best = {
        sweep: _best(
            sweep, {n: m for n, m in swept.items() if m.sweep == sweep}, found, metric, splits
        )
        for sweep in dict.fromkeys(member.sweep for member in swept.values())
    }
    members: dict[str, FittedDetector] = {}
    for name, member in fitted.items():
        if member.sweep in best:
            members[member.sweep] = best[member.sweep]
        else:
            members[name] = member
    return fitted.only(members)


def _swept(fitted: Fitted) -> dict[str, FittedDetector]:
    return {name: member for name, member in fitted.items() if member.sweep}


def _sets(id_val: Split, ood_val: Split) -> Sets:
    return Sets(id_val, {"val": [ood_val]})


def _best(
    sweep: str,
    members: Mapping[str, FittedDetector],
    found: Evaluation,
    metric: str,
    splits: tuple[str, str],
) -> FittedDetector:
    inside, outside = splits
    values = {name: found.value(name, outside, metric) for name in members}
    if undefined := [name for name, value in values.items() if math.isnan(value)]:
        raise DataError(
            f"{metric} of {undefined[0]} is undefined on {inside} and {outside}: both need rows; "
            "choose on other validation rows"
        )
    best = METRICS[metric](values, key=lambda name: values[name])
    choice = {"metric": metric, "id": inside, "ood": outside, "values": values, "member": best}
    return replace(members[best], id=sweep, choice=choice)
