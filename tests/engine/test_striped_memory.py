"""Measured memory of a real client and its workers, beside what was projected for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from pipeline.chunk import ArraySpec
from pipeline.cluster import open_cluster, settle
from pipeline.machine import peak_rss_nbytes, reset_peak
from pipeline.engine import Job, Settings, Trace, rehearse, run_jobs
from pipeline.statistics import ClassMoments, ClassScatters
from pipeline.store import Store
from pipeline.testing import drive
from pipeline.workplace import client_of, projected, room_of

K, T, D, N = 80, 2, 384, 3000
SPECS = {"features": ArraySpec((T, D), "float32", "TD"), "labels": ArraySpec((), "int64")}

def main():
    here = Path(sys.argv[1])
    writer = Store.create(here / "s.zarr").create_split(
        "id/train", SPECS, classes=K, rows=N, block_nbytes=N // 6 * (T * D * 4 + 8)
    )
    rng = np.random.default_rng(0)
    for block in writer.blocks:
        features = rng.standard_normal((block.rows, T, D), np.float32)
        writer.write(block.index, {"features": features, "labels": rng.integers(0, K, block.rows)})
    role = {"train": (Store.open(here / "s.zarr").split("id/train"),)}
    asked = {"per class": ClassScatters(), "all": ClassMoments()}
    jobs = {name: Job(drive.Ask(statistic), role) for name, statistic in asked.items()}
    resources = settle("local", 1, sys.argv[2])
    room = room_of(resources)
    passes, _ = rehearse(jobs, room=room)
    projections, shrink = projected(passes, resources)
    client, _ = client_of(passes, projections, resources)
    reset_peak()
    with open_cluster(resources, here / "cache", Settings(shrink)) as cluster:
        trace = Trace()
        found = run_jobs(jobs, cluster.execute, room=room, trace=trace)
        worker = cluster.peak_nbytes()
    total = found["per class"].scatter.sum(axis=0)
    print(json.dumps({
        "passes": len(trace.passes), "planned": len(passes), "allowed": resources.allowed_nbytes,
        "worker": [worker, max(p.nbytes for p in projections)],
        "client": [peak_rss_nbytes(), client.nbytes],
        "agrees": bool(np.allclose(total, found["all"].scatter, rtol=1e-9, atol=1e-6)),
    }))

if __name__ == "__main__":
    main()
"""


def measured(tmp_path, memory):
    script = tmp_path / "fit.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, script, tmp_path, memory], capture_output=True, text=True, timeout=250,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("memory", ["1GiB", "180MiB"])
def test_client_and_worker_keep_to_their_projections(tmp_path, memory):
    found = measured(tmp_path, memory)
    assert found["agrees"]
    assert found["passes"] == found["planned"]
    assert (found["passes"] == 1) == (memory == "1GiB")
    for who in ("worker", "client"):
        peak, projected = found[who]
        assert peak <= projected < 2.5 * peak, who
    assert found["worker"][1] <= found["allowed"]
