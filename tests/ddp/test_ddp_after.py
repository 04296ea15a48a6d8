"""Metrics after the fact, against scikit-learn on the rows themselves, which are gone by then."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn.metrics import (
    cohen_kappa_score,
    f1_score,
    jaccard_score,
    matthews_corrcoef,
    recall_score,
)

import pipeline as ff
from pipeline.ddp import Collection, Moment, Origin, Run, after
from pipeline.errors import ConfigError, MissingInputError

CLASSES = ("road", "car", "bus", "person", "rider", "sky")
K, VOID = len(CLASSES), 255


def batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks (4, 8, 8) of predictions and labels; no rider is ever there or predicted."""
    rng = np.random.default_rng(seed)
    truth = rng.choice([0, 1, 2, 3, 5], (4, 8, 8))
    predicted = np.where(
        rng.random(truth.shape) < 0.6, truth, rng.choice([0, 1, 2, 3, 5], truth.shape)
    )
    truth[rng.random(truth.shape) < 0.1] = VOID
    return predicted, truth


def rows(*seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels of elements that count."""
    predicted, truth = (
        np.concatenate([x.ravel() for x in xs]) for xs in zip(*map(batch, seeds), strict=True)
    )
    return predicted[truth != VOID], truth[truth != VOID]


def write(run, attempt, moment, rank, seeds, *, keep=True, size=2, metrics=("iou",), **options):
    options = {"classes": CLASSES, "ignore": VOID, "prefix": "val/", **options}
    collection = Collection(list(metrics), repeats="none", **options)
    if keep:
        assert collection.keep_matrix()
    for seed in seeds:
        collection.update(*batch(seed))
    partial = collection.partial(run.id, attempt, moment, epoch=moment.batch // 10)
    run.write(dataclasses.replace(partial, rank=rank, world_size=size))


@pytest.fixture
def run(tmp_path):
    """Two epochs of two ranks, a sanity check, and a checkpoint's own partials."""
    made = Run(tmp_path / "unet")
    attempt = made.open_attempt()
    moments = [Moment("val", 0, 0, sanity=True), Moment("val", 5, 10), Moment("val", 10, 20)]
    for number, moment in enumerate(moments):
        write(made, attempt, moment, 0, (10 * number, 10 * number + 1))
        write(made, attempt, moment, 1, (10 * number + 2,))
    write(made, attempt, Moment("running", 10, 20), 0, (1,), size=1)
    return made


def values(epoch) -> dict[str, float]:
    return {key.removeprefix("val/"): float(one) for key, one in epoch.numbers.items()}


SEEDS = {10: (10, 11, 12), 20: (20, 21, 22)}


def test_without_a_wish_the_numbers_are_those_of_the_training(run):
    epochs = after(run.path)
    assert [(e.moment.batch, e.epoch, e.attempt, e.rows) for e in epochs] == [
        (10, 1, 1, 12), (20, 2, 1, 12),
    ]  # fmt: skip
    for epoch in epochs:
        predicted, truth = rows(*SEEDS[epoch.moment.batch])
        expected = jaccard_score(truth, predicted, average="macro")  # of the classes there are
        assert values(epoch) == {
            "iou_mean": pytest.approx(expected, abs=1e-15), "iou_classes_averaged": 5,
        }  # fmt: skip


def test_metrics_and_averages_that_nobody_had_asked_for(run):
    wanted = ["recall", "f1", "mcc", ff.metrics.Kappa()]
    for epoch in after(run, wanted, average=("none", "weighted", "micro")):
        predicted, truth = rows(*SEEDS[epoch.moment.batch])
        found = values(epoch)
        for number, name in enumerate(CLASSES):
            if name == "rider":
                assert np.isnan(found["recall_rider"])
                continue
            each = recall_score(truth, predicted, labels=[number], average=None)[0]
            assert found[f"recall_{name}"] == pytest.approx(each, abs=1e-15)
        weighted = f1_score(truth, predicted, average="weighted")
        assert found["f1_weighted"] == pytest.approx(weighted, abs=1e-15)
        assert found["f1_micro"] == pytest.approx(np.mean(truth == predicted), abs=1e-15)
        assert found["mcc"] == pytest.approx(matthews_corrcoef(truth, predicted), abs=1e-13)
        assert found["kappa"] == pytest.approx(cohen_kappa_score(truth, predicted), abs=1e-13)


@pytest.mark.parametrize("ignore", ["sky", 5, ["sky"], (5, "rider")])
def test_classes_ignored_later(run, ignore):
    for epoch in after(run, ["iou", "recall"], ignore=ignore):
        predicted, truth = rows(*SEEDS[epoch.moment.batch])
        counts = truth != 5
        kept = [0, 1, 2, 3]
        iou = jaccard_score(truth[counts], predicted[counts], labels=kept, average="macro")
        recall = recall_score(truth[counts], predicted[counts], labels=kept, average="macro")
        found = values(epoch)
        assert found["iou_mean"] == pytest.approx(iou, abs=1e-15)
        assert found["recall_mean"] == pytest.approx(recall, abs=1e-15)
        assert found["iou_classes_averaged"] == 4


def test_classes_merged_later(run):
    merge = {"vehicle": ["car", 2], "human": ["person", "rider"]}
    for epoch in after(run, "iou", merge_classes=merge, average=("macro", "none"), ignore="sky"):
        predicted, truth = rows(*SEEDS[epoch.moment.batch])
        table = np.array([0, 1, 1, 2, 2, 3])  # road, vehicle, human, sky
        predicted, truth = table[predicted], table[truth]
        counts = truth != 3
        each = jaccard_score(truth[counts], predicted[counts], labels=[0, 1, 2], average=None)
        found = values(epoch)
        assert [found[f"iou_{name}"] for name in ("road", "vehicle", "human")] == pytest.approx(
            each.tolist(), abs=1e-15
        )
        assert found["iou_mean"] == pytest.approx(each.mean(), abs=1e-15)
        assert "iou_sky" not in found


def test_the_matrix_of_an_epoch(run):
    epoch = after(run, "confusion_matrix")[1]
    predicted, truth = rows(*SEEDS[20])
    table = epoch.numbers["val/confusion_matrix"].counts
    assert (
        table.tolist() == np.bincount(truth * K + predicted, minlength=K * K).reshape(K, K).tolist()
    )


def test_moments_can_be_chosen(run):
    assert len(after(run, phase="val", collection="metrics", attempt=1)) == 2
    assert len(after(run, sanity=True)) == 3
    for choice in ({"phase": "test"}, {"collection": "other"}, {"attempt": 7}):
        with pytest.raises(MissingInputError, match=r"it has val at step 0"):
            after(run, **choice)


def test_the_latest_complete_attempt_counts_and_an_incomplete_moment_is_left_out(run):
    second = run.open_attempt(Origin(1, 10))
    write(run, second, Moment("val", 10, 20), 0, (30,), size=1)
    write(run, second, Moment("val", 15, 30), 0, (31,), size=2)
    with pytest.warns(UserWarning, match=r"left out.*batch 30.*ranks \[1\]"):
        epochs = after(run)
    assert [(e.moment.batch, e.attempt) for e in epochs] == [(10, 1), (20, 2)]
    assert [e.attempt for e in after(run, attempt=1)] == [1, 1]


def curve(run, **options) -> list[tuple[int, int]]:
    return [(epoch.moment.step, epoch.attempt) for epoch in after(run, **options)]


@pytest.fixture
def resumed(tmp_path):
    """An attempt with steps 10, 20, 30, and one that goes on from step 10 with 15 and 20."""
    run = Run(tmp_path / "resumed")
    first = run.open_attempt()
    for step in (10, 20, 30):
        write(run, first, Moment("val", step, step), 0, (step,), size=1)
    second = run.open_attempt(Origin(first, 10))
    for step in (15, 20):
        write(run, second, Moment("val", step, step), 0, (step,), size=1)
    return run


def test_moments_that_were_rolled_back_are_of_no_curve(resumed):
    assert curve(resumed) == [(10, 1), (15, 2), (20, 2)]
    assert curve(resumed, attempt=1) == [(10, 1), (20, 1), (30, 1)]
    third = resumed.open_attempt(Origin(2, 15))
    assert curve(resumed) == [(10, 1), (15, 2), (20, 2)]  # it has kept nothing so far
    write(resumed, third, Moment("val", 18, 18), 0, (1,), size=1)
    assert curve(resumed) == [(10, 1), (15, 2), (18, 3)]
    fourth = resumed.open_attempt(Origin(1, 30))
    write(resumed, fourth, Moment("val", 40, 40), 0, (1,), size=1)
    with pytest.warns(UserWarning, match=r"attempts \[2, 3\].*attempt="):
        assert curve(resumed) == [(10, 1), (20, 1), (30, 1), (40, 4)]


def test_training_anew_under_a_name_that_was_used_is_a_curve_of_its_own(resumed):
    third = resumed.open_attempt()
    write(resumed, third, Moment("val", 0, 0, sanity=True), 0, (1,), size=1)
    assert curve(resumed) == [(10, 1), (15, 2), (20, 2)]
    write(resumed, third, Moment("val", 12, 12), 0, (1,), size=1)
    with pytest.warns(UserWarning, match=r"left out: attempts \[1, 2\]"):
        assert curve(resumed) == [(12, 3)]


def test_evaluations_count_where_their_weights_do(resumed):
    for origin, step in ((Origin(1, 30), 30), (Origin(2, 20), 20), (None, 0), (Origin(1, 10), 10)):
        number = resumed.open_attempt(origin, trains=False)
        write(resumed, number, Moment("test", step, step), 0, (1,), size=1)
    with pytest.warns(UserWarning, match=r"left out: attempts \[3\] "):
        assert curve(resumed, phase="test") == [(0, 5), (10, 6), (20, 4)]
    alone = resumed.open_attempt(Origin(4, 20), trains=False)
    write(resumed, alone, Moment("test", 20, 20, collection="more"), 0, (1,), size=1)
    assert curve(resumed, phase="test", collection="more") == [(20, alone)]


def test_evaluations_alone_need_no_training(tmp_path):
    run = Run(tmp_path / "tested")
    for origin in (None, Origin(7, 3)):  # of another folder
        write(run, run.open_attempt(origin, trains=False), Moment("test", 3, 3), 0, (1,), size=1)
    assert curve(run) == [(3, 2)]


def test_what_does_not_follow_is_named(run, tmp_path):
    with pytest.raises(
        ConfigError, match="iou does not follow from unet, attempt 1, val at step 5"
    ):
        after(run, ff.metrics.IoU(weights="weights"))
    with pytest.raises(ConfigError, match="no class is called 'tram'"):
        after(run, "iou", ignore="tram")
    with pytest.raises(ConfigError, match="car would be part of two classes"):
        after(run, "iou", merge_classes={"a": ["car"], "b": ["car", "bus"]})
    bare = Run(tmp_path / "bare")
    write(bare, bare.open_attempt(), Moment("val", 1), 0, (1,), size=1, keep=False)
    with pytest.raises(ConfigError, match="holds no confusion matrix; the callback keeps one"):
        after(bare, "iou", merge_classes={"vehicle": ["car", "bus"]})
    with pytest.raises(ConfigError, match="confusion_matrix does not follow"):
        after(bare, "confusion_matrix")


def test_without_a_matrix_all_that_follows_from_the_counts_of_classes(tmp_path):
    bare = Run(tmp_path / "bare")
    write(bare, bare.open_attempt(), Moment("val", 1), 0, (1, 2), size=1, keep=False)
    predicted, truth = rows(1, 2)
    (epoch,) = after(bare, ["recall", "mcc"], average="weighted", ignore=VOID)
    found = values(epoch)
    weighted = recall_score(truth, predicted, average="weighted")
    assert found["recall_weighted"] == pytest.approx(weighted, abs=1e-15)
    assert found["mcc"] == pytest.approx(matthews_corrcoef(truth, predicted), abs=1e-13)


def test_ignored_classes_of_the_training_follow_a_merge(tmp_path):
    run = Run(tmp_path / "unet")
    write(run, run.open_attempt(), Moment("val", 1), 0, (1,), size=1, ignore=(3, 4, VOID))
    (epoch,) = after(run, merge_classes={"vehicle": [1, 2], "human": [3, 4]})
    predicted, truth = rows(1)
    table = np.array([0, 1, 1, 2, 2, 3])
    predicted, truth = (
        table[predicted[~np.isin(truth, [3, 4])]],
        table[truth[~np.isin(truth, [3, 4])]],
    )
    expected = jaccard_score(truth, predicted, labels=[0, 1, 3], average="macro")
    assert values(epoch)["iou_mean"] == pytest.approx(expected, abs=1e-15)
    with pytest.raises(
        ConfigError, match=r"ignores classes \[3\], which would be part of one that"
    ):
        after(run, merge_classes={"people": [2, 3]})


def test_many_classes_and_labels_that_are_not_exclusive_keep_no_matrix():
    assert not Collection("iou", classes=1025).keep_matrix()
    assert not Collection("iou", classes=4, task="multilabel").keep_matrix()
    assert Collection("iou", classes=1024).keep_matrix()


def test_a_predicted_void_is_a_miss_in_the_matrix_too(tmp_path):
    collection = Collection(["iou", "recall"], classes=3, ignore=VOID)
    collection.keep_matrix()
    collection.update(np.array([0, VOID, 2, VOID]), np.array([0, 1, 2, 2]))
    assert float(collection.compute()["iou_mean"]) == pytest.approx((1 + 0 + 1 / 2) / 3)
    run = Run(tmp_path / "unet")
    collection.write(run, run.open_attempt(), Moment("val", 1))
    (epoch,) = after(run, ["recall", "confusion_matrix"], average="none")
    found = epoch.numbers
    assert [float(found[f"recall_{c}"]) for c in range(3)] == [1.0, 0.0, 0.5]
    assert epoch.numbers["confusion_matrix"].undecided.tolist() == [0, 1, 1]
    (epoch,) = after(run, "recall", merge_classes={"both": [1, 2]})
    assert float(epoch.numbers["recall_mean"]) == pytest.approx((1 + 1 / 3) / 2)


def test_scores_of_ignored_classes_may_end_the_matrix_which_says_so(tmp_path):
    collection = Collection("nll", classes=3, ignore=0)
    collection.keep_matrix()
    scores = np.array([[np.nan, 1.0, 0.0], [0.0, 1.0, 0.0]])
    with pytest.warns(UserWarning, match="no confusion matrix is kept any more"):
        collection.update(scores, np.array([0, 1]))
    assert float(collection.compute()["nll"]) == pytest.approx(-np.log(np.e / (np.e + 2)))
    assert "matrix" not in collection.partial("unet", 1, Moment("val", 1)).about["definitions"]


def test_reading_a_run_needs_no_torch(run):
    import subprocess
    import sys

    code = (
        "import sys; from pipeline.ddp import after; "
        f"print(len(after({str(run.path)!r}, ['mcc']))); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
