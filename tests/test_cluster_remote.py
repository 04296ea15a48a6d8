"""Schedulers and workers that were started separately, each a real process."""

import json
import time

import numpy as np
import pytest
from dask_processes import dask, scheduler_with, stop

from pipeline import cluster
from pipeline.chunk import ArraySpec
from pipeline.cluster import remote
from pipeline.content import digest
from pipeline.detectors import Mahalanobis
from pipeline.engine import Job, run_jobs
from pipeline.errors import BudgetError, FeatfoldError
from pipeline.store import Store
from pipeline.workplace import workplace

MiB = 2**20
K, ROWS, BLOCK_ROWS = 3, 240, 40


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The scheduler file of a scheduler that nobody has joined."""
    path = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
    scheduler = scheduler_with(path)
    yield path
    stop(scheduler)


@pytest.fixture
def join(file, tmp_path):
    """Start workers of the scheduler; wait until they have joined."""
    from distributed import Client

    started = []

    def start(threads, limit):
        count = len(started) + 1
        worker = dask(
            "worker", "--scheduler-file", file, "--nthreads", threads, "--memory-limit", limit,
            "--no-dashboard", "--local-directory", tmp_path / f"worker{count}",
            "--host", "127.0.0.1",
        )  # fmt: skip
        started.append(worker)
        with Client(json.loads(file.read_text())["address"]) as client:
            client.wait_for_workers(count, timeout=60)

    yield start
    for process in started:
        stop(process)
    with Client(json.loads(file.read_text())["address"]) as client:
        while client.nthreads():
            time.sleep(0.05)


def make(path, d, rows=ROWS):
    rng = np.random.default_rng(0)
    specs = {"features": ArraySpec((d,), "float32", "D"), "labels": ArraySpec((), "int64")}
    made = Store.create(path)
    writer = made.create_split(
        "id/train", specs, classes=K, rows=rows, block_nbytes=BLOCK_ROWS * (4 * d + 8),
        chunk_nbytes=BLOCK_ROWS * 4 * d,
    )  # fmt: skip
    for block in writer.blocks:
        labels = rng.integers(0, K, block.rows)
        features = rng.standard_normal((block.rows, d)) + 3 * np.eye(K, d)[labels]
        writer.write(block.index, {"features": features.astype("f4"), "labels": labels})
    return made


def address(file):
    return json.loads(file.read_text())["address"]


def test_the_workers_there_are_asked_what_they_have(file, join):
    join(1, 900 * MiB)
    join(2, 1000 * MiB)
    for kind in (str(file), address(file)):
        found = cluster.settle(kind)
        assert (found.workers, found.label) == (3, "3 remote workers")
        assert found.allowed_nbytes == int(0.8 * 1000 * MiB / 2)
        assert 20 * MiB < found.reserved_nbytes < 400 * MiB
        assert "2 workers at" in found.why


def test_memory_that_was_given_wins_and_nobody_is_asked():
    found = cluster.settle("tcp://127.0.0.1:1", workers=4, memory="1GiB")
    assert (found.workers, found.allowed_nbytes, found.reserved_nbytes) == (4, 2**30, None)


def test_a_worker_without_a_limit_has_a_share_of_its_machine(file, join):
    from pipeline.machine import memory_limit_nbytes

    join(1, 0)
    join(1, 0)
    assert cluster.settle(str(file)).allowed_nbytes == int(0.8 * (memory_limit_nbytes() // 2))


def test_a_scheduler_without_workers_is_one_clear_error(file, monkeypatch):
    monkeypatch.setattr(remote, "WORKERS_SECONDS", 0.2)
    with pytest.raises(FeatfoldError, match=r"no worker is connected to tcp://.*dask worker tcp"):
        cluster.settle(str(file))


def fitted(store, cache, kind, memory="auto"):
    jobs = {"m": Job(Mahalanobis(), {"train": (store.split("id/train"),)})}
    with workplace(jobs, kind, None, memory, cache) as place:
        return digest(run_jobs(jobs, place.execute))


def test_a_fit_over_there_is_the_same_to_the_bit(file, join, tmp_path):
    join(2, 2000 * MiB)
    store = make(tmp_path / "feats.zarr", 8)
    here = fitted(store, tmp_path / "here", "threads")
    assert fitted(store, tmp_path / "file", str(file)) == here
    assert fitted(store, tmp_path / "address", address(file)) == here


def test_a_plan_is_refused_for_what_the_workers_there_lack(file, join, tmp_path):
    join(4, 200 * MiB)
    store = make(tmp_path / "feats.zarr", 2048)
    with pytest.raises(BudgetError):
        fitted(store, tmp_path, str(file))


def test_a_scheduler_that_dies_during_a_run_is_one_clear_error(tmp_path):
    path = tmp_path / "scheduler.json"
    scheduler = scheduler_with(path)
    worker = dask(
        "worker", "--scheduler-file", path, "--nthreads", 1, "--no-nanny", "--no-dashboard",
        "--host", "127.0.0.1", "--local-directory", tmp_path / "worker",
    )  # fmt: skip
    folded = []

    def finished(pass_, work, block):
        folded.append(block)
        if len(folded) == 5:
            scheduler.kill()

    store = make(tmp_path / "feats.zarr", 8, rows=40 * BLOCK_ROWS)
    jobs = {"m": Job(Mahalanobis(), {"train": (store.split("id/train"),)})}
    resources = cluster.Resources(str(path), 1, 2**30, "")
    try:
        with (
            pytest.raises(FeatfoldError, match=r"the scheduler is gone.*Finished blocks are kept"),
            cluster.open_cluster(resources, tmp_path / "cache", finished=finished) as running,
        ):
            run_jobs(jobs, running.execute)
    finally:
        stop(worker)
        stop(scheduler)
    assert 5 <= len(folded) < len(store.split("id/train").blocks)
