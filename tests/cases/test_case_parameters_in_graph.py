"""Case A04: parameters of a detector, or rows in memory, sent with every task of a graph.

References: dask/distributed#8814, dask/dask#11562, dask/dask-ml#281.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from distributed.protocol import pickle

import pipeline as ff
from pipeline.cluster import Resources, open_cluster
from pipeline.content import constants_in
from pipeline.engine import Job, run_jobs, run_serial
from pipeline.evaluation import Tabled
from pipeline.procedure import TRAIN, Scores
from pipeline.store import ArraySplit

K, D, CHUNKS, CHUNK_ROWS = 1000, 1024, 200, 8
GRAPH_NBYTES = 2**20


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    labels = np.arange(4 * K) % K
    features = rng.standard_normal((len(labels), D), "f4")
    return ff.fit("mahalanobis", (features, labels), cluster="threads", workers=1)


@pytest.fixture
def sent(monkeypatch):
    """The bytes of every task that the client submits, pickled as it pickles them."""
    sizes, submit = [], Client.submit

    def counted(self, function, *arguments, **options):
        sizes.append(len(pickle.dumps((function, arguments))))
        return submit(self, function, *arguments, **options)

    monkeypatch.setattr(Client, "submit", counted)
    return sizes


LOADS = Counter()


def count_loads():
    """Count in this worker how often each file of constants is read."""
    load = np.load

    def counted(path, *arguments, **options):
        LOADS[Path(path).name] += 1
        return load(path, *arguments, **options)

    np.load = counted


def loads():
    return dict(LOADS)


@pytest.mark.slow
def test_parameters_and_rows_reach_each_worker_once_and_by_name(fitted, sent, tmp_path):
    rows = np.random.default_rng(1).standard_normal((CHUNKS * CHUNK_ROWS, D), "f4")
    split = ArraySplit(rows, name="id/test", classes=K, block_rows=CHUNK_ROWS)
    assert len(split.blocks) == CHUNKS
    scorer = fitted["mahalanobis"].scorer
    constants = {f"{c.digest}.npy": c.array.nbytes for c in constants_in(scorer)}
    assert sum(constants.values()) >= 8 * (K * D + D * D)
    jobs = {"scores": Job(Tabled(Scores(scorer)), {TRAIN: (split,)})}
    expected = run_jobs(jobs, run_serial, stage="score")["scores"].array()
    with open_cluster(Resources("local", 2, 2**31, ""), tmp_path) as cluster:
        cluster.client.register_worker_callbacks(count_loads)
        for _ in range(2):
            sent.clear()
            found = run_jobs(jobs, cluster.execute, stage="score")["scores"].array()
            np.testing.assert_array_equal(found, expected)
            assert len(sent) >= CHUNKS
            assert sum(sent) < GRAPH_NBYTES < rows.nbytes
        read = cluster.client.run(loads)
    assert len(read) == 2
    for of_worker in read.values():
        assert {name: of_worker.get(name, 0) for name in constants} == dict.fromkeys(constants, 1)
    assert not list(tmp_path.rglob(".*"))
