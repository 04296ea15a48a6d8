"""``featfold eval --epochs``: numbers that nobody had asked for in training, for every epoch."""

import csv
import json

import numpy as np
import pytest
from sklearn import metrics as sk

from pipeline.ddp import Collection, Moment, Run

CLASSES = ("road", "car", "bus")


def batch(seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, (4, 6, 6))
    return np.where(rng.random(truth.shape) < 0.6, truth, rng.integers(0, 3, truth.shape)), truth


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "unet")
    attempt = made.open_attempt()
    for epoch in range(3):
        collection = Collection(["iou"], classes=CLASSES, prefix="val/", repeats="none")
        assert collection.keep_matrix()
        collection.update(*batch(epoch))
        made.write(collection.partial(made.id, attempt, Moment("val", epoch, epoch), epoch=epoch))
    return made.path


def test_another_metric_of_merged_classes_in_every_epoch(cli, run, tmp_path):
    options = ("--epochs", run, "-m", "kappa", "-m", "recall:average=none", "--merge", "any=1+bus")
    code, out, err = cli("eval", *options, "--out", tmp_path / "out")
    assert code == 0, err
    head, *rows = out.splitlines()
    assert head.split() == ["phase", "epoch", "step", "rows", "val/kappa", "val/recall_road",
                            "val/recall_any"]  # fmt: skip
    with (tmp_path / "out/epochs.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    for epoch, row in enumerate(rows):
        predicted, truth = (np.minimum(x.ravel(), 1) for x in batch(epoch))
        kappa = sk.cohen_kappa_score(truth, predicted)
        recall = sk.recall_score(truth, predicted, average=None)
        assert row.split()[:4] == ["val", str(epoch), str(epoch), "4"]
        shown = [f"{value:.4f}" for value in (kappa, *recall)]
        assert row.split()[4:] == shown
        values = [float(one["value"]) for one in written if one["epoch"] == str(epoch)]
        np.testing.assert_allclose(values, [kappa, *recall], rtol=1e-13)


def test_without_a_wish_the_metrics_are_those_of_training(cli, run):
    code, out, _ = cli("eval", "--epochs", run, "--json")
    epochs = json.loads(out)["epochs"]
    assert code == 0
    assert [one["epoch"] for one in epochs] == [0, 1, 2]
    predicted, truth = (x.ravel() for x in batch(2))
    expected = sk.jaccard_score(truth, predicted, average="macro")
    assert epochs[2]["metrics"]["val/iou_mean"]["value"] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--epochs", "{d}/nowhere"), 4, "nowhere is not there"),
        (("--epochs", "{p}"), 4, "give one of its folders, such as {d}"),
        (("--epochs", "{d}", "p.npy", "y.npy"), 2, "leave PREDICTIONS"),
        (("--epochs", "{d}", "--classes", "3"), 2, "--classes"),
        (("--epochs", "{d}", "--workers", "3"), 2, "--workers"),
        (("--epochs", "{d}", "--threshold", "0.9"), 2, "--threshold"),
        (("--epochs", "{d}", "--merge", "bus=road+car"), 2, "a class of its own"),
        (("--epochs", "{d}", "--merge", "any"), 2, "NAME=CLASS"),
        (("--epochs", "{d}", "--merge", "any=7+8"), 2, "merge"),
        (("--epochs", "{d}", "-m", "auroc"), 2, "auroc does not follow from"),
        (("--epochs", "{d}", "-m", "ece"), 2, "whose batches held labels, predictions"),
        (("p.npy", "y.npy", "--classes", "2", "--merge", "a=0+1"), 2, "--epochs"),
        ((), 2, "PREDICTIONS"),
    ],
)
def test_what_does_not_follow_is_refused(cli, run, arguments, code, word):
    ended, out, err = cli("eval", *(text.format(d=run, p=run.parent) for text in arguments))
    assert ended == code, err
    assert out == ""
    assert word.format(d=run) in err
    assert "Traceback" not in err


def test_classes_without_names_are_merged_by_number(cli, tmp_path):
    run = Run(tmp_path / "plain")
    collection = Collection(["iou"], classes=3, repeats="none")
    assert collection.keep_matrix()
    collection.update(*batch(0))
    run.write(collection.partial(run.id, run.open_attempt(), Moment("val", 0, 0), epoch=0))
    options = ("eval", "--epochs", run.path, "-m", "accuracy", "--json", "--merge")
    code, out, err = cli(*options, "vehicle=1+2")
    assert code == 0, err
    predicted, truth = (np.minimum(x.ravel(), 1) for x in batch(0))
    (epoch,) = json.loads(out)["epochs"]
    assert epoch["metrics"]["accuracy"]["value"] == sk.accuracy_score(truth, predicted)
    code, _, err = cli(*options, "vehicle=car+bus")
    assert code == 2
    assert "'car', but the classes have no names; give their numbers, 0 to 2" in err
