"""Workers elsewhere that have GPUs: real processes, whose devices are the host's memory."""

import json
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from dask_processes import dask, scheduler_with, stop

from pipeline import api, cluster
from pipeline.cluster import cuda
from pipeline.errors import BudgetError, ConfigError, FeatfoldError

GB = 10**9
H100, A100 = ("NVIDIA H100", 80 * GB, None), ("NVIDIA A100", 40 * GB, None)
NAMES = ["mahalanobis", "kl_matching"]


def usable(nbytes, processes=1):
    return int(0.9 * (nbytes - processes * cuda.CONTEXT_NBYTES) / processes)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
    scheduler = scheduler_with(path)
    yield str(path)
    stop(scheduler)


@pytest.fixture
def join(file, tmp_path):
    """Start workers, each with the devices of its machine, and wait until they have joined."""
    from distributed import Client

    started = []
    address = json.loads(Path(file).read_text())["address"]

    def start(*machines, library="torch"):
        for devices in machines:
            worker = dask(
                "worker", address, "--host", "127.0.0.1", "--nthreads", 1, "--no-dashboard",
                "--no-nanny", "--memory-limit", "2GiB",
                "--local-directory", tmp_path / f"worker{len(started)}",
                *(("--preload", "worker_with_device") if devices else ()),
                settings={
                    "FAKE_DEVICES": json.dumps(devices), "CUDA_VISIBLE_DEVICES": "0",
                    "GPU_LIBRARY": library,
                },
            )  # fmt: skip
            started.append(worker)
        with Client(address) as client:
            client.wait_for_workers(len(started), timeout=60)

    yield start
    for process in started:
        stop(process)
    with Client(address) as client:
        while client.nthreads():
            time.sleep(0.05)


def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    features = rng.standard_normal((600, 8)) + 3 * np.eye(3, 8)[labels]
    logits = features[:, :3].astype("f4")
    return {"features": features.astype("f4"), "logits": logits, "labels": labels}


def _plugins(dask_worker):
    return [name for name in dask_worker.plugins if name.startswith("featfold-pools")]


def _library_opened():
    import os

    from pipeline.arrays import devices

    return [place.library for place in devices.OPENED], os.environ["CUPY_TF32"]


def test_a_fit_on_the_devices_of_workers_elsewhere_is_the_same(file, join, tmp_path):
    join([H100], [H100])
    found = cluster.settle(file)
    assert (found.label, found.device_nbytes) == ("2 remote GPUs", usable(80 * GB, 2))
    with cluster.open_cluster(found, tmp_path / "cache") as running:
        assert running.place.library == running.execute.place.library == "torch"
        assert running.peak_device_nbytes() == 0  # that of the host is not measured
        assert [*running.client.run(_plugins).values()] == [["featfold-pools-are-capped"]] * 2
        assert [*running.client.run(_library_opened).values()] == [(["torch"], "0")] * 2
    there = api.fit(NAMES, data(), classes=3, cluster=file, cache=tmp_path / "there")
    assert cluster.Cluster(found, running.execute).peak_device_nbytes() is None
    here = api.fit(NAMES, data(), classes=3, cluster="threads", cache=tmp_path / "here")
    theirs = api.score(there, data(), cluster=file, cache=tmp_path / "there")
    for name, ours in api.score(here, data(), cluster="threads", cache=tmp_path / "here").items():
        np.testing.assert_allclose(theirs[name], ours, rtol=1e-10, atol=1e-12)
    with cluster.remote.client(file) as client:  # left as they were
        assert [*client.run(_plugins).values()] == [[], []]
    with pytest.raises(BudgetError, match=r"on the device of each worker.*1 MiB are allowed"):
        api.fit(NAMES, data(), classes=3, cluster=file, device_memory="1MiB", cache=tmp_path)
    with pytest.raises(ConfigError, match=r"device_memory: 93.1 GiB.*smallest GPU has 74.5 GiB"):
        cluster.settle(file, device_memory="100GB")


def test_devices_are_used_only_where_every_worker_has_one(file, join):
    join([A100], [])
    found = cluster.settle(file)
    assert (found.label, found.device_nbytes) == ("2 remote workers", None)
    assert "1 of them have a GPU: only where all have one are they used" in found.why


def test_workers_without_a_device_are_told_when_one_was_said_to_be_there(file, join, tmp_path):
    join([], [A100])
    found = cluster.settle(file, 2, "1GiB", device_memory="8GB")
    with (
        pytest.raises(FeatfoldError, match=r"compute with one library.*featfold doctor"),
        cluster.open_cluster(found, tmp_path),
    ):
        pass


@pytest.mark.skipif(find_spec("cupy") is not None, reason="cupy is installed")
def test_a_library_that_does_not_work_over_there_is_told(file, join, tmp_path):
    join([A100], library="cupy")
    found = cluster.settle(file)
    with (
        pytest.raises(FeatfoldError, match=r"cupy does not work on a worker \(ModuleNotFoundError"),
        cluster.open_cluster(found, tmp_path),
    ):
        pass
    with cluster.remote.client(file) as client:
        assert [*client.run(_plugins).values()] == [[]]
