"""Where a job runs: threads of this process, local worker processes, or a dask scheduler elsewhere.

``auto`` takes threads for small inputs, where processes would cost more than they bring, and local
processes otherwise. The memory allowed per worker is settled here too.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline import machine, spawning
from pipeline.content import whole_number
from pipeline.engine import DEFAULTS, Dask, Execute, Finished, Settings, Threads
from pipeline.errors import ConfigError, CorruptError, FeatfoldError, MissingInputError
from pipeline.plan import human

SMALL_NBYTES = 4 * 10**9
"""Inputs below this many bytes run on threads."""
MEMORY_SHARE = 0.8
"""Share of the machine's memory that all workers together may use."""
WORKERS_SECONDS = 60
"""How long to wait for the first worker of a scheduler."""
BOOKKEEPING_NBYTES = 12 * 2**20
"""What a process comes to hold beside arrays while it runs up to 10,000 tasks: mostly logs."""
KEPT_FREE_NBYTES = 12 * 2**20
"""Freed memory that the allocator of a worker may keep, and size from which it never does."""
IDLE = "pipeline.bench.idle"
"""Program that prints what a worker holds apart from arrays."""
IDLE_VERSION = 3
"""Raised by hand when it measures something else."""
CLUSTERS = ("auto", "threads", "local")

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


@dataclass(frozen=True)
class Resources:
    """What a job may use, settled before anything starts."""

    kind: str
    """``threads``, ``local``, or the address or file of a scheduler."""
    workers: int
    """What folds blocks side by side: threads here, local processes, or threads elsewhere."""
    allowed_nbytes: int
    """Memory per worker."""
    why: str
    """One line on the choice, for the log."""
    dashboard: bool = False
    reserved_nbytes: int | None = None
    """What a worker elsewhere holds before any work; None where that is not known."""

    @property
    def label(self) -> str:
        """Name for reports, e.g. ``2 processes``."""
        noun = {"threads": "thread", "local": "process"}.get(self.kind, "remote worker")
        plural = {"process": "processes"}.get(noun, f"{noun}s")
        return f"{self.workers} {noun if self.workers == 1 else plural}"


@dataclass(frozen=True)
class Cluster:
    """Running workers, and how to hand them a pass."""

    resources: Resources
    execute: Execute
    dashboard_url: str = ""
    client: Any = None

    def peak_nbytes(self) -> int:
        """Return the peak resident memory of a worker since it started."""
        if self.client is None:
            return machine.peak_rss_nbytes() // self.resources.workers
        peaks: dict[str, int] = self.client.run(machine.peak_rss_nbytes)
        return max(peaks.values())


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
    remote = isinstance(kind, str) and _is_remote(kind)
    if kind not in CLUSTERS and not remote:
        raise ConfigError(
            f"cluster: {kind!r} is unknown; choose {', '.join(CLUSTERS)}, the tcp:// or tls:// "
            "address of a scheduler, or its scheduler file (.json)"
        )
    workers = None if workers is None else whole_number(workers, "workers")
    if remote and memory == "auto":
        return _ask(kind)
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


def _is_remote(kind: str) -> bool:
    return kind.startswith(("tcp://", "tls://")) or kind.endswith(".json")


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


@contextmanager
def open_cluster(
    resources: Resources,
    cache: Path,
    settings: Settings = DEFAULTS,
    finished: Finished | None = None,
) -> Iterator[Cluster]:
    """Start, or connect to, the workers; stop what was started at the end.

    ``cache`` is the directory of partials and constants, which all workers reach.
    """
    if resources.kind == "threads":
        execute = Threads(resources.workers, cache, settings, finished=finished)
        yield Cluster(resources, execute)
        return
    from pipeline.store.shared import shared_rows

    here = resources.kind == "local"
    with shared_rows(cache, here) as shared, _client(resources) as client:
        _greet(client)
        workers = sum(client.nthreads().values())
        yield Cluster(
            replace(resources, workers=workers),
            Dask(client, cache, settings, finished=finished, shared=shared),
            client.dashboard_link,
            client,
        )


