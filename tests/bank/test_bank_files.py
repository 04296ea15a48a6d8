"""Banks too large to be saved with a scorer: streamed from files, the same to the last bit."""

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import pipeline as ff
from pipeline.bank import building
from pipeline.bank.search import search_nbytes
from pipeline.chunk import ArraySpec
from pipeline.content import Const, constants_in
from pipeline.detectors.anomaly_dino import AnomalyDINO
from pipeline.detectors.knn import KNN
from pipeline.detectors.nnguide import NNGuide
from pipeline.detectors.patchcore import PatchCore
from pipeline.detectors.relation import Relation
from pipeline.engine import Dask, Job, Threads, rehearse, run_jobs, run_serial
from pipeline.errors import CorruptError, MissingInputError
from pipeline.plan import memory, project_client
from pipeline.procedure import Rows, Scores
from pipeline.store import Store, artifacts, reader
from pipeline.testing import Data, assert_same, drive

TOKENS, D, K, BLOCK_ROWS = 3, 16, 4, 50
SPECS = {
    "features": ArraySpec((TOKENS, D), "float32", "TD"),
    "logits": ArraySpec((K,), "float32", "K"),
    "labels": ArraySpec((), "int64"),
}
DETECTORS = {
    "knn": KNN(k=7),
    "knn of tokens": KNN(k=2, pool="tokens", normalize=False),
    "nnguide": NNGuide(),
    "relation": Relation(power=2),
    "anomaly_dino": AnomalyDINO(max_bank=None),
}

NAMES = ("knn", "nnguide", "relation", "anomaly_dino", "patchcore")


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, K, count)
    return {
        "features": rng.standard_normal((count, TOKENS, D)).astype("f4"),
        "logits": rng.standard_normal((count, K)).astype("f4"),
        "labels": labels,
    }


@pytest.fixture
def store(tmp_path):
    made = Store.create(tmp_path / "feats.zarr")
    for split, blocks in {"id/train": 10, "id/test": 2}.items():
        writer = made.create_split(
            split, SPECS, classes=K, rows=blocks * BLOCK_ROWS,
            block_nbytes=BLOCK_ROWS * sum(spec.nbytes for spec in SPECS.values()),
            chunk_nbytes=10 * TOKENS * D * 4,
        )  # fmt: skip
        assert len(writer.blocks) == blocks
        for block in writer.blocks:
            writer.write(block.index, rows(block.rows, seed=block.index))
    return made


@pytest.fixture
def large(monkeypatch):
    """Let every bank be too large to be saved."""
    monkeypatch.setattr(building, "BANK_LIMIT_NBYTES", 0)


def fitted(store, cache, *names, execute=None):
    jobs = {name: Job(DETECTORS[name], {"train": (store.split("id/train"),)}) for name in names}
    return run_jobs(jobs, execute or Threads(2, cache))


def scored(scorer, split, execute=run_serial):
    return drive.outcome(drive.Ask(Rows(Scores(scorer))), split, execute).array()


@pytest.mark.parametrize("name", DETECTORS)
def test_a_bank_in_files_gives_the_bits_of_one_that_is_held(store, tmp_path, monkeypatch, name):
    held = fitted(store, tmp_path, name)[name]
    monkeypatch.setattr(building, "BANK_LIMIT_NBYTES", 0)
    streamed = fitted(store, tmp_path, name)[name]
    assert (held.bank.files, streamed.bank.held) == ((), None)
    assert len(streamed.bank.files) == 10
    assert streamed.bank.entries == held.bank.entries == len(held.bank.held.array)
    test = store.split("id/test")
    assert_same(scored(streamed, test), scored(held, test))


@pytest.mark.usefixtures("large")
def test_workers_read_the_files_of_a_bank(store, tmp_path, dask_client):
    execute = Dask(dask_client, tmp_path / "cache")
    scorer = fitted(store, None, "knn", execute=execute)["knn"]
    assert scorer.bank.files
    assert len(pickle.dumps(scorer)) < 10_000
    test = store.split("id/test")
    assert_same(scored(scorer, test, execute), scored(scorer, test))


