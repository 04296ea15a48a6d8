"""Metrics of predictions that are there already, reduced block by block: ``ff.measure``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.choice import Metrics, choice
from pipeline.chunk import Split
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import DataError
from pipeline.procedure import TRAIN
from pipeline.store import open_predictions
from pipeline.workplace import workplace

__all__ = ["measure"]


def measure(
    metrics: Metrics,
    predictions: Any,
    labels: Any,
    *,
    classes: int | Sequence[str] | None = None,
    weights: Any = None,
    task: str = "multiclass",
    ignore: int | Sequence[int] = (),
    top_k: int = 1,
    threshold: float = 0.5,
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    device_memory: str | int = "auto",
    cache: str | Path | None = None,
    trace: Trace | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Return the numbers of metrics of predictions by key, exactly, in constant memory.

    ``predictions`` and ``labels`` are files, folders of masks or arrays, as
    :func:`~pipeline.store.open_predictions` takes them; ``metrics`` and the other options are
    those of :class:`~pipeline.collection.Collection`, whose numbers these are. All metrics share
    passes over the data, each of which reads every stored byte once; most metrics need one. Options
    that are none raise :class:`TypeError`, which says what those of others are called here.
    """
    chosen = choice(
        metrics, classes=classes, task=task, ignore=ignore, top_k=top_k, threshold=threshold,
        weighted=weights is not None, others=others,
    )  # fmt: skip
    data = open_predictions(predictions, labels, classes=chosen.classes, task=task, weights=weights)
    jobs = {name: Job(metric, {TRAIN: (data,)}) for name, metric in chosen.metrics.items()}
    with (
        _rows_by_name(data),
        workplace(
            jobs, cluster, workers, memory, cache, device_memory=device_memory, stage="eval"
        ) as place,
    ):
        outcomes = run_jobs(jobs, place.execute, stage="eval", trace=trace, room=place.room)
    return chosen.keyed(outcomes)


@contextmanager
def _rows_by_name(data: Split) -> Iterator[None]:
    """Add the file of a row to what is said of it, where rows are files."""
    try:
        yield
    except DataError as error:
        names = getattr(data, "names", None)
        if names is None or error.row is None:
            raise
        raise DataError(f"{error} (row {error.row} is {names[error.row]})") from error
