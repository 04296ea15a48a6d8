"""Running workers: started or connected to, and stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import machine
from pipeline.arrays import HOST, Place, devices
from pipeline.cluster import cuda, local, remote
from pipeline.cluster.resources import HERE, Resources
from pipeline.engine import DEFAULTS, Dask, Execute, Finished, Say, Settings, Threads, log


@dataclass(frozen=True)
class Cluster:
    """Running workers, and how to hand them a pass."""

    resources: Resources
    execute: Execute
    dashboard_url: str = ""
    client: Any = None
    place: Place = HOST
    """Where its workers compute."""

    def peak_nbytes(self) -> int:
        """Return the peak resident memory of a worker since it started."""
        if self.client is None:
            return machine.peak_rss_nbytes() // self.resources.workers
        peaks: dict[str, int] = self.client.run(machine.peak_rss_nbytes)
        return max(peaks.values())

    def peak_device_nbytes(self) -> int | None:
        """Return the peak of a worker's pool on its GPU; None where workers compute on the host."""
        if self.place == HOST:
            return None
        peaks: dict[str, int] = self.client.run(_peak_device_nbytes, self.place)
        return max(peaks.values())


def _peak_device_nbytes(place: Place) -> int:
    device = devices.of(place)
    return 0 if device is None else device.peak_nbytes()


@contextmanager
def open_cluster(
    resources: Resources,
    cache: Path,
    settings: Settings = DEFAULTS,
    finished: Finished | None = None,
    say: Say = log,
) -> Iterator[Cluster]:
    """Start, or connect to, the workers; stop what was started at the end.

    ``cache`` is the directory of partials and constants, which all workers reach.
    """
    if resources.kind == "threads":
        execute = Threads(resources.workers, cache, settings, finished=finished, say=say)
        yield Cluster(resources, execute)
        return
    from pipeline.store.shared import shared_rows

    here = resources.kind in HERE
    with shared_rows(cache, here) as shared, _client(resources) as client:
        remote.greet(client)
        workers = sum(client.nthreads().values())
        settings = replace(settings, device_nbytes=resources.device_nbytes)
        with _placed(client, resources) as place:
            yield Cluster(
                replace(resources, workers=workers),
                Dask(client, cache, settings, place, finished, shared, say),
                client.dashboard_link,
                client,
                place,
            )


def _client(resources: Resources) -> AbstractContextManager[Any]:
    if resources.kind == "local":
        return local.client(resources)
    if resources.kind == "cuda":
        return cuda.client(resources)
    elsewhere: AbstractContextManager[Any] = remote.client(resources.kind)
    return elsewhere


def _placed(client: Any, resources: Resources) -> AbstractContextManager[Place]:
    """Yield where the workers compute."""
    if resources.device_nbytes is None:
        return nullcontext(HOST)
    from pipeline.cluster.worker_devices import capped

    return capped(client, resources.device_nbytes)
