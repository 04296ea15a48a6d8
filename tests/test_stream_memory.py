"""Memory of a fit of streamed rows: within its plan, beside the model, and flat in the rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FIT = """
import json, sys
import torch
import pipeline as ff
from pipeline import streams
from pipeline.machine import peak_rss_nbytes, reset_peak, rss_nbytes

T, D, K, BATCH = 49, 256, 20, int(sys.argv[2])
rows = int(sys.argv[1])
generator = torch.Generator().manual_seed(0)
tokens = torch.randn(BATCH, T, D, generator=generator)
labels = torch.arange(BATCH) % K
weight = torch.eye(D, K)

def batches(rows):
    for start in range(0, rows, BATCH):
        yield tokens, labels

def model(x):
    x = x + 0
    return {"features": x, "logits": x.mean(dim=1) @ weight}

planned = []
streaming_of, client_of = streams.streaming_of, streams.client_of

def seen(passes, projections, *rest):
    execute = streaming_of(passes, projections, *rest)
    client, _ = client_of(passes, projections, streams.settle("threads", 1))
    most = max(p.nbytes for p in streams.with_folders(projections, execute))
    planned.append((most + client.nbytes, execute.folders))
    return execute

streams.streaming_of = seen
names = ["mahalanobis", "relative_mahalanobis", "she", "kl_matching",
         {"name": "mahalanobis", "pool": "tokens", "id": "tokens"}]

def fit(rows):
    return ff.fit(names, batches(rows), model=model, workers=int(sys.argv[3]), cache=sys.argv[4],
                  stream=True)

fit(BATCH)  # what the libraries hold
reset_peak()
before = rss_nbytes()
fitted = fit(rows)
assert fitted["tokens"].rows == (rows, rows)
print(json.dumps({"peak": peak_rss_nbytes(), "before": before, "passes": fitted.passes,
                  "projected": planned[-1][0], "folders": planned[-1][1],
                  "model": 2 * tokens.nbytes, "nbytes": rows * T * D * 4}))
"""


def measure(blocks, cache, batch=32, workers=2):
    """Fit so many blocks of 2,688 rows in a fresh process."""
    sizes = map(str, (blocks * 2688, batch, workers, cache))
    command = [sys.executable, "-c", FIT, *sizes]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_stream_stays_within_its_plan(tmp_path):
    found = measure(1, tmp_path / "none")
    assert found["passes"] == 1
    assert found["peak"] <= found["projected"] + found["model"]
    assert found["nbytes"] > 10**8
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    few, many = (measure(blocks, tmp_path / "none") for blocks in (1, 8))
    for found in (few, many):
        assert found["peak"] <= found["projected"] + found["model"]
    assert many["peak"] - few["peak"] < 16 * 2**20  # of which one node of the merge tree
    assert many["nbytes"] == 8 * few["nbytes"] > 10**9


@pytest.mark.slow
def test_several_threads_hold_no_more_than_planned(tmp_path):
    found = measure(6, tmp_path / "none", workers=4)
    assert found["folders"] == 3
    assert found["peak"] <= found["projected"] + found["model"]
