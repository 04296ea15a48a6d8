"""A collection of one rank: what it keeps beside its metrics goes wherever they go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score
from torch.utils.data import DataLoader, TensorDataset

from pipeline import metrics
from pipeline.collection import Collection as OneProcess
from pipeline.ddp import Collection, Moment, Panels, Run, after, callback
from pipeline.ddp.claims import Claims
from pipeline.ddp.live import Ranks
from pipeline.ddp.panels import taken
from pipeline.errors import ConfigError, DataError

CLASSES, VOID = 4, 255
WHEN = Moment("val", 1)


def rows(seed: int, count: int = 50) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, CLASSES, count)
    return np.where(rng.random(count) < 0.6, truth, rng.integers(0, CLASSES, count)), truth


def made(*seeds: int, keep: bool = True, **options) -> Collection:
    collection = Collection("iou", classes=CLASSES, ignore=VOID, **options)
    if keep:
        assert collection.keep_matrix()
    for seed in seeds:
        collection.update(*rows(seed))
    return collection


def kept(collection: Collection, folder, wanted="iou"):
    """Return the epoch of a run with what a collection holds, without class 0."""
    run = Run(folder)
    collection.write(run, run.open_attempt(), WHEN)
    (epoch,) = after(run, wanted, ignore=[0, VOID])
    return epoch


def iou_without_0(*seeds: int) -> float:
    predicted, truth = (np.concatenate(x) for x in zip(*map(rows, seeds), strict=True))
    counts = truth != 0
    return jaccard_score(truth[counts], predicted[counts], labels=[1, 2, 3], average="macro")


@pytest.mark.parametrize("file", [False, True])
def test_what_was_saved_comes_back_with_its_rows_and_its_matrix(tmp_path, file):
    first, second = made(1), made(7, 8)
    if file:
        first.save(tmp_path / "state.safetensors")
        second.load(tmp_path / "state.safetensors")
    else:
        second.load_state_dict(first.state_dict())
    second.update(*rows(2))
    assert second.rows == 100
    epoch = kept(second, tmp_path / "run")
    assert epoch.rows == 100
    assert float(epoch.numbers["iou_mean"]) == pytest.approx(iou_without_0(1, 2), abs=1e-15)


def test_what_was_saved_without_a_matrix_has_none_afterwards(tmp_path):
    second = made()
    second.load_state_dict(made(1, keep=False).state_dict())
    second.update(*rows(2))
    partial = second.partial("run", 1, WHEN)
    assert (partial.about["rows"], "matrix" in partial.about["definitions"]) == (100, False)
    second.reset()
    second.update(*rows(3))
    epoch = kept(second, tmp_path / "run")
    assert float(epoch.numbers["iou_mean"]) == pytest.approx(iou_without_0(3), abs=1e-15)


def test_rows_of_which_nothing_was_known_stay_so(monkeypatch):
    second = made()
    second.load_state_dict(made(1).state_dict())
    monkeypatch.setattr(second, "_here", lambda *_: Ranks(0, 2, None, 1.0))
    with pytest.raises(ConfigError, match="nothing says which rows repeat"):
        second.compute()


def test_one_process_that_loads_the_states_of_a_rank_is_told_whose_they_are(monkeypatch):
    saved = []
    for rank in range(2):
        one = made(rank, repeats="none")
        monkeypatch.setattr(one, "_here", lambda *_, rank=rank: Ranks(rank, 2, None, 1.0))
        saved.append(one.state_dict())
    both = [made(), made()]
    for rank, one in enumerate(both):
        with pytest.warns(UserWarning, match=rf"states of rank {rank} of 2 alone; load those of"):
            one.load_state_dict(saved[rank])
    both[0].merge(both[1])
    assert both[0].rows == 100
    assert both[0].packed().tolist() == made(0, 1).packed().tolist()


def test_states_of_a_collection_of_one_process_are_refused_for_their_rows_are_unknown(tmp_path):
    other = OneProcess("iou", classes=CLASSES, ignore=VOID)
    other.update(*rows(1))
    collection = made(2)
    before = collection.packed().tolist()
    for act in (
        lambda: collection.load_state_dict(other.state_dict()),
        lambda: collection.merge(other),
        lambda: collection.merge(made(3), other),
    ):
        with pytest.raises(ConfigError, match="Collection of one process"):
            act()
    assert (collection.rows, collection.packed().tolist()) == (50, before)


@pytest.mark.parametrize("matrix", [False, True])
def test_restored_states_without_a_matrix_leave_none_of_later_rows_alone(matrix):
    own = OneProcess("iou", classes=CLASSES, ignore=VOID)
    own.update(*rows(1))
    collection = made()
    whole = made(1)._matrix.counts if matrix else None
    collection.restore({"metrics": own, "matrix": whole}, 50)
    collection.update(*rows(2))
    partial = collection.partial("run", 1, WHEN)
    assert partial.about["rows"] == 100
    assert ("matrix" in partial.about["definitions"]) == matrix


def test_a_matrix_of_other_rows_than_the_metrics_is_refused(tmp_path):
    collection = made(1)
    collection._matrix.update(*rows(2))
    with pytest.raises(DataError, match="of 2 batches, the metrics of 1"):
        kept(collection, tmp_path / "run")


def test_merged_collections_of_which_one_has_no_matrix_have_none():
    collection, bare = made(1), made(2, keep=False)
    collection.merge(bare)
    assert collection.rows == 100
    assert "matrix" not in collection.partial("run", 1, WHEN).about["definitions"]
    collection = made(1)
    collection.merge(made(2), made(3))
    assert collection._matrix.counts.updates == 3


def test_a_matrix_that_was_dropped_is_kept_again_after_a_reset(tmp_path):
    collection = made()
    collection._matrix.drop()
    assert collection.keep_matrix()  # as trainer.test() does: nothing is raised on one rank alone
    assert "matrix" not in collection.partial("run", 1, WHEN).about["definitions"]
    collection.reset()
    collection.update(*rows(1))
    epoch = kept(collection, tmp_path / "run")
    assert float(epoch.numbers["iou_mean"]) == pytest.approx(iou_without_0(1), abs=1e-15)


def test_a_matrix_that_is_asked_for_late_begins_with_the_next_reset(tmp_path):
    collection = made(1, keep=False)
    assert collection.keep_matrix()
    collection.update(*rows(2))
    assert "matrix" not in collection.partial("run", 1, WHEN).about["definitions"]
    collection.reset()
    collection.update(*rows(3))
    assert "matrix" in collection.partial("run", 1, WHEN).about["definitions"]


def accuracy(**options) -> Collection:
    return Collection("accuracy", classes=CLASSES, **options)


def test_a_copy_in_one_process_knows_the_samples_of_the_original():
    collection, (predicted, truth) = accuracy(), rows(1)
    collection.update(predicted, truth, ids=np.arange(50))
    copy = collection.clone()
    copy.update(predicted, truth, ids=np.arange(50))
    assert copy.rows == 50
    collection.update(*rows(2), ids=np.arange(100, 150))
    copy.update(*rows(2), ids=np.arange(100, 150))
    assert copy.rows == collection.rows == 100
    expected = accuracy_score(*(np.concatenate(x) for x in zip(rows(1), rows(2), strict=True)))
    assert float(copy.compute()["accuracy"]) == expected


def test_claims_of_several_ranks_cannot_be_copied_until_a_reset():
    from torch.distributed import HashStore

    store = HashStore()
    here = Ranks(0, 2, store, 1.0)
    claims = Claims()
    assert claims.copied().claim("a", ["x"], here) == [0]  # nothing was claimed: a copy is free
    assert claims.claim("a", ["x", "y"], here) == [0, 1]
    copy = claims.copied()
    with pytest.raises(ConfigError, match=r"rows whose ids are not known.*reset\(\)"):
        copy.claim("a", ["x"], here)
    copy.reset()
    assert copy.claim("a", ["x"], here) == [0]
    assert claims.claim("a", ["x", "z"], here) == [1]


def test_ids_beside_rows_from_elsewhere_are_refused_until_a_reset():
    def loaded(collection):
        collection.load_state_dict(accuracy_of(1).state_dict())

    def merged(collection):
        collection.merge(accuracy_of(1))

    def accuracy_of(seed):
        other = accuracy()
        other.update(*rows(seed), ids=np.arange(50))
        return other

    for act in (loaded, merged):
        collection = accuracy()
        act(collection)
        with pytest.raises(ConfigError, match=r"rows whose ids are not known"):
            collection.update(*rows(1), ids=np.arange(50))
        assert collection.rows == 50
        collection.reset()
        collection.update(*rows(1), ids=np.arange(50))
        assert collection.rows == 50


def batches() -> DataLoader:
    predicted, truth = rows(1, 10)
    return DataLoader(TensorDataset(torch.from_numpy(predicted), torch.from_numpy(truth)), 4)


def test_a_loop_that_ends_early_leaves_no_batch_expected():
    collection = metric_of_rows()
    for predicted, truth in collection.follow(batches()):
        collection.update(predicted, truth)
        break
    assert collection._expected is None
    with pytest.raises(ZeroDivisionError):
        failing_loop(collection)
    assert collection._expected is None


def failing_loop(collection: Collection) -> None:
    for _ in collection.follow(batches()):
        raise ZeroDivisionError


def metric_of_rows() -> Collection:
    return Collection([metrics.Accuracy()], classes=CLASSES)


def test_a_loop_that_ends_early_leaves_the_batch_of_a_later_one():
    collection = metric_of_rows()
    early, later = collection.follow(batches()), collection.follow(batches())
    next(early)
    next(later)
    told = collection._expected
    early.close()
    assert collection._expected is told is not None


def test_a_reset_forgets_the_batch_that_was_told_of():
    collection = metric_of_rows()
    next(collection.follow(batches()))
    loop = collection.follow(batches())
    next(loop)
    collection.reset()
    assert collection._expected is None


def test_panels_and_tables_are_of_phases_and_channels_that_there_are():
    for call in (
        lambda: Panels(phases=("valid",)),
        lambda: Panels(phases="val"),
        lambda: callback(table=("tset",)),
        lambda: callback(phases={"mine": "dev"}),
    ):
        with pytest.raises(ConfigError, match="expected a list of train, val, test"):
            call()
    collection = Collection("iou", classes=2)
    collection.latest = np.zeros((2, 4, 4), int), np.zeros((2, 4, 4), int)
    batch = [np.zeros((2, 5, 4, 4))]
    with pytest.raises(ConfigError, match=r"\(2, 5, 4, 4\); expected \(n, 1 or 3, h, w\)"):
        taken(Panels(), batch, collection, 2)
    collection.latest = np.zeros((2, 4, 4), int), np.zeros((2, 4, 4), int)
    chosen = Panels(image=lambda batch: batch[0][:, :3])
    assert len(taken(chosen, batch, collection, 2)) == 2
