"""Metrics of predictions that are there already, reduced block by block: ``ff.measure``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.choice import Metrics, choice
from pipeline.chunk import Split
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError
from pipeline.procedure import TRAIN
from pipeline.workplace import workplace

__all__ = ["measure"]


def measure(
    metrics: Metrics,
    data: Split,
    *,
    classes: int | Sequence[str] | None = None,
    task: str = "multiclass",
    ignore: int | Sequence[int] = (),
    top_k: int = 1,
    threshold: float = 0.5,
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    cache: str | Path | None = None,
    trace: Trace | None = None,
) -> dict[str, Any]:
    """Return the numbers of metrics over a split of predictions by key, exactly.

    ``metrics`` and options as of :class:`~pipeline.collection.Collection`, whose numbers these
    are. All of them share passes over the data: each stored byte is read once in each, and most
    metrics need one. ``classes`` defaults to those that the split declares. Raises
    :class:`ConfigError` where they differ.
    """
    chosen = choice(
        metrics,
        classes=data.schema.classes if classes is None else classes,
        task=task,
        ignore=ignore,
        top_k=top_k,
        threshold=threshold,
    )
    if chosen.classes != data.schema.classes:
        raise ConfigError(
            f"classes: {chosen.classes}, but {data.name} declares {data.schema.classes}"
        )
    jobs = {name: Job(metric, {TRAIN: (data,)}) for name, metric in chosen.metrics.items()}
    with workplace(jobs, cluster, workers, memory, cache, stage="eval") as place:
        outcomes = run_jobs(jobs, place.execute, stage="eval", trace=trace, room=place.room)
    return chosen.keyed(outcomes)
