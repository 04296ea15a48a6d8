"""Where the jobs of a call run: planned, checked against memory, and given workers and a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.cluster import (
    BOOKKEEPING_NBYTES,
    HERE,
    MEMORY_SHARE,
    Resources,
    open_cluster,
    reserved_nbytes,
    settle,
)
from pipeline.engine import PARTIALS, Execute, Job, Pin, Settings, Turns, rehearse
from pipeline.inputs import cache_directory
from pipeline.machine import give_back, memory_limit_nbytes, rss_nbytes
from pipeline.partials import Partials
from pipeline.plan import (
    Pass,
    Projection,
    Room,
    check,
    check_client,
    in_stripes,
    project_client,
)
from pipeline.store import StoredSplit

CLUSTER_NBYTES = 48 * 2**20
"""What the libraries of a cluster add to the process that starts or joins it."""
FIGURES_NBYTES = 48 * 2**20
"""What the libraries behind the figures of a report add."""
SHRINK_LIMIT = 6
"""Chunks are read in at most 2^6 steps."""


def projected(passes: Sequence[Pass], resources: Resources) -> tuple[list[Projection], int]:
    """Return the memory that each pass needs per worker, and how far its reads must shrink.

    Threads share what this process holds already; processes start from what a fresh one needs.
    Chunks are read in smaller steps before a plan is refused, for the host or for its device.
    """
    room = room_of(resources)
    for shrink in range(SHRINK_LIMIT + 1):
        projections = [room.projected(pass_, shrink) for pass_ in passes]
        if all(map(room.fits, projections)):
            return projections, shrink
    if all(p.nbytes <= room.allowed_nbytes for p in projections):
        return projections, SHRINK_LIMIT  # a device is refused by the least that it would need
    return [room.projected(pass_, 0) for pass_ in passes], 0


def _reserved_nbytes(resources: Resources) -> int:
    """Return what a worker holds before any work."""
    give_back()  # what planning has freed
    if resources.kind == "threads":
        return (rss_nbytes() + BOOKKEEPING_NBYTES) // resources.workers
    kind = resources.kind if resources.kind in HERE else "local"
    return resources.reserved_nbytes or reserved_nbytes(cache_directory(None), kind)


def room_of(resources: Resources) -> Room:
    """Return what a worker may hold of a pass before its statistics are cut into stripes."""
    return Room(
        _reserved_nbytes(resources), resources.allowed_nbytes, SHRINK_LIMIT, resources.device_nbytes
    )


def client_of(
    passes: Sequence[Pass],
    projections: Sequence[Projection],
    resources: Resources,
    fitted: Any = (),
) -> tuple[Projection, int]:
    """Return the memory of the process that drives a job, and what its workers leave to it.

    Threads are part of that process, and what is reserved is counted with them. ``fitted`` are the
    scorers that the job makes.
    """
    workers, libraries = resources.workers, FIGURES_NBYTES
    held = workers * max((projection.nbytes for projection in projections), default=0)
    if resources.kind == "threads":
        left = workers * resources.allowed_nbytes - held
        return project_client(passes, libraries, workers, fitted), left
    here = held if resources.kind in HERE else 0
    left = int(MEMORY_SHARE * memory_limit_nbytes()) - here
    libraries += CLUSTER_NBYTES + rss_nbytes()
    return project_client(passes, libraries, workers, fitted), left


@dataclass(frozen=True)
class Workplace:
    """What executes passes, and the room that a worker has for one."""

    execute: Execute
    room: Room | None
    """None where nothing may be cut into stripes: a stream is read once."""


@contextmanager
def workplace(
    prepared: Mapping[str, Job],
    cluster: str,
    workers: int | None,
    memory: str | int,
    cache: str | Path | None,
    *,
    device_memory: str | int = "auto",
    stage: str = "fit",
) -> Iterator[Workplace]:
    """Plan the jobs, refuse what will not fit, and yield what executes their passes."""
    directory = cache_directory(cache, store_of(prepared))
    files.sweep(directory)
    resources, room, shrink = planned(
        prepared, cluster, workers, memory, device_memory=device_memory, stage=stage
    )
    with open_cluster(resources, directory, Settings(shrink)) as running:
        yield Workplace(running.execute, room)


def planned(
    prepared: Mapping[str, Job],
    cluster: str,
    workers: int | None,
    memory: str | int,
    *,
    device_memory: str | int = "auto",
    stage: str = "fit",
) -> tuple[Resources, Room, int]:
    """Return who is to run jobs, and how far reads shrink; nothing is read, nothing starts.

    Raises :class:`~pipeline.errors.BudgetError` for jobs that will not fit.
    """
    passes, outcomes = rehearse(prepared, stage=stage)
    largest = max((pass_.read_nbytes for pass_ in passes), default=0)
    resources = settle(cluster, workers, memory, largest, device_memory=device_memory)
    room = room_of(resources)
    cut = [part for pass_ in passes for part in in_stripes(pass_, room.stripes(pass_))]
    projections, shrink = projected(cut, resources)
    check(cut, projections, resources.allowed_nbytes, resources.device_nbytes)
    check_client(*client_of(cut, projections, resources, outcomes))
    return resources, room, shrink


def pinned_to(turns: Turns, cache: str | Path | None, store: str | Path | None) -> Pin:
    """Return what pins a fit to an earlier one, whose partials are in the same cache."""
    return Pin(turns, Partials(cache_directory(cache, store) / PARTIALS))


def store_of(prepared: Mapping[str, Job]) -> str | None:
    """Return the store that the jobs read, where there is one."""
    splits = {s for job in prepared.values() for several in job.splits.values() for s in several}
    return next((str(split.root) for split in splits if isinstance(split, StoredSplit)), None)
