"""Banks in files are read once for a group of rows: counted, planned, and the same to the bit."""

import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest

import pipeline.fold
from pipeline.bank import building, groups, held, rows, streamed, waiting
from pipeline.calibration import Calibration
from pipeline.chunk import ArraySpec, Chunk
from pipeline.detectors.anomaly_dino import AnomalyDINO
from pipeline.detectors.ensemble import Ensemble
from pipeline.detectors.knn import KNN
from pipeline.detectors.max_logit import MaxLogit
from pipeline.detectors.nnguide import NNGuide
from pipeline.detectors.relation import Relation
from pipeline.engine import Dask, Job, Settings, Threads, pending, rehearse, run_jobs, run_serial
from pipeline.errors import DataError
from pipeline.fold import fold, group_of
from pipeline.plan import Pass, Work, explain, forecast, project, summary
from pipeline.procedure import Rows, Scored, Scores
from pipeline.statistics import Sums
from pipeline.store import Store
from pipeline.testing import Data, assert_same, drive
from pipeline.views import Every

TOKENS, D, K = 3, 16, 4
DETECTORS = {
    "knn": KNN(k=7),
    "knn of tokens": KNN(k=2, pool="tokens", normalize=False),
    "nnguide": NNGuide(),
    "relation": Relation(power=2),
    "anomaly_dino": AnomalyDINO(max_bank=None),
    "ensemble": Ensemble((KNN(k=3), MaxLogit(), NNGuide(k=2))),
}
BLOCKS, BLOCK_ROWS = 3, 40


def made(count, seed=0, *, masked=False, dtype="f4"):
    """Rows in memory, with void ones, and with tokens that are masked."""
    rng = np.random.default_rng(seed)
    arrays = {
        "features": rng.standard_normal((count, TOKENS, D)).astype(dtype),
        "logits": rng.standard_normal((count, K)).astype("f4"),
        "labels": rng.integers(-1, K, count),
    }
    if masked:
        arrays["mask"] = rng.random((count, TOKENS)) < 0.7
    return Data(arrays, K, "id/test")


def stored(root, name, data, blocks, chunk_rows=10):
    """Write rows into a store, in blocks of equal size."""
    store = Store.open(root) if root.exists() else Store.create(root)
    specs = {
        "features": ArraySpec((TOKENS, D), str(data.arrays["features"].dtype), "TD"),
        "logits": ArraySpec((K,), "float32", "K"),
        "labels": ArraySpec((), "int64"),
    }
    if "mask" in data.arrays:
        specs["mask"] = ArraySpec((TOKENS,), "bool")
    row_nbytes = sum(spec.nbytes for spec in specs.values())
    writer = store.create_split(
        name, specs, classes=K, rows=data.rows,
        block_nbytes=data.rows // blocks * row_nbytes,
        chunk_nbytes=chunk_rows * specs["features"].nbytes,
    )  # fmt: skip
    assert len(writer.blocks) == blocks
    for block in writer.blocks:
        taken = data.take(np.arange(block.start, block.stop))
        writer.write(block.index, taken.arrays)
    return store.split(name)


@pytest.fixture
def train(tmp_path):
    return stored(tmp_path / "feats.zarr", "id/train", made(200, 1), 4)


@pytest.fixture
def test(train, tmp_path):
    return stored(tmp_path / "feats.zarr", "id/test", made(BLOCKS * BLOCK_ROWS, 2), BLOCKS)


@pytest.fixture
def large(monkeypatch):
    """Let every bank be too large to be saved."""
    monkeypatch.setattr(building, "BANK_LIMIT_NBYTES", 0)


@pytest.fixture
def reads(monkeypatch):
    """Return the bytes that were read of the files of banks, each time that one was opened."""
    found, opened = [], rows.opened_rows

    @contextmanager
    def counted(path):
        with opened(path) as entries:
            read = entries.read

            def counting(count):
                part = read(count)
                found[-1] += part.nbytes
                return part

            entries.read = counting
            found.append(0)
            yield entries

    monkeypatch.setattr(rows, "opened_rows", counted)
    return found


@pytest.fixture
def of_rows(monkeypatch):
    """Return what lets groups hold so many rows, whatever their bytes, or else a step."""

    def hold(count):
        monkeypatch.setattr(pipeline.fold, "group_rows", lambda v, s, step, _: max(step, count))

    return hold


def fitted(name, train, cache, execute=None):
    jobs = {name: Job(DETECTORS[name], {"train": (train,)})}
    return run_jobs(jobs, execute or Threads(2, cache))[name]


def scored(scorer, split, execute=run_serial, view=Scores, **options):
    job = {"it": Job(drive.Ask(Rows(view(scorer))), {"train": (split,)})}
    return run_jobs(job, execute, **options)["it"].array()


