"""One worker process per GPU of this machine, started by dask-cuda for one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.arrays import gpu_place
from pipeline.cluster import local, nvml
from pipeline.cluster.nvml import INSTALL, Device
from pipeline.cluster.resources import Resources
from pipeline.errors import ConfigError

OLDEST = (26, 6)
"""Of dask-cuda: pip falls back to a release of 2021 where nothing else fits."""
CONTEXT_NBYTES = 600 * 10**6
"""What CUDA itself takes of a device, for each process that uses it."""
DEVICE_SHARE = 0.9
"""Share of the rest that workers may use: libraries of CUDA need some beside the arrays."""
SETTINGS = {
    # NVML numbers devices by the bus; CUDA would put the fastest first.
    "distributed.nanny.pre-spawn-environ.CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}


def devices() -> tuple[Device, ...]:
    """Return the devices that workers can be started for.

    Raises :class:`~pipeline.errors.ConfigError` that says why there is none, with a remedy.
    """
    found = installed()
    if found is None:
        raise ConfigError(f"cluster: cuda needs dask-cuda, which is not installed: {INSTALL}")
    if is_old(found):
        raise ConfigError(
            f"cluster: cuda: dask-cuda {found} is too old: {INSTALL}, into a fresh environment"
        )
    sight = nvml.look()
    if sight.missing:
        raise ConfigError(f"cluster: cuda: {sight.missing}, or choose cluster: local")
    if gpu_place() is None:
        raise ConfigError(f"cluster: cuda needs cupy, or a CUDA build of torch: {INSTALL}")
    return sight.devices


def installed() -> str | None:
    """Return the version of dask-cuda."""
    try:
        return version("dask-cuda")
    except PackageNotFoundError:
        return None


def is_old(found: str) -> bool:
    """Tell whether a version of dask-cuda is one that jobs cannot run on."""
    return tuple(int(part) for part in found.split(".")[:2] if part.isdecimal()) < OLDEST


def least_nbytes(workers: Sequence[tuple[Device, int]]) -> int | None:
    """Return what each thread may hold of its device, by the one that has least.

    ``workers``: the device and the number of threads of every worker process; several may share a
    device. None where the memory of a device is not known.
    """
    processes = Counter(device.uuid for device, _ in workers)
    threads = sum((Counter({device.uuid: count}) for device, count in workers), Counter[str]())
    shares = []
    for device in {device.uuid: device for device, _ in workers}.values():
        if device.nbytes is None:
            return None
        left = device.nbytes - processes[device.uuid] * CONTEXT_NBYTES
        shares.append(int(DEVICE_SHARE * left / threads[device.uuid]))
    return min(shares)


def client(resources: Resources) -> AbstractContextManager[Any]:
    """Start one process for each of the first devices, and yield a client of theirs."""
    places = [device.place for device in devices()[: resources.workers]]
    from dask_cuda import LocalCUDACluster

    return local.client(resources, partial(LocalCUDACluster, **options(places)), SETTINGS)


def options(places: Sequence[str]) -> dict[str, Any]:
    """Return what ``LocalCUDACluster`` is given beside the options of ``LocalCluster``."""
    return {
        "CUDA_VISIBLE_DEVICES": [int(p) if p.isdecimal() else p for p in places],
        "device_memory_limit": 0,  # it moves results of tasks, and those are on the host
        "protocol": "tcp",
    }
