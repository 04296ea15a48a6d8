"""The scripts under workflows/ do what they say, from a shell."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.chunk import ArraySpec
from pipeline.store import Store

ROOT = Path(__file__).parent.parent
K, T, D = 3, 4, 8


@pytest.fixture
def store(tmp_path):
    made = Store.create(tmp_path / "features.zarr")
    rng = np.random.default_rng(0)
    arrays = {"features": ArraySpec((T, D), "float32", "TD"), "labels": ArraySpec((), "int64")}
    for name, n, shift in (("id/train", 120, 0), ("id/test", 40, 0), ("ood/far/a", 30, 5)):
        labels = rng.integers(0, K, n) if name.startswith("id") else np.full(n, -1)
        features = rng.standard_normal((n, T, D)) + 5 * np.eye(K, D)[labels][:, None, :] + shift
        writer = made.create_split(name, arrays, classes=K, rows=n)
        writer.write(0, {"features": features.astype("f4"), "labels": labels})
    return made.path


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "workflows" / script), *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_fit_then_evaluate(store, tmp_path):
    fit = run("fit.py", store, "--out", tmp_path / "fitted", "--detectors", "mahalanobis", "msp")
    assert fit.returncode == 0, fit.stderr
    assert "mahalanobis, msp: 1 passes" in fit.stdout
    done = run("evaluate.py", store, tmp_path / "fitted")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    far = {row["detector"]: row["metrics"]["auroc"]["value"] for row in found["scores"]}
    assert far["mahalanobis"] > 0.99
    assert found["classification"]["overall"]["accuracy"]["value"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["missing.zarr"], 4, "missing.zarr"),
        (["STORE", "--split", "id/val"], 4, "id/val"),
        (["STORE", "--detectors", "mahalanobi"], 2, "did you mean 'mahalanobis'"),
        (["STORE", "--memory", "1MiB"], 3, "--memory"),
    ],
)
def test_a_script_ends_with_the_exit_code_of_its_error(store, tmp_path, arguments, code, says):
    named = [str(store) if a == "STORE" else a for a in arguments]
    done = run("fit.py", *named, "--out", tmp_path / "fitted")
    assert (done.returncode, says in done.stderr, "Traceback" in done.stderr) == (code, True, False)
