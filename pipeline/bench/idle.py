"""What a worker process holds apart from arrays: what a fit of next to nothing makes it keep.

A program of its own, so that it is measured in fresh processes: ``python -m pipeline.bench.idle``
prints the bytes, with ``cuda`` behind it those of a worker with a GPU. Plans reserve them for every
worker.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from pipeline import detectors
from pipeline.chunk import ArraySpec, Split
from pipeline.cluster import open_cluster, settle
from pipeline.engine import run_jobs
from pipeline.heads import StoredHead
from pipeline.inputs import fit_jobs
from pipeline.store import Store

DETECTORS = ("mahalanobis", "kl_matching", "she")
ARRAYS = {
    "features": ArraySpec((2, 8), "float32", "TD"),
    "logits": ArraySpec((2,), "float32", "K"),
    "labels": ArraySpec((), "int64"),
}
ROWS = 64
ALLOWED_NBYTES = 2**31


def main(kind: str = "local") -> None:
    """Print the peak memory of a worker that fitted detectors on a few rows of a store."""
    with tempfile.TemporaryDirectory() as directory:
        split = _stored(Path(directory) / "store.zarr")
        chosen = {name: detectors.load(name)() for name in DETECTORS}
        jobs = fit_jobs(chosen, split, StoredHead())
        resources = settle(kind, 1, ALLOWED_NBYTES)
        with open_cluster(resources, Path(directory)) as cluster:
            run_jobs(jobs, cluster.execute)
            print(cluster.peak_nbytes())


def _stored(path: Path) -> Split:
    """Return a split of several blocks of several chunks."""
    random = np.random.default_rng(0)
    store = Store.create(path)
    writer = store.create_split(
        "id/train", ARRAYS, classes=2, rows=ROWS, chunk_nbytes=128, block_nbytes=400
    )
    for block in writer.missing():
        labels = np.arange(block.rows) % 2
        rows = {
            "features": random.standard_normal((block.rows, 2, 8), dtype=np.float32),
            "logits": np.eye(2, dtype=np.float32)[labels],
            "labels": labels,
        }
        writer.write(block.index, rows)
    return store.split("id/train")


if __name__ == "__main__":
    main(*sys.argv[1:])
