"""What ``featfold doctor`` looks at: each check says what it found and how to mend it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

from pipeline.report.text import size

OK, WARN, FAIL = "ok", "warn", "fail"
NEEDED = ("numpy", "zarr", "dask", "distributed", "torch", "pydantic", "matplotlib", "safetensors")
OLDEST_PYTHON = (3, 11)
FEW_FILES = 1024
SMALL_DISK_NBYTES = 10 * 10**9
PROBE_NBYTES = 32 * 2**20


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis."""

    name: str
    state: str
    found: str
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON values."""
        return asdict(self)


def diagnose(directory: Path) -> Iterator[Check]:
    """Yield all checks; ``directory`` is where a job would write."""
    checks: tuple[Callable[[], Check], ...] = (
        check_python,
        check_packages,
        check_import_name,
        check_dashboard,
        check_object_stores,
        check_memory,
        check_open_files,
    )
    for check in checks:
        yield check()
    yield check_disk(directory)
    yield check_lock(directory)


def check_python() -> Check:
    """The interpreter is one that is supported."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return Check("python", FAIL, found, "use Python 3.11 or later")
    return Check("python", OK, f"{found} at {sys.prefix}")


def check_packages() -> Check:
    """Every package that a job needs is installed."""
    versions = {name: installed(name) for name in NEEDED}
    missing = [name for name, found in versions.items() if found is None]
    if missing:
        remedy = f"pip install {' '.join(missing)}"
        return Check("packages", FAIL, f"not installed: {', '.join(missing)}", remedy)
    return Check("packages", OK, ", ".join(f"{name} {found}" for name, found in versions.items()))


def check_import_name() -> Check:
    """The import name ``pipeline`` belongs to featfold alone."""
    owners = sorted(set(packages_distributions().get("pipeline", ())))
    others = [owner for owner in owners if owner != "featfold"]
    place = Path(__file__).parents[1]
    if others:
        remedy = f"pip uninstall {' '.join(others)}, or give featfold an environment of its own"
        found = f"the package 'pipeline' is also installed by {', '.join(others)}"
        return Check("import name", FAIL, found, remedy)
    return Check("import name", OK, f"pipeline is {place}")


def check_dashboard() -> Check:
    """Bokeh is there, without which the dashboard is an empty page."""
    found = installed("bokeh")
    if found is None:
        return Check("dashboard", WARN, "bokeh is not installed", "pip install 'bokeh>=3.1'")
    return Check("dashboard", OK, f"bokeh {found}")


def check_object_stores() -> Check:
    """What reads and writes stores at URLs, if they are wanted."""
    found = installed("obstore")
    if found is None:
        wanted = "only needed for stores at s3://, gs://, az:// and http(s)://"
        return Check("object stores", OK, f"obstore is not installed; {wanted}")
    return Check("object stores", OK, f"obstore {found}")


def check_memory() -> Check:
    """Memory of the machine, the limit of a container, and what a worker gets of it."""
    import psutil

    from pipeline.cluster import MEMORY_SHARE, settle

    total = psutil.virtual_memory().total
    resources = settle("threads")
    usable = int(resources.allowed_nbytes * resources.workers / MEMORY_SHARE)
    limit = f", limited to {size(usable)}" if usable < 0.99 * total else ""
    found = (
        f"{size(total)}{limit}; {size(resources.allowed_nbytes)} for each of "
        f"{resources.workers} workers"
    )
    if resources.allowed_nbytes < 2**29:
        return Check("memory", WARN, found, "pass --workers to share it among fewer workers")
    return Check("memory", OK, found)


def check_open_files() -> Check:
    """The process may open enough files."""
    try:
        import resource
    except ModuleNotFoundError:
        return Check("open files", OK, "not limited on this system")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FEW_FILES:
        return Check("open files", WARN, f"limited to {soft}", "ulimit -n 4096")
    return Check("open files", OK, "unlimited" if soft == resource.RLIM_INFINITY else str(soft))


def check_disk(directory: Path) -> Check:
    """There is room where the job would write, and how fast it is."""
    free = shutil.disk_usage(directory).free
    if free < 2 * PROBE_NBYTES:
        return Check("disk", FAIL, f"{size(free)} free in {directory}", "free some space")
    try:
        speed = _write_nbytes_per_second(directory)
    except OSError as error:
        remedy = "run from a directory that can be written to"
        return Check("disk", FAIL, f"cannot write to {directory}: {error.strerror}", remedy)
    found = f"{size(free)} free in {directory}, writes {size(speed)}/s"
    if free < SMALL_DISK_NBYTES:
        return Check("disk", WARN, found, "features of 50,000 images take about 10 GB as tokens")
    return Check("disk", OK, found)


def _write_nbytes_per_second(directory: Path) -> float:
    began = time.perf_counter()
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(os.urandom(PROBE_NBYTES))
        file.flush()
        os.fsync(file.fileno())
    return PROBE_NBYTES / (time.perf_counter() - began)


def check_lock(directory: Path) -> Check:
    """A lock keeps a second holder out, as writers and runs need it."""
    from pipeline import locks
    from pipeline.errors import FeatfoldError, LockedError

    try:
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            path = Path(folder) / "probe.lock"
            with locks.hold(path, "a probe"):
                leased = any(path.parent.glob("*.lease"))
                try:
                    with locks.hold(path, "a probe"):
                        remedy = "keep the store on a local disk, or never write it from two jobs"
                        return Check("file lock", FAIL, "a lock does not keep others out", remedy)
                except LockedError:
                    pass
    except (OSError, FeatfoldError) as error:
        remedy = "keep the store on a file system with locks"
        return Check("file lock", FAIL, f"{directory}: {error}", remedy)
    if leased:
        seconds = locks.LEASE_SECONDS + locks.MARGIN_SECONDS
        found = f"flock is refused in {directory}: leases take its place"
        remedy = f"after a run was killed there, the next one waits {seconds:.0f} s"
        return Check("file lock", WARN, found, remedy)
    return Check("file lock", OK, f"works in {directory}")


def installed(name: str) -> str | None:
    """Return the version of an installed distribution, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
