"""Worker processes of this machine, started for one job."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipeline import spawning
from pipeline.cluster.resources import Resources
from pipeline.errors import FeatfoldError

KEPT_FREE_NBYTES = 12 * 2**20
"""Freed memory that the allocator of a worker may keep, and size from which it never does."""

_SETTINGS = {
    # A task holds partials of a few megabytes: spilling would hide a fault, so it is off.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    # What a plan allows is allowed in full: the default ends a worker at 95 % of it.
    "distributed.worker.memory.terminate": 1.0,
    # Dask's own setting hands every freed array back to the system: each temporary is then new
    # memory, and clearing it takes a fifth of the time of a fold.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": KEPT_FREE_NBYTES,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": KEPT_FREE_NBYTES,
    "distributed.admin.low-level-log-length": 100,  # of every worker: 1,000 take megabytes
    "distributed.scheduler.allowed-failures": 2,
    "distributed.scheduler.worker-saturation": 1.0,
    # Products of large blocks hold the interpreter lock for long.
    "distributed.scheduler.worker-ttl": "15 minutes",
}

_NOT_STARTED = (
    "the worker processes did not start. In a script, each runs its top level again: put what it "
    'does into a function, and call that under `if __name__ == "__main__":`'
)


@contextmanager
def client(
    resources: Resources,
    start: Callable[..., Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Any]:
    """Start the processes and yield a client of theirs.

    ``start`` is called with the options of ``LocalCluster``, and that is the default.
    """
    import dask
    from distributed import Client

    from pipeline.cluster.worker_logs import ErrorsAreRaised

    # A worker that dies with an answer makes distributed print what is raised anyway.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with (
        dask.config.set({**_SETTINGS, **(settings or {})}),
        _processes(resources, start) as started,
        Client(started) as found,
    ):
        found.register_plugin(ErrorsAreRaised())
        yield found


def _processes(resources: Resources, start: Callable[..., Any] | None) -> Any:
    """Return the running processes and their scheduler."""
    from distributed import LocalCluster

    with spawning.shielded(), warnings.catch_warnings():
        # A dashboard port in use: another is taken, and printed.
        warnings.filterwarnings("ignore", message="Port .* is already in use")
        try:
            return (start or LocalCluster)(
                n_workers=resources.workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=resources.allowed_nbytes,
                dashboard_address=f"127.0.0.1:{8787 if resources.dashboard else 0}",
                host="127.0.0.1",
            )
        except RuntimeError as error:
            raise FeatfoldError(f"{_NOT_STARTED} ({error})") from error
