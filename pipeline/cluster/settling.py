"""What is chosen for a job: where it runs, on how many workers, with how much memory each."""

from __future__ import annotations

from pipeline import machine
from pipeline.cluster import remote
from pipeline.cluster.resources import Resources
from pipeline.content import whole_number
from pipeline.errors import ConfigError
from pipeline.plan import human

SMALL_NBYTES = 4 * 10**9
"""Inputs below this many bytes run on threads."""
MEMORY_SHARE = 0.8
"""Share of the machine's memory that all workers together may use."""
CLUSTERS = ("auto", "threads", "local")


def settle(
    kind: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    input_nbytes: int = 0,
    dashboard: bool = False,
) -> Resources:
    """Decide where a job of ``input_nbytes`` runs and what a worker may hold.

    With ``memory`` auto, the workers of a scheduler elsewhere are asked what they have: each of
    their threads counts as a worker, and the one that has least decides.

    Raises :class:`ConfigError` for an unknown cluster or an unreadable size, and
    :class:`FeatfoldError` where the scheduler or its workers do not answer.
    """
    elsewhere = remote.is_address(kind)
    if kind not in CLUSTERS and not elsewhere:
        raise ConfigError(
            f"cluster: {kind!r} is unknown; choose {', '.join(CLUSTERS)}, the tcp:// or tls:// "
            "address of a scheduler, or its scheduler file (.json)"
        )
    workers = None if workers is None else whole_number(workers, "workers")
    if elsewhere and memory == "auto":
        return _offered(kind)
    count = workers or _cpus()
    if kind == "auto":
        small = input_nbytes < SMALL_NBYTES and not dashboard
        kind = "threads" if small else "local"
        size = f"{human(input_nbytes)} of input"
        why = f"{size}, below {human(SMALL_NBYTES)}" if small else size
        why = "a dashboard was asked for" if dashboard else why
    else:
        why = "as asked"
    return Resources(kind, count, _allowed_nbytes(memory, count), why, dashboard)


def _offered(kind: str) -> Resources:
    """Return the threads of a scheduler elsewhere and what the least of them may hold."""
    offer = remote.ask(kind)
    why = f"{offer.workers} workers at {kind}; the least memory of their threads counts"
    allowed = int(MEMORY_SHARE * offer.least_nbytes)
    return Resources(kind, offer.threads, allowed, why, reserved_nbytes=offer.held_nbytes)


def _cpus() -> int:
    """Return the CPUs that this process may use: those of its cgroup and affinity, if fewer."""
    from dask.system import cpu_count

    return int(cpu_count())


def _allowed_nbytes(memory: str | int, workers: int) -> int:
    if memory == "auto":
        return int(MEMORY_SHARE * machine.memory_limit_nbytes() / workers)
    return parse_nbytes(memory)


def parse_nbytes(size: str | int) -> int:
    """Return the bytes of ``"512MiB"``, ``"8GB"`` or a plain number."""
    from dask.utils import parse_bytes

    try:
        count = int(parse_bytes(size))
    except (ValueError, OverflowError, AttributeError):  # the last: None
        count = 0
    # Units alone, and true, would be one of them.
    number = any(map(str.isdigit, size)) if isinstance(size, str) else size == count
    if count <= 0 or isinstance(size, bool) or not number:
        raise ConfigError(f"memory: {size!r} is not a size; write 512MiB, 8GB or auto")
    return count