@pytest.mark.usefixtures("large")
def test_a_saved_scorer_finds_its_files_again(store, tmp_path):
    scorer = fitted(store, tmp_path / "cache", "knn")["knn"]
    artifacts.save(scorer, tmp_path / "scorer", {})
    loaded, _ = artifacts.load(tmp_path / "scorer")
    assert loaded == scorer
    assert not list(constants_in(loaded))
    assert_same(scored(loaded, store.split("id/test")), scored(scorer, store.split("id/test")))


@pytest.mark.usefixtures("large")
def test_a_file_that_is_gone_is_an_error(store, tmp_path):
    scorer = fitted(store, tmp_path, "knn")["knn"]
    Path(scorer.bank.files[3].path).unlink()
    with pytest.raises(
        MissingInputError, match=r"(?s)bank of id/train.*not there any more.*max_bank"
    ):
        scored(scorer, store.split("id/test"))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("damage", ["flipped", "shortened", "other"])
def test_a_file_that_is_not_as_it_was_is_an_error(store, tmp_path, damage):
    scorer = fitted(store, tmp_path, "knn")["knn"]
    path, other = (Path(scorer.bank.files[i].path) for i in (3, 4))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    kept = {"flipped": content, "shortened": content[:900], "other": other.read_bytes()}
    path.write_bytes(kept[damage])
    with pytest.raises(CorruptError, match="bank of id/train"):
        scored(scorer, store.split("id/test"))


@pytest.mark.usefixtures("large")
def test_a_store_that_changes_leaves_the_neighbours_as_they_were(store, tmp_path):
    scorer = fitted(store, tmp_path, "knn")["knn"]
    before = scored(scorer, store.split("id/test"))
    store.writer("id/train").write(2, rows(BLOCK_ROWS, seed=99), overwrite=True)
    assert_same(scored(scorer, store.split("id/test")), before)
    again = fitted(store, tmp_path, "knn")["knn"]
    changed = [a != b for a, b in zip(scorer.bank.files, again.bank.files, strict=True)]
    assert changed == [index == 2 for index in range(10)]
    assert (scored(again, store.split("id/test")) != before).any()