def scoring(scorer, split, shrink=0):
    """Return the pass that scores a split, and what is left to do of it."""
    asked = Rows(Scores(scorer))
    pass_ = Pass("score", 1, (Work(split, (), (asked,)),), {asked: ("it",)})
    return pass_, lambda cache: pending(pass_, Settings(shrink), cache)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("group", "expected"),
    [(1, 4 * BLOCKS), (10, 4 * BLOCKS), (15, 3 * BLOCKS), (39, 2 * BLOCKS), (40, BLOCKS)],
)
def test_a_bank_is_read_once_for_a_group_and_the_plan_knows_it(
    train, test, tmp_path, reads, of_rows, group, expected
):
    scorer = fitted("knn", train, tmp_path)
    entries = scorer.bank.entries
    of_rows(group)
    pass_, left = scoring(scorer, test)
    planned = left(tmp_path)
    assert planned.groups == expected
    assert pass_.works[0].banks_nbytes == 200 * D * 8 > entries * D * 8  # void rows are there
    assert planned.banks_nbytes == expected * 200 * D * 8
    reads.clear()
    scored(scorer, test)
    assert len(reads) == expected * len(scorer.bank.files)
    assert sum(reads) == planned.banks_nbytes


@pytest.mark.usefixtures("large")
def test_what_is_there_already_is_not_planned_to_be_read(train, test, tmp_path, reads):
    scorer = fitted("knn", train, tmp_path)
    _, left = scoring(scorer, test)
    assert left(tmp_path).groups == BLOCKS
    scored(scorer, test, Threads(2, tmp_path))
    reads.clear()
    assert (left(tmp_path).groups, left(tmp_path).banks_nbytes) == (0, 0)
    scored(scorer, test, Threads(2, tmp_path))
    assert not reads


@pytest.mark.usefixtures("large")
def test_the_table_of_a_plan_says_what_is_read_of_banks(train, test, tmp_path):
    scorer = fitted("knn", train, tmp_path)
    pass_, left = scoring(scorer, test)
    text = explain([pass_], [project(pass_, 0)], [left(tmp_path)], 2**30)
    assert "  banks: 3 groups of rows, reads 75 KiB of them\n" in text
    assert "to read and 75 KiB of banks" in summary([pass_], [left(tmp_path)], [])


@pytest.mark.usefixtures("large")
def test_a_plan_before_the_fit_counts_the_same_reads(train, test, tmp_path):
    jobs = {"it": Job(KNN(k=5), {"train": (train,)})}
    _, outcomes = rehearse(jobs)
    real = run_jobs(jobs, Threads(1, tmp_path))["it"]
    counted = [scoring(scorer, test)[1](tmp_path) for scorer in (outcomes["it"], real)]
    assert [left.groups for left in counted] == [BLOCKS, BLOCKS]
    assert counted[0].banks_nbytes == counted[1].banks_nbytes


def test_hours_count_the_search_in_files_as_one_in_memory(train, test, tmp_path, monkeypatch):
    def span(scorer):
        pass_, left = scoring(scorer, test)
        rates = Calibration(1e15, 1e15, 1e6, 1e15, 1e15)
        return forecast(pass_, left(tmp_path), rates, 1, 2**40)

    held = span(fitted("knn", train, tmp_path))
    monkeypatch.setattr(building, "BANK_LIMIT_NBYTES", 0)
    streamed = span(fitted("knn", train, tmp_path))
    assert held.least_seconds > 4 * BLOCKS * BLOCK_ROWS * 160 * D / 1e6
    assert streamed.least_seconds == pytest.approx(held.least_seconds, rel=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", DETECTORS)
def test_groups_change_no_bit(train, tmp_path, monkeypatch, of_rows, name, masked):
    kept = fitted(name, train, tmp_path)
    monkeypatch.setattr(building, "BANK_LIMIT_NBYTES", 0)
    scorer = fitted(name, train, tmp_path)
    data = made(40, 5, masked=masked)
    expected = {view: scored(kept, data.cut(), view=view) for view in (Scores, Scored)}
    for group in (1, 13, 10**6):
        of_rows(group)
        for chunk_rows in (1, 7, 39, 40):
            sizes = [min(chunk_rows, 40 - start) for start in range(0, 40, chunk_rows)]
            for view, scores in expected.items():
                found = scored(scorer, data.cut([[0, *sizes, 0], [0]]), view=view)
                assert_same(found, scores)


@pytest.mark.parametrize("name", DETECTORS)
def test_executors_and_libraries_agree_over_groups(
    train, test, tmp_path, monkeypatch, dask_client, of_rows, name
):
    kept = fitted(name, train, tmp_path)
    monkeypatch.setattr(building, "BANK_LIMIT_NBYTES", 0)
    scorer = fitted(name, train, tmp_path)
    expected = scored(kept, test)
    of_rows(15)
    for execute in (Threads(3), Dask(dask_client, tmp_path / "cache"), Threads(2, tmp_path)):
        assert_same(scored(scorer, test, execute), expected)
    found = scored(scorer, test, drive.at(drive.PLACES["array_api_strict"]))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.usefixtures("large")
def test_an_ensemble_is_fitted_over_groups(train, tmp_path, monkeypatch, reads, of_rows):
    of_rows(50)
    scorer = fitted("ensemble", train, tmp_path, run_serial)
    assert not reads  # rows that are not kept in files make banks that are held
    scorer = fitted("ensemble", train, tmp_path)
    assert len(reads) == 4 * 4 * 2  # blocks that are scored, files of a bank, members with one
    monkeypatch.undo()
    expected = fitted("ensemble", train, tmp_path / "other")
    assert (scorer.weights, scorer.centres) == (expected.weights, expected.centres)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["knn", "knn of tokens", "ensemble"])
