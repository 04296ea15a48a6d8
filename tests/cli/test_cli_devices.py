"""``--cluster cuda`` and ``--device-memory`` on the command line of a machine without a GPU."""

import json
from pathlib import Path

import pytest

from pipeline.config import load


@pytest.fixture(autouse=True)
def _no_devices(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # on a machine that has some, too


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_a_job_that_asks_for_gpus_is_refused_without_them(cli, job, verb):
    code, _, err = cli(verb, job, "--cluster", "cuda")
    assert (code, "cluster: cuda" in err, "Traceback" in err) == (2, True, False)
    assert not (Path(job).parent / "runs").exists()


def test_predictions_too(cli, tmp_path):
    import numpy as np

    for name in ("predictions", "labels"):
        np.save(tmp_path / f"{name}.npy", np.zeros(4, "int64"))
    files = (tmp_path / "predictions.npy", tmp_path / "labels.npy")
    code, _, err = cli("eval", *files, "--classes", 2, "--cluster", "cuda")
    assert (code, "cluster: cuda" in err) == (2, True)
    code, _, _ = cli("eval", *files, "--classes", 2, "--device-memory", "8GB")
    assert code == 0  # which counts where there are devices
    code, _, err = cli("eval", "--epochs", tmp_path, "--device-memory", "8GB")
    assert (code, "--device-memory: it does not go with --epochs" in err) == (2, True)


def test_memory_of_devices_is_a_size_of_the_job(cli, job):
    code, out, _ = cli("plan", job, "--json", "--device-memory", "8GB")
    assert (code, json.loads(out)["device_nbytes"]) == (0, None)  # of threads
    job.write_text(job.read_text().replace("cache:", "device_memory: 8GB, cache:"))
    assert load(job).resources.device_memory == "8GB"
    for given in ("much", "0", "-1GB"):
        code, _, err = cli("plan", job, "--device-memory", given)
        assert (code, f"got '{given}'" in err, "or auto" in err) == (2, True, True), err
