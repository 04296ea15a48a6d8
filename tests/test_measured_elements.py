"""Predictions on disk and batches of a loop: the same elements count, and the same are refused."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import metrics as sk

import pipeline as ff
from pipeline.errors import DataError, MissingInputError
from pipeline.procedure import Estimate

K, VOID = 3, 255
RNG = np.random.default_rng(5)
TRUTH = np.full((3, 4, 5), VOID)
TRUTH[:, :2] = RNG.integers(0, K, (3, 2, 5))
LOGITS = RNG.normal(size=(3, K, 4, 5))
NAMES = (
    "accuracy", "iou", "exact_match", "ece", "classwise_ece", "ace", "nll", "brier", "auroc",
    "average_precision", "aurc", "aurra", "mean_confidence", "top_k_accuracy", "image_iou",
)  # fmt: skip
EXACTLY = (
    ff.metrics.ACE(exact=True, ignore=VOID), ff.metrics.AURC(exact=True, ignore=VOID),
    ff.metrics.ClasswiseECE(ignore=VOID),
    ff.metrics.AUROC(task="multiclass", exact=True, ignore=VOID),
)  # fmt: skip


def plain(numbers):
    return {key: float(one) for key, one in numbers.items() if isinstance(one, Estimate)}


def measured(metric, predictions, labels, **options):
    return plain(ff.measure(metric, predictions, labels, cluster="threads", workers=1, **options))


def collected(metric, predictions, labels, **options):
    collection = ff.metrics.Collection(metric, **options)
    collection.update(predictions, labels)
    return plain(collection.compute())


@pytest.mark.parametrize("name", NAMES)
def test_scores_may_be_anything_where_no_label_counts(name):
    options = {"classes": K, "ignore": VOID}
    if name == "top_k_accuracy":
        options["top_k"] = 2
    scores = LOGITS.copy()
    scores[:, :, 2:] = np.nan
    found = measured(name, scores, TRUTH, **options)
    assert found == collected(name, scores, TRUTH, **options)
    assert found == measured(name, LOGITS, TRUTH, **options)
    assert not math.isnan(next(iter(found.values())))


def test_accuracy_is_of_the_elements_that_count():
    scores = LOGITS.copy()
    scores[:, :, 2:] = np.inf
    expected = sk.accuracy_score(TRUTH[:, :2].ravel(), scores[:, :, :2].argmax(1).ravel())
    assert measured("accuracy", scores, TRUTH, classes=K, ignore=VOID) == {"accuracy": expected}


@pytest.mark.parametrize("metric", [*NAMES, *EXACTLY], ids=str)
def test_where_nothing_counts_there_is_no_number(metric):
    nothing = np.full_like(TRUTH, VOID)
    options = {"classes": K, "ignore": VOID}
    if metric == "top_k_accuracy":
        options["top_k"] = 2
    found = measured(metric, LOGITS, nothing, **options)
    assert all(math.isnan(one) or one == 0 for one in found.values())  # 0 classes averaged
    assert math.isnan(next(iter(found.values())))


@pytest.mark.parametrize("name", ["auroc", "max_f1", "ece", "aurc", "accuracy"])
def test_where_nothing_counts_of_two_classes_there_is_no_number(name):
    scores, nothing = RNG.random(20), np.full(20, VOID)
    options = {"classes": 2, "task": "binary", "ignore": VOID}
    found = measured(name, scores, nothing, **options)
    assert all(map(math.isnan, found.values()))
    assert found.keys() == collected(name, scores, nothing, **options).keys()


@pytest.mark.parametrize("name", ["accuracy", "nll", "ece", "aurc", "auroc", "classwise_ece"])
def test_scores_that_count_must_be_numbers(name):
    scores = LOGITS.copy()
    scores[1, 2, 0, 3] = np.nan
    for of in (measured, collected):
        with pytest.raises(DataError) as caught:
            of(name, scores, TRUTH, classes=K, ignore=VOID)
        assert "row 1" in str(caught.value)
        assert "nonfinite" not in str(caught.value)  # an option that neither has


@pytest.mark.parametrize("of", [measured, collected])
@pytest.mark.parametrize("name", ["auroc", "ece", "roc", "aurc"])
def test_predicted_classes_are_no_scores(of, name):
    classes = np.array([0, 1, 1, 0])
    with pytest.raises(MissingInputError, match="predictions of int64 are classes; give scores as"):
        of(name, classes, classes, classes=2, task="binary")


def test_logits_too_far_apart_are_not_called_probabilities():
    logits = np.array([[1e308, -1e308], [0.0, 0.0]])
    with pytest.raises(DataError, match="float64 does not hold their differences"):
        collected("nll", logits, np.array([0, 1]), classes=2)
    assert collected("accuracy", logits, np.array([0, 1]), classes=2) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    "weights", [[3, 1, 1, 1], np.array([3.0, 1, 1, 1]), torch.tensor([3, 1, 1, 1])]
)
@pytest.mark.parametrize("place", [np.asarray, torch.tensor])
def test_weights_come_to_where_the_batch_is(weights, place):
    collection = ff.metrics.Collection("accuracy", classes=2, weighted=True)
    collection.update(place([1, 0, 1, 1]), place([1, 1, 0, 0]), weights=weights)
    assert float(collection.compute()["accuracy"]) == 0.5


@pytest.mark.parametrize("cls", [ff.metrics.Collection, ff.ddp.Collection])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_count_batches_of_their_own(cls, copied):
    first = cls("accuracy", classes=2)
    first.update(np.array([1, 1]), np.array([1, 1]))
    second = copied(first)
    second.update(np.array([1, 1]), np.array([0, 0]))
    assert float(first.compute()["accuracy"]) == 1
    assert float(second.compute()["accuracy"]) == 0.5


@pytest.mark.parametrize(
    ("name", "cluster"),
    [("iou", "local"), *((n, "threads") for n in ("confusion_matrix", "exact_match", "image_iou"))],
)
def test_a_class_that_is_none_is_named_with_the_file_of_its_mask(tmp_path, name, cluster):
    for side in ("predicted", "true"):
        (tmp_path / side / "city").mkdir(parents=True)
        for number in range(5):
            mask = np.full((4, 4), 7 if (side, number) == ("true", 3) else 1, np.uint8)
            Image.fromarray(mask).save(tmp_path / side / f"city/{number}.png")
    with pytest.raises(DataError, match=r"first in row 3: 7; .*\(row 3 is city/3\.png\)"):
        ff.measure(
            name, tmp_path / "predicted", tmp_path / "true", classes=3, cluster=cluster, workers=1
        )
