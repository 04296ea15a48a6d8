"""(e) Two worker processes on the device: the same numbers, each about half of the blocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sites import Site

import pipeline as ff
from pipeline.chunk import ArraySpec
from pipeline.store import Store

WORKERS, BLOCKS = 2, 16
SECONDS = 60


@contextmanager
def scheduler(site: Site) -> Iterator[Path]:
    """Start a scheduler and two workers as an operator would; yield the scheduler's file."""
    file = site.out / "scheduler.json"
    file.unlink(missing_ok=True)
    common = ["--scheduler-file", str(file)]
    with ExitStack() as stack:
        stack.enter_context(
            _running(["dask", "scheduler", *common, "--host", "127.0.0.1", "--no-dashboard"], site)
        )
        cuda = not site.rehearsal and find_spec("dask_cuda") is not None
        kind = ["dask", "cuda", "worker"] if cuda else ["dask", "worker", "--nthreads", "1"]
        for _ in range(WORKERS):
            stack.enter_context(_running([*kind, *common, "--no-dashboard"], site))
        _until(file.is_file)
        yield file


@contextmanager
def _running(command: list[str], site: Site) -> Iterator[None]:
    log = (site.out / "processes.log").open("a")
    started = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=log, stderr=log, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.wait(SECONDS)
        log.close()


def _until(true: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("the scheduler did not start; see processes.log")
        time.sleep(0.1)


def show(site: Site) -> dict[str, Any]:
    """Fit on the workers and in this process on the CPU; say who took which blocks."""
    from distributed import Client, get_task_stream

    store = _store(site)
    names = ["mahalanobis", "react"]
    with scheduler(site) as file, Client(scheduler_file=str(file)) as client:
        client.wait_for_workers(WORKERS, timeout=SECONDS)
        with get_task_stream(client) as stream:
            there = ff.fit(names, store.split("id/train"), cluster=str(file), cache=site.out / "a")
    here = ff.fit(
        names, store.split("id/train"), cluster="threads", workers=1, cache=site.out / "b"
    )
    graph = [
        {"key": str(e["key"]), "worker": e["worker"], "start": e["startstops"][0]["start"]}
        for e in stream.data
    ]
    (site.out / "graph.json").write_text(json.dumps(graph, indent=1))
    folds = Counter(e["worker"] for e in graph if "fold" in e["key"] or "fit" in e["key"])
    scores = [ff.score(f, store.split("id/test")) for f in (there, here)]
    worst = max(float(np.abs(scores[0][n] - scores[1][n]).max()) for n in names)
    assert worst <= 1e-6 * max(float(np.abs(scores[1][n]).max()) for n in names), worst
    assert len(folds) == WORKERS, folds
    return {"blocks_by_worker": sorted(folds.values()), "largest_difference": worst}


def _store(site: Site) -> Store:
    made = Store.create(site.out / "features.zarr")
    rng = np.random.default_rng(0)
    t, d = site.size(49, 4), site.size(256, 8)
    specs = {"features": ArraySpec((t, d), "float16", "TD"), "labels": ArraySpec((), "int64")}
    for name, n in (("id/train", site.size(20_000, 400)), ("id/test", site.size(2_000, 40))):
        nbytes = 2 * n * t * d // BLOCKS
        writer = made.create_split(
            name, specs, classes=10, rows=n, block_nbytes=nbytes, chunk_nbytes=nbytes
        )
        for block in writer.blocks:
            labels = rng.integers(0, 10, block.rows)
            features = rng.standard_normal((block.rows, t, d), dtype="f4") + labels[:, None, None]
            writer.write(block.index, {"features": features.astype("f2"), "labels": labels})
    return made