_NOT_STARTED = (
    "the worker processes did not start. In a script, each runs its top level again: put what it "
    'does into a function, and call that under `if __name__ == "__main__":`'
)


@contextmanager
def _client(resources: Resources) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    with dask.config.set(_SETTINGS):
        if resources.kind == "local":
            with spawning.shielded(), warnings.catch_warnings():
                # A dashboard port in use: another is taken, and printed.
                warnings.filterwarnings("ignore", message="Port .* is already in use")
                try:
                    local = LocalCluster(
                        n_workers=resources.workers,
                        threads_per_worker=1,
                        processes=True,
                        memory_limit=resources.allowed_nbytes,
                        dashboard_address=f"127.0.0.1:{8787 if resources.dashboard else 0}",
                        host="127.0.0.1",
                    )
                except RuntimeError as error:
                    raise FeatfoldError(f"{_NOT_STARTED} ({error})") from error
            # A worker that dies with an answer makes distributed print what is raised anyway.
            logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
            with local, Client(local) as client:
                yield client
        else:
            with _connected(resources.kind) as client:
                yield client


def _connected(kind: str) -> Any:
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


def _ask(kind: str) -> Resources:
    """Return what the workers of a scheduler elsewhere have, per thread of the least of them."""
    with _connected(kind) as client:
        _greet(client)
        found = client.run(_means)
        threads = client.nthreads()
        known = client.scheduler_info(n_workers=-1)["workers"]
    hosts = Counter(worker["host"] for worker in known.values())
    allowed, reserved = [], []
    for address, (limit_nbytes, held_nbytes) in found.items():
        worker = known[address]
        # A worker without a limit of its own shares its machine with the others there.
        own = worker["memory_limit"] or limit_nbytes // hosts[worker["host"]]
        allowed.append(int(MEMORY_SHARE * own / threads[address]))
        reserved.append(held_nbytes // threads[address])
    count = sum(threads[address] for address in found)
    why = f"{len(found)} workers at {kind}; the least memory of their threads counts"
    return Resources(kind, count, min(allowed), why, reserved_nbytes=max(reserved))


def _means() -> tuple[int, int]:
    """Return the memory that this machine allows, and what this process holds now."""
    return machine.memory_limit_nbytes(), machine.rss_nbytes()


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


def _greet(client: Any) -> None:
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
    client.run(_leave_errors_to_the_client)
    versions = client.run(_versions)
    ours = _versions()
    for address, theirs in versions.items():
        if theirs != ours:
            raise FeatfoldError(f"worker {address} runs {theirs}, this process {ours}; align them")


def _leave_errors_to_the_client() -> None:
    """Keep workers from printing the traceback of an error that the client raises anyway."""
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)
    logging.getLogger("distributed.worker.memory").setLevel(logging.WARNING)


def _versions() -> dict[str, str]:
    import pipeline.store  # noqa: F401 - what a fold needs

    return {name: _version(name) for name in ("featfold", "numpy", "zarr")}


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "not installed"


def reserved_nbytes(cache: Path) -> int:
    """Return the memory of a worker process before any work, measured once per environment."""
    names = ("featfold", "numpy", "zarr", "dask", "distributed")
    key = {name: _version(name) for name in names} | {"python": sys.version, "by": IDLE_VERSION}
    record = cache / "reserved.json"
    try:
        known = json.loads(record.read_text())
    except (OSError, ValueError):
        known = {}
    if known.get("environment") == key:
        return int(known["nbytes"])
    program = [sys.executable, "-m", IDLE]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise FeatfoldError(
            f"a worker process cannot start here: {why}; run featfold doctor, or use "
            "cluster: threads"
        )
    nbytes = int(done.stdout) + BOOKKEEPING_NBYTES
    with suppress(OSError):  # a read-only home: measured again next time
        cache.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"environment": key, "nbytes": nbytes}))
    return nbytes