@pytest.mark.parametrize("detector", [KNN(k=5), KNN(k=5, max_bank=40), PatchCore(max_bank=90)])
def test_a_fit_on_appended_rows_reads_these_alone(store, tmp_path, detector):
    def fit(execute):
        jobs = {"it": Job(detector, {"train": (store.split("id/train"),)})}
        return run_jobs(jobs, execute)["it"]

    fit(Threads(1, tmp_path))
    store.writer("id/train").append(rows(BLOCK_ROWS, seed=77))
    reader.reset_reads()
    found = fit(Threads(1, tmp_path))
    assert {chunk // 5 for _, name, chunk in reader.READS if name == "features"} == {10}
    assert found == fit(run_serial)


@pytest.mark.parametrize("max_bank", [None, 100, 10**6])
def test_a_plan_counts_the_bank_before_it_is_there(store, tmp_path, max_bank):
    jobs = {"it": Job(KNN(k=5, max_bank=max_bank), {"train": (store.split("id/train"),)})}
    _, planned = rehearse(jobs)
    real = run_jobs(jobs, Threads(1, tmp_path))["it"]
    (counted,) = constants_in(planned["it"])
    (held,) = constants_in(real)
    assert held.shape <= counted.shape
    assert counted.shape[0] == min(max_bank or 500, 500)
    assert counted.dtype == held.dtype
    schema = store.split("id/test").schema
    assert real.nearest.nbytes(schema, 64) <= planned["it"].nearest.nbytes(schema, 64)
    scored(planned["it"], store.split("id/test"))


@pytest.mark.usefixtures("large")
def test_a_plan_counts_the_tiles_of_a_bank_in_files(store, tmp_path):
    jobs = {"it": Job(KNN(k=5), {"train": (store.split("id/train"),)})}
    _, planned = rehearse(jobs)
    real = run_jobs(jobs, Threads(1, tmp_path))["it"]
    schema = store.split("id/test").schema
    declared = real.nearest.nbytes(schema, 64)
    assert declared <= planned["it"].nearest.nbytes(schema, 64) < 2 * declared


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("queries", "entries"), [(1, 500), (4000, 500), (64, 20_000)])
def test_a_search_takes_the_memory_that_is_declared_whatever_the_bank(tmp_path, queries, entries):
    rng = np.random.default_rng(0)
    made = Store.create(tmp_path / "wide.zarr")
    specs = {"features": ArraySpec((256,), "float32", "D"), "labels": ArraySpec((), "int64")}
    writer = made.create_split("id/train", specs, classes=1, rows=entries)
    for block in writer.blocks:
        features = rng.standard_normal((block.rows, 256)).astype("f4")
        writer.write(block.index, {"features": features, "labels": np.zeros(block.rows, int)})
    split = made.split("id/train")
    scorer = run_jobs({"it": Job(KNN(k=50), {"train": (split,)})}, Threads(1, tmp_path))["it"]
    assert scorer.bank.files
    x = rng.standard_normal((queries, 256))
    chunk = next(iter(split.read(split.blocks[0], frozenset({"features"}), 1)))
    chunk.arrays, chunk.rows = {"features": x}, queries
    scorer.nearest.of(chunk)
    tracemalloc.start()
    scorer.nearest(chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    declared = search_nbytes(scorer.bank, queries, scorer.nearest.k)
    assert 0.25 * declared < peak <= declared


def test_the_client_counts_the_banks_that_it_makes(store, monkeypatch):
    jobs = {"it": Job(KNN(k=5), {"train": (store.split("id/train"),)})}
    passes, _ = rehearse(jobs)

    def counted(limit):
        monkeypatch.setattr(memory, "BANK_LIMIT_NBYTES", limit)
        client = project_client(passes, 0, 1)
        return {part.name: part.nbytes for part in client.parts}["tables"]

    assert counted(2**30) == 2 * 500 * D * 8
    assert counted(500 * D * 4) == 2 * 500 * D * 4  # it may be of float32
    assert counted(500 * D * 4 - 1) == 0


def test_a_bank_of_several_splits_is_that_of_their_rows_together(store, tmp_path):
    parts = (store.split("id/train"), store.split("id/test"))
    job = {"it": Job(KNN(k=5), {"train": parts})}
    bank = run_jobs(job, Threads(2, tmp_path))["it"].bank
    each = [run_jobs({"it": Job(KNN(k=5), {"train": (part,)})})["it"].bank for part in parts]
    np.testing.assert_array_equal(bank.held.array, np.concatenate([one.held.array for one in each]))


def test_detectors_with_banks_are_fitted_saved_and_used_from_python(store, tmp_path):
    test = store.split("id/test")
    fitted_ones = ff.fit(list(NAMES), store.split("id/train"), cache=tmp_path / "cache")
    fitted_ones.save(tmp_path / "fitted")
    again = ff.api.Fitted.load(tmp_path / "fitted")
    before, after = (ff.score(one, test, cache=tmp_path / "cache") for one in (fitted_ones, again))
    assert_same(before, after)
    assert {name: one.passes for name, one in fitted_ones.items()} == dict.fromkeys(NAMES, 1)
    assert {one.rows for one in fitted_ones.values()} == {fitted_ones["knn"].rows}
    assert fitted_ones["knn"].rows[0] == fitted_ones["knn"].scorer.bank.entries


@pytest.mark.usefixtures("large")
def test_rows_in_memory_make_a_bank_that_is_held(tmp_path, dask_client):
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((300, 8)), rng.integers(-1, 2, 300)
    data = Data({"features": x, "labels": labels}, 2).cut([[100], [200]])
    for execute in (Threads(2), Dask(dask_client, tmp_path)):
        bank = drive.outcome(KNN(k=5), data, execute).bank
        np.testing.assert_array_equal(bank.held.array, x[labels >= 0])


def test_a_stand_in_for_rows_takes_the_memory_of_one():
    const = Const.repeated(np.arange(3.0), 10**12)
    assert (const.shape, const.dtype) == ((10**12, 3), np.float64)
    assert const.array[10**11].tolist() == [0.0, 1.0, 2.0]
    assert const == Const.repeated(np.arange(3.0), 10**12)
    assert const != Const.repeated(np.arange(3.0), 10**11)
