"""The command line in this process, and a small job whose store is filled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pipeline.__main__ import main
from pipeline.chunk import ArraySpec
from pipeline.store import Store

ROOT = Path(__file__).parents[2]
K, T, D = 4, 3, 8
JOB = """\
name: small
store: {store}
detectors: [msp, {{name: mahalanobis, covariance: pinvh}}]
evaluate: {{near: [ood/near/a], far: [ood/far/b], baselines: [plain]}}
resources: {{cluster: threads, workers: 2, cache: {cache}}}
report: {{directory: {runs}}}
"""
SPECS = {
    "features": ArraySpec((T, D), "float32", "TD"),
    "labels": ArraySpec((), "int64"),
    "plain": ArraySpec((), "float64"),
}


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run the command line here; return its exit code, stdout and stderr."""

    def run(*arguments: Any) -> Ended:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def shell(tmp_path: Path, environment: dict[str, str]) -> Callable[..., Ended]:
    """Run ``python -m pipeline`` in a process of its own, in ``tmp_path``."""

    def run(*arguments: Any) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *map(str, arguments)],
            capture_output=True, text=True, errors="replace", timeout=120,
            cwd=tmp_path, env=environment,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that imports this checkout, and modules of ``tmp_path``."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}


def fill(store: Store, name: str, rows: int, shift: float) -> None:
    """Write a split: features of K clusters, ``shift`` to the side."""
    rng = np.random.default_rng(rows)
    labels = np.arange(rows) % K if name.startswith("id") else np.full(rows, -1)
    features = rng.standard_normal((rows, T, D)) + shift + 6 * np.eye(K, D)[labels][:, None]
    writer = store.create_split(name, SPECS, classes=K, rows=rows)
    contents = {"features": features.astype("f4"), "labels": labels, "plain": rng.random(rows)}
    for block in writer.blocks:
        writer.write(block.index, {n: a[block.start : block.stop] for n, a in contents.items()})


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all jobs: the memory of an idle worker is measured once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def job(tmp_path: Path, cache: Path) -> Path:
    """A job over a store of four splits; its runs are below ``tmp_path``."""
    store = Store.create(tmp_path / "feats.zarr")
    for name, rows, shift in (
        ("id/train", 90, 0), ("id/test", 40, 0), ("ood/near/a", 30, 3), ("ood/far/b", 20, 30),
    ):  # fmt: skip
        fill(store, name, rows, shift)
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(store=store.path, cache=cache, runs=tmp_path / "runs"))
    return path
