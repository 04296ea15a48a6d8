"""A dask scheduler that somebody else started, and what its workers have."""

from __future__ import annotations

import json
import logging
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import machine
from pipeline.arrays import devices, gpu_place
from pipeline.cluster import nvml
from pipeline.cluster.nvml import Device
from pipeline.cluster.reserved import version_of
from pipeline.errors import CorruptError, FeatfoldError, MissingInputError

WORKERS_SECONDS = 60
"""How long to wait for the first worker of a scheduler."""


def is_address(kind: object) -> bool:
    """Tell whether ``kind`` is the address or the file of a scheduler."""
    if not isinstance(kind, str):
        return False
    return kind.startswith(("tcp://", "tls://")) or kind.endswith(".json")


def client(kind: str) -> Any:
    """Return a client of the scheduler at an address, or of a scheduler file."""
    from distributed import Client

    address = _address_in(Path(kind)) if kind.endswith(".json") else kind
    try:
        return Client(address, timeout="30s")
    except (OSError, ValueError) as error:
        raise FeatfoldError(
            f"cluster: no scheduler answers at {address} ({error}); start one with dask scheduler, "
            "or choose cluster: local"
        ) from error


class Offer(NamedTuple):
    """What the workers of a scheduler have."""

    workers: int
    threads: int
    least_nbytes: float
    """Memory per thread of the worker that has least."""
    held_nbytes: int
    """What a worker holds before any work, per thread."""
    devices: tuple[tuple[Device | None, int], ...]
    """The GPU of each worker, if any, and its threads."""


def ask(kind: str) -> Offer:
    """Return what the workers of a scheduler have."""
    with client(kind) as asking:
        greet(asking)
        found = asking.run(_means)
        threads = asking.nthreads()
        known = asking.scheduler_info(n_workers=-1)["workers"]
    hosts = Counter(worker["host"] for worker in known.values())
    least, held, on_devices = [], [], []
    for address, (limit_nbytes, held_nbytes, device) in found.items():
        worker = known[address]
        # A worker without a limit of its own shares its machine with the others there.
        own = worker["memory_limit"] or limit_nbytes // hosts[worker["host"]]
        least.append(own / threads[address])
        held.append(held_nbytes // threads[address])
        on_devices.append((device, threads[address]))
    count = sum(threads[address] for address in found)
    return Offer(len(found), count, min(least), max(held), tuple(on_devices))


def _means() -> tuple[int, int, Device | None]:
    """Return the memory that this machine allows, what this process holds now, and its GPU."""
    device, place = nvml.own(), gpu_place()
    if device is not None and place is not None:
        with suppress(Exception):  # raised again when pools are capped
            devices.of(place)  # its library takes memory of the host
    return machine.memory_limit_nbytes(), machine.rss_nbytes(), device if place else None


def _address_in(file: Path) -> str:
    """Return the address that a scheduler file holds; dask would wait for the file forever."""
    if not file.is_file():
        raise MissingInputError(
            f"cluster: there is no scheduler file {file}; dask scheduler --scheduler-file writes it"
        )
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["address"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"cluster: {file} is not the scheduler file of a dask scheduler ({error}); start the "
            "scheduler again"
        ) from error


def greet(client: Any) -> None:
    """Make every worker import featfold now: one that cannot would leave tasks hanging."""
    try:
        client.wait_for_workers(1, timeout=WORKERS_SECONDS)
    except TimeoutError as error:
        raise FeatfoldError(
            f"cluster: no worker is connected to {client.scheduler.address}; start some with "
            f"dask worker {client.scheduler.address}"
        ) from error
    # An interrupted wait makes distributed cancel what it had not begun, and tornado tell of it.
    logging.getLogger("tornado.application").setLevel(logging.CRITICAL)
    versions = client.run(_versions)
    ours = _versions()
    for address, theirs in versions.items():
        if theirs != ours:
            raise FeatfoldError(f"worker {address} runs {theirs}, this process {ours}; align them")


def _versions() -> dict[str, str]:
    import pipeline.store  # noqa: F401 - what a fold needs

    return {name: version_of(name) for name in ("featfold", "numpy", "zarr")}
