"""What a worker process holds apart from arrays, measured once per environment."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipeline.errors import FeatfoldError

BOOKKEEPING_NBYTES = 12 * 2**20
"""What a process comes to hold beside arrays while it runs up to 10,000 tasks: mostly logs."""
IDLE = "pipeline.bench.idle"
"""Program that prints what a worker holds apart from arrays."""
OF_KIND: dict[str, tuple[str, ...]] = {
    "local": (),
    "cuda": ("dask-cuda", "torch", "cupy-cuda12x", "cupy-cuda13x"),
}
"""What it depends on beside what is the same for every worker."""
IDLE_VERSION = 3
"""Raised by hand when it measures something else."""


def version_of(name: str) -> str:
    """Return the version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def reserved_nbytes(cache: Path, kind: str = "local") -> int:
    """Return the memory of a worker process before any work, measured once per environment.

    ``kind`` is ``local``, or ``cuda`` for what CUDA and its libraries take of the host as well.
    """
    names = ("featfold", "numpy", "zarr", "dask", "distributed", *OF_KIND[kind])
    key = {name: version_of(name) for name in names} | {"python": sys.version, "by": IDLE_VERSION}
    record = cache / ("reserved.json" if kind == "local" else f"reserved-{kind}.json")
    try:
        known = json.loads(record.read_text())
    except (OSError, ValueError):
        known = {}
    if known.get("environment") == key:
        return int(known["nbytes"])
    program = [sys.executable, "-m", IDLE, kind]
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
