"""Where the jobs of a call run: planned, checked against memory, and given workers and a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline import files
from pipeline.cluster import Resources, open_cluster, reserved_nbytes, rss_nbytes, settle
from pipeline.engine import PARTIALS, Execute, Job, Pin, Settings, Turns, rehearse
from pipeline.inputs import cache_directory
from pipeline.partials import Partials
from pipeline.plan import Pass, Projection, check, project
from pipeline.store import StoredSplit

SHRINK_LIMIT = 6
"""Chunks are read in at most 2^6 steps."""


def projected(passes: Sequence[Pass], resources: Resources) -> tuple[list[Projection], int]:
    """Return the memory that each pass needs per worker, and how far its reads must shrink.

    Threads share what this process holds already; processes start from what a fresh one needs.
    Chunks are read in smaller steps before a plan is refused.
    """
    if resources.kind == "threads":
        reserved = rss_nbytes() // resources.workers
    else:
        reserved = resources.reserved_nbytes or reserved_nbytes(cache_directory(None))
    for shrink in range(SHRINK_LIMIT + 1):
        projections = [project(pass_, reserved, shrink) for pass_ in passes]
        if all(p.nbytes <= resources.allowed_nbytes for p in projections):
            return projections, shrink
    return [project(pass_, reserved) for pass_ in passes], 0


@contextmanager
def workplace(
    prepared: Mapping[str, Job],
    cluster: str,
    workers: int | None,
    memory: str | int,
    cache: str | Path | None,
    *,
    stage: str = "fit",
) -> Iterator[Execute]:
    """Plan the jobs, refuse what will not fit, and yield what executes their passes."""
    directory = cache_directory(cache, store_of(prepared))
    files.sweep(directory)
    passes, _ = rehearse(prepared, stage=stage)
    largest = max((pass_.read_nbytes for pass_ in passes), default=0)
    resources = settle(cluster, workers, memory, largest)
    projections, shrink = projected(passes, resources)
    check(passes, projections, resources.allowed_nbytes)
    with open_cluster(resources, directory, Settings(shrink)) as running:
        yield running.execute


def pinned_to(turns: Turns, cache: str | Path | None, store: str | Path | None) -> Pin:
    """Return what pins a fit to an earlier one, whose partials are in the same cache."""
    return Pin(turns, Partials(cache_directory(cache, store) / PARTIALS))


def store_of(prepared: Mapping[str, Job]) -> Path | None:
    """Return the store that the jobs read, where there is one."""
    splits = {s for job in prepared.values() for several in job.splits.values() for s in several}
    return next((Path(split.root) for split in splits if isinstance(split, StoredSplit)), None)