def test_rows_that_are_not_finite_are_refused_or_have_no_score(train, tmp_path, of_rows, name):
    scorer = fitted(name, train, tmp_path)
    data = made(40, 5)
    spoilt = data.arrays["features"].copy()
    spoilt[17, 1, 3], spoilt[30, 0, 0] = np.nan, np.inf
    of_rows(15)
    cut = data.with_arrays(features=spoilt).cut([[7] * 5 + [5]])
    with pytest.raises(DataError, match=r"id/test: 1 rows within rows 14-20 .*first row 17"):
        scored(scorer, cut)
    found, expected = (scored(scorer, s, skip_nonfinite=True) for s in (cut, data.cut()))
    whole = np.delete(np.arange(40), [17, 30])
    assert_same(found[whole], expected[whole])
    assert np.isnan(found[[17, 30]]).reshape(2, -1).any(axis=1).all()


@pytest.mark.usefixtures("large")
def test_half_precision_is_searched_in_double(tmp_path, of_rows):
    train = stored(tmp_path / "half.zarr", "id/train", made(200, 1, dtype="f2"), 4)
    scorer = fitted("knn of tokens", train, tmp_path)
    data = made(40, 5, dtype="f2")
    expected = scored(scorer, data.with_arrays(features=data.arrays["features"].astype("f8")).cut())
    of_rows(15)
    assert_same(scored(scorer, data.cut([[9] * 4 + [4]])), expected)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", DETECTORS)
def test_a_group_is_scored_from_what_is_held_alone(train, tmp_path, name):
    scorer = fitted(name, train, tmp_path)
    split = made(40, 5, masked=True).cut()
    views = waiting([Rows(Scores(scorer))])
    (chunk,) = split.read(split.blocks[0], frozenset(split.schema.arrays))
    parts = {view: view(chunk) for view in held(views, split.schema)}
    assert not any(map(streamed, parts))
    mask = {"mask": chunk["mask"]}
    alone = Chunk(split.schema, chunk.start, chunk.rows, mask, views=parts)
    assert_same(Scores(scorer)(alone), Scores(scorer)(chunk))


@pytest.mark.usefixtures("large")
def test_a_group_is_as_large_as_its_budget_and_halved_with_the_steps(train, test, tmp_path):
    scorer = fitted("knn", train, tmp_path)
    asked = [Rows(Scores(scorer))]
    each = group_of(test, (), asked, 0)
    row = 8 * D + 8 + 2 * 8 * 16 + 4 * 8  # pooled, finite, nearest, scores
    assert each == groups.GROUP_NBYTES // row
    assert group_of(test, (), asked, 3) == (groups.GROUP_NBYTES >> 3) // row
    assert group_of(test, (), asked, 40) == 1  # the rows of a step
    assert group_of(test, (), [Rows(Every())], 0) == 0


@pytest.mark.usefixtures("large")
def test_statistics_of_scores_and_others_are_folded_in_one_pass(train, test, tmp_path, of_rows):
    scorer = fitted("knn", train, tmp_path)
    of_rows(15)
    both = (Sums(Scored(scorer), Every()), Sums())
    for block in test.blocks:
        found = fold(both, test, block)
        scores = scored(scorer, test)[block.start : block.stop]
        assert found.used[0] == BLOCK_ROWS
        np.testing.assert_allclose(found.states[0].total[0], scores.sum(), rtol=1e-12)
        assert_same(found.states[1], fold(both[1:], test, block).states[0])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("budget", [2**16, 2**20, 2**22])
def test_memory_of_a_group_is_projected(train, tmp_path, monkeypatch, budget):
    monkeypatch.setattr(groups, "GROUP_NBYTES", budget)
    scorer = fitted("knn of tokens", train, tmp_path)
    split = stored(tmp_path / "many.zarr", "id/test", made(6000, 3), 1, chunk_rows=200)
    asked = Rows(Scores(scorer))
    work = Work(split, (), (asked,))
    pass_ = Pass("score", 1, (work,), {asked: ("it",)})
    fold((), split, split.blocks[0], (asked,))  # whatever is made once
    tracemalloc.start()
    fold((), split, split.blocks[0], (asked,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    parts = {part.name: part.nbytes for part in project(pass_, 0).parts}
    parts.pop("slack")
    assert 0.2 * sum(parts.values()) < peak < sum(parts.values()) + 2**19
    assert parts["views"] > budget / 2
