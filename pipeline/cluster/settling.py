"""What is chosen for a job: where it runs, on how many workers, with how much memory each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pipeline import machine
from pipeline.cluster import cuda, remote
from pipeline.cluster.nvml import Device
from pipeline.cluster.resources import Resources
from pipeline.content import whole_number
from pipeline.errors import ConfigError
from pipeline.plan import human

SMALL_NBYTES = 4 * 10**9
"""Inputs below this many bytes run on threads."""
MEMORY_SHARE = 0.8
"""Share of the machine's memory that all workers together may use."""
CLUSTERS = ("auto", "threads", "local", "cuda")


def settle(
    kind: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    input_nbytes: int = 0,
    dashboard: bool = False,
    device_memory: str | int = "auto",
) -> Resources:
    """Decide where a job of ``input_nbytes`` runs and what a worker may hold.

    With ``memory`` auto, the workers of a scheduler elsewhere are asked what they have: each of
    their threads counts as a worker, and the one that has least decides; so it is with their GPUs.
    Where ``memory`` is given nobody is asked, and ``device_memory`` says that they have GPUs.

    Raises :class:`ConfigError` for an unknown cluster, an unreadable size, and GPUs that cannot be
    used, and :class:`FeatfoldError` where the scheduler or its workers do not answer.
    """
    check_kind(kind)
    workers = None if workers is None else whole_number(workers, "workers")
    on_device = None if device_memory == "auto" else parse_nbytes(device_memory, "device_memory")
    if remote.is_address(kind) and memory == "auto":
        return _offered(kind, on_device)
    why = "as asked"
    if kind == "auto":
        kind, why = _chosen(workers, input_nbytes, dashboard)
    if kind == "cuda":
        return _on_devices(workers, memory, why, dashboard, on_device)
    count = workers or _cpus()
    if not remote.is_address(kind):
        on_device = None
    allowed = _allowed_nbytes(memory, count)
    return Resources(kind, count, allowed, why, dashboard, device_nbytes=on_device)


def check_kind(kind: str) -> None:
    """Raise :class:`ConfigError` for what is not the name of a cluster."""
    if kind not in CLUSTERS and not remote.is_address(kind):
        raise ConfigError(
            f"cluster: {kind!r} is unknown; choose {', '.join(CLUSTERS)}, the tcp:// or tls:// "
            "address of a scheduler, or its scheduler file (.json)"
        )


def _chosen(workers: int | None, input_nbytes: int, dashboard: bool) -> tuple[str, str]:
    """Return the kind of cluster for an input, and why."""
    size = f"{human(input_nbytes)} of input"
    if input_nbytes < SMALL_NBYTES:
        if dashboard:
            return "local", "a dashboard was asked for"
        return "threads", f"{size}, below {human(SMALL_NBYTES)}"
    with suppress(ConfigError):
        if len(cuda.devices()) >= (workers or 1):
            return "cuda", size
    return "local", size


def _on_devices(
    workers: int | None, memory: str | int, why: str, dashboard: bool, asked: int | None
) -> Resources:
    """Return a worker for each GPU of this machine, or for the first ``workers`` of them."""
    devices = cuda.devices()
    count = workers or len(devices)
    if count > len(devices):
        raise ConfigError(
            f"workers: {count}, and cluster: cuda starts one for each GPU: {len(devices)} here"
        )
    used = [(device, 1) for device in devices[:count]]
    names = ", ".join(dict.fromkeys(device.name for device, _ in used))
    return Resources(
        "cuda", count, _allowed_nbytes(memory, count), f"{why}: {names}", dashboard,
        device_nbytes=_device_nbytes(asked, used),
    )  # fmt: skip


def _offered(kind: str, asked: int | None) -> Resources:
    """Return the threads of a scheduler elsewhere and what the least of them may hold."""
    offer = remote.ask(kind)
    why = f"{offer.workers} workers at {kind}; the least memory of their threads counts"
    used = [(device, threads) for device, threads in offer.devices if device is not None]
    every = len(used) == len(offer.devices)
    if used and not every:
        why += f"; {len(used)} of them have a GPU: only where all have one are they used"
    return Resources(
        kind, offer.threads, int(MEMORY_SHARE * offer.least_nbytes), why,
        reserved_nbytes=offer.held_nbytes,
        device_nbytes=_device_nbytes(asked, used) if every else None,
    )  # fmt: skip


def _device_nbytes(asked: int | None, workers: Sequence[tuple[Device, int]]) -> int:
    """Return what a worker may hold on its GPU; ``workers`` as in :func:`cuda.least_nbytes`."""
    if asked is None:
        least = cuda.least_nbytes(workers)
        if least is None or least <= 0:
            raise ConfigError(
                "device_memory: auto needs GPUs that tell what memory they have, and more than "
                "CUDA itself takes of it; give a size such as 2GB, or choose cluster: local"
            )
        return least
    smallest = min((device.nbytes for device, _ in workers if device.nbytes), default=asked)
    if asked > smallest:
        raise ConfigError(
            f"device_memory: {human(asked)}, and the smallest GPU has {human(smallest)}"
        )
    return asked


def _cpus() -> int:
    """Return the CPUs that this process may use: those of its cgroup and affinity, if fewer."""
    from dask.system import cpu_count

    return int(cpu_count())


def _allowed_nbytes(memory: str | int, workers: int) -> int:
    if memory == "auto":
        return int(MEMORY_SHARE * machine.memory_limit_nbytes() / workers)
    return parse_nbytes(memory)


def parse_nbytes(size: str | int, name: str = "memory") -> int:
    """Return the bytes of ``"512MiB"``, ``"8GB"`` or a plain number."""
    from dask.utils import parse_bytes

    try:
        count = int(parse_bytes(size))
    except (ValueError, OverflowError, AttributeError):  # the last: None
        count = 0
    # Units alone, and true, would be one of them.
    number = any(map(str.isdigit, size)) if isinstance(size, str) else size == count
    if count <= 0 or isinstance(size, bool) or not number:
        raise ConfigError(f"{name}: {size!r} is not a size; write 512MiB, 8GB or auto")
    return count
