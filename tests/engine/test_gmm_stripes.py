"""A covariance per class, from end to end: stripes, what is planned, and what is held."""

import numpy as np
import pytest
from durable_store import K, make

import pipeline as ff
from pipeline import plan
from pipeline.chunk import ArraySpec
from pipeline.cluster import BOOKKEEPING_NBYTES
from pipeline.content import constants_in
from pipeline.detectors import GMM
from pipeline.engine import Job, Trace, rehearse, run_jobs, run_serial
from pipeline.errors import BudgetError
from pipeline.machine import give_back, rss_nbytes
from pipeline.procedure import Rows, Scores
from pipeline.statistics import ClassScatters
from pipeline.store import DeclaredSplit, Store


def test_a_fit_in_stripes_gives_the_bits_of_the_whole(tmp_path):
    store = make(tmp_path / "feats.zarr", 9)
    jobs = {"gmm": Job(GMM(), {"train": (store.split("id/train"),)})}
    whole = run_jobs(jobs, run_serial)["gmm"]
    (pass_,), _ = rehearse(jobs)
    room = plan.Room(0, plan.project(pass_, 0).nbytes - 1)
    trace = Trace()
    striped = run_jobs(jobs, run_serial, room=room, trace=trace)["gmm"]
    assert len(trace.passes) > 1
    assert len(striped.matrices) == K
    assert striped == whole


def stored(path, n=1600, d=128, classes=400):
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    x = rng.standard_normal((n, d)) + 3.0 * rng.standard_normal((classes, d))[y]
    specs = {"features": ArraySpec((d,), "float32", "D"), "labels": ArraySpec((), "int64")}
    writer = Store.create(path).create_split("id/train", specs, classes=classes, rows=n)
    for block in writer.blocks:
        rows = slice(block.start, block.stop)
        writer.write(block.index, {"features": x[rows].astype("f4"), "labels": y[rows]})
    return Store.open(path).split("id/train"), x


def test_a_memory_that_forces_stripes_changes_no_bit_from_python(tmp_path):
    split, x = stored(tmp_path / "feats.zarr")
    state, workers = ClassScatters().state_nbytes(split.schema), 4
    where = {"cluster": "threads", "workers": workers}
    free = ff.fit("gmm", split, cache=tmp_path / "free", **where)
    assert free.passes == 1
    give_back()
    reserved = (rss_nbytes() + BOOKKEEPING_NBYTES) // workers
    # A worker that merges whole states needs three of them.
    memory = reserved + int(2.9 * state)
    tight = ff.fit("gmm", split, cache=tmp_path / "tight", memory=memory, **where)
    assert tight.passes > 1
    assert tight["gmm"].scorer == free["gmm"].scorer
    assert np.isfinite(tight["gmm"](x[:100])).all()
    with pytest.raises(BudgetError, match="ClassScatters"):
        ff.fit("gmm", split, cache=tmp_path / "no", memory=reserved + state // 4, **where)


def declared(classes=1000, d=1024):
    specs = {"features": ArraySpec((d,), "float32", "D"), "labels": ArraySpec((), "int64")}
    return DeclaredSplit.of("id/train", specs, classes=classes, rows=50_000)


def test_plans_count_the_matrices_of_every_class_and_hold_none_of_them():
    split = declared()
    before = rss_nbytes()
    passes, outcomes = rehearse({"gmm": Job(GMM(), {"train": (split,)})})
    scorer = outcomes["gmm"]
    matrices = 1000 * 1024**2 * 8
    held = sum(np.prod(c.shape) * 8 for c in set(constants_in(scorer)))
    assert matrices < held < 1.01 * matrices
    without, client = (plan.project_client(passes, 0, 2, f).nbytes for f in ((), outcomes))
    assert client - without == held
    assert 3 * matrices < client < 3.1 * matrices
    scoring, _ = rehearse({"s": Job(Asked(scorer), {"train": (split,)})}, stage="score")
    parts = {part.name: part.nbytes for part in plan.project(scoring[0], 0).parts}
    assert held < parts["constants"] < 1.01 * held
    assert rss_nbytes() - before < 400 * 2**20


class Asked:
    """Asks for the scores of a scorer."""

    def __init__(self, scorer):
        self.scorer = scorer

    def passes(self, schema):
        yield {"scores": Rows(Scores(self.scorer))}


def test_the_other_covariances_need_no_stripes():
    for covariance in ("tied", "diagonal"):
        passes, outcomes = rehearse(
            {"gmm": Job(GMM(covariance=covariance), {"train": (declared(),)})}
        )
        client = plan.project_client(passes, 0, 2, outcomes).nbytes
        assert client < 300 * 2**20
