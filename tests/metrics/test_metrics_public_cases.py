"""Public reports about metrics of classes: inputs and right values, by hand or in fractions.

Reports name the library; what it gives, or gave, is in the comment where it is wrong.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pipeline import metrics
from pipeline.errors import DataError
from pipeline.metrics import ConfusionTable
from pipeline.statistics import ClassCounts, Distances
from pipeline.testing import Data
from pipeline.testing.drive import fold_all, outcome
from pipeline.views import Stored

NAN = math.nan


def numbers(
    name: str, y: Any, p: Any, classes: int, cut: Any = None, **options: Any
) -> dict[str, float]:
    """Return the numbers of a metric of labels and predictions (or of scores) by key."""
    scores = np.asarray(p).dtype.kind == "f"
    data = Data(
        {"labels": np.asarray(y), "logits" if scores else "predictions": np.asarray(p)}, classes
    )
    found = outcome(metrics.make(name, **options), data.cut(cut))
    return {key: float(number) for key, number in found.items()}


def first(*arguments: Any, **options: Any) -> float:
    return next(iter(numbers(*arguments, **options).values()))


def alone(name: str, y: Any, p: Any, classes: int, **options: Any) -> list[float]:
    return list(numbers(name, y, p, classes, average="none", **options).values())


ABSENT = ((0, 0, 1, 1), (0, 0, 1, 2), 4)
"""Class 2 is only predicted, class 3 occurs nowhere."""


@pytest.mark.parametrize(
    ("name", "by_class", "mean", "averaged"),
    [
        ("recall", (1, 1 / 2, NAN, NAN), 3 / 4, 2),  # torchmetrics: .5
        ("precision", (1, 1, 0, NAN), 2 / 3, 3),
        ("f1", (1, 2 / 3, 0, NAN), 5 / 9, 3),
        ("dice", (1, 2 / 3, 0, NAN), 5 / 9, 3),
        ("iou", (1, 1 / 2, 0, NAN), 1 / 2, 3),
        ("specificity", (1, 1, 3 / 4, 1), 11 / 12, 3),
        ("npv", (1, 2 / 3, 1, 1), 8 / 9, 3),
        ("accuracy", (1, 1 / 2, NAN, NAN), 3 / 4, 2),  # torchmetrics: .5; torcheval: .75
    ],
)
def test_absent_classes(name: str, by_class: Any, mean: float, averaged: int) -> None:
    np.testing.assert_array_equal(alone(name, *ABSENT), by_class)
    found = numbers(name, *ABSENT, average="macro")
    assert found == {f"{name}_mean": mean, f"{name}_classes_averaged": averaged}


@pytest.mark.parametrize(
    ("name", "absent", "mean"),
    [
        ("recall", "zero", 3 / 8),  # scikit-learn with labels=0..3
        ("recall", "one", 7 / 8),
        ("f1", "zero", 5 / 12),
        ("f1", "one", 2 / 3),
        ("iou", "zero", 3 / 8),
        ("balanced_accuracy", None, 3 / 4),
    ],
)
def test_absent_classes_with_a_value(name: str, absent: str | None, mean: float) -> None:
    options = {"absent": absent} if absent else {}
    assert first(name, *ABSENT, **options) == mean


def test_torcheval_189_an_absent_class_is_no_error() -> None:
    for average in ("macro", "weighted"):
        for name in ("precision", "recall", "f1"):
            assert first(name, *ABSENT, average=average) > 0
    assert first("recall", *ABSENT, average="weighted") == 3 / 4


IGNORED = ((0, 1, 2, 1, 1), (0, 0, 2, 1, 0), 3)


@pytest.mark.parametrize(
    ("name", "by_class", "mean", "weighted", "micro"),
    [
        ("recall", (1 / 3, 1), 2 / 3, 1 / 2, 1 / 2),  # torchmetrics: .4444
        ("accuracy", (1 / 3, 1), 2 / 3, 1 / 2, 1 / 2),
        ("precision", (1, 1), 1, 1, 1),  # torchmetrics: .6667, micro .5
        ("f1", (1 / 2, 1), 3 / 4, 5 / 8, 2 / 3),
        ("iou", (1 / 3, 1), 2 / 3, 1 / 2, 1 / 2),
    ],
)
def test_an_ignored_class_within_the_range(
    name: str, by_class: Any, mean: float, weighted: float, micro: float
) -> None:
    assert alone(name, *IGNORED, ignore=0) == list(by_class)
    every = ("macro", "weighted", "micro")
    assert numbers(name, *IGNORED, ignore=0, average=every) == {
        f"{name}_mean": mean,
        f"{name}_classes_averaged": 2,
        f"{name}_weighted": weighted,
        f"{name}_micro": micro,
    }


def test_coefficients_beside_an_ignored_class() -> None:
    assert first("kappa", *IGNORED, ignore=0) == 1 / 3
    assert first("mcc", *IGNORED, ignore=0) == pytest.approx(0.5164, abs=5e-5)
    assert first("accuracy", *IGNORED, ignore=0) == 1 / 2


def test_rows_all_of_whose_elements_are_ignored_are_not_right() -> None:
    y, p = np.array([[0, 1], [9, 9], [9, 2]]), np.array([[0, 1], [1, 1], [0, 1]])
    assert first("exact_match", y, p, 3, ignore=9) == 1 / 2  # torchmetrics: the second is right
    tags, guessed = np.array([[1, 9], [9, 9], [0, 1]]), np.array([[1, 0], [1, 1], [1, 1]])
    found = first("exact_match", tags, guessed, 2, ignore=9, task="multilabel")
    assert found == 1 / 2


@pytest.mark.parametrize("average", ["macro", "micro", "none"])
def test_all_labels_ignored(average: str) -> None:
    found = numbers("iou", (1, 1), (0, 1), 3, ignore=1, average=average)
    assert all(math.isnan(x) for key, x in found.items() if "averaged" not in key)


@pytest.mark.parametrize(
    ("y", "p", "match"),
    [
        ((0, 1), (0, 4), "1 prediction outside 0 to 2, first in row 1: 4"),  # torchmetrics: 1.0
        ((5, 0), (0, 0), "1 label outside 0 to 2, first in row 0: 5; .* classes=6"),
        ((-1, 0), (4, 0), "1 label outside 0 to 2, first in row 0: -1; add what"),
    ],
)
def test_classes_out_of_range_are_errors(y: Any, p: Any, match: str) -> None:
    for name in ("accuracy", "iou", "confusion_matrix", "kappa"):
        with pytest.raises(DataError, match=match):
            first(name, y, p, 3)


def test_a_score_at_the_threshold_is_positive() -> None:
    assert first("recall", (1, 0), (0.5, 0.2), 2, task="binary") == 1  # torchmetrics: 0


def test_tied_scores_are_found_in_the_order_of_classes() -> None:
    scores = np.tile([0.1, 0.3, 0.3, 0.3], (4, 1))
    found = numbers("top_k_accuracy", (1, 2, 3, 1), scores, 4, top_k=2)
    assert found == {"top_2_accuracy": 3 / 4}
    assert first("top_k_accuracy", (3, 3, 0, 2), scores, 4, top_k=2) == 1 / 4
    assert first("accuracy", (1, 2, 3, 1), scores, 4) == 2 / 4


def test_scores_that_are_nan_are_errors() -> None:
    with pytest.raises(DataError, match="row 1"):  # torchmetrics: class 0, and right
        first("accuracy", (0, 0), np.array([[1.0, 0], [NAN, NAN]]), 2)


def of_matrix(matrix: Any) -> ClassCounts:
    return ConfusionTable(np.asarray(matrix, np.int64)).marginals


MCC_CASES = {
    # torchmetrics: 0, .9999998, 0, 0; float64 cancels in the fourth
    "scikit-learn-9622": ([[40 * 10**9, 10 * 10**9], [5 * 10**9, 45 * 10**9]], 0.7035265),
    "hidden-digits": ([[99_999_999, 1], [1, 0]], -1e-8),
    "three-classes": ([[10**8, 1, 0], [1, 2, 0], [0, 0, 3]], 0.83333),
    "cancellation": ([[10**10, 1], [1, 0]], -1e-10),
    "smile-879": ([[50_000, 5_000], [5_000, 50_000]], 9 / 11),
    "pycm-624": ([[10**18, 10**18], [10**18, 2]], -0.5),
}


@pytest.mark.parametrize("case", MCC_CASES)
def test_mcc_at_the_scale_of_data_sets(case: str) -> None:
    matrix, value = MCC_CASES[case]
    found = float(metrics.mcc(of_matrix(matrix)))
    assert found == pytest.approx(value, rel=2e-5)
    if len(matrix) == 2:
        ((tn, fp), (fn, tp)) = matrix
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        squared = Fraction(tp * tn - fp * fn) ** 2 / product
        assert Fraction(found) ** 2 == pytest.approx(float(squared), rel=1e-15)


def test_mcc_of_a_small_corner() -> None:
    exact = Fraction(5 * 10**12 - 1) / Fraction(10**12 + 1)  # (tp tn - fp fn) / (row sums)
    assert float(metrics.mcc(of_matrix([[10**12, 1], [1, 5]]))) == float(exact / 6)


@pytest.mark.parametrize(
    "matrix",
    [
        [[10, 0], [0, 0]],  # torchmetrics 3355: 1
        [[0, 1], [0, 3]],  # .57735
        [[0, 0], [1, 3]],
        [[3, 1], [0, 0]],
        [[3, 0], [1, 0]],
        [[0, 4], [0, 0]],  # -1
    ],
)
def test_torchmetrics_3355_mcc_of_one_class_is_undefined(matrix: Any) -> None:
    found = metrics.mcc(of_matrix(matrix))
    assert math.isnan(found.value)
    assert found.reason == "all labels, or all predictions, are of one class"


def test_mcc_of_one_class_may_have_the_value_zero() -> None:
    assert first("mcc", [0] * 10, [0] * 10, 2, absent="zero") == 0


@pytest.mark.parametrize(
    ("matrix", "value"),
    [
        ([[10**6, 0], [0, 10**6]], Fraction(1)),  # scikit-learn 7929: -11 once
        ([[10**9, 1], [1, 0]], Fraction(-1, 10**9 + 1)),  # torchmetrics: 0
    ],
)
def test_scikit_learn_7929_kappa(matrix: Any, value: Fraction) -> None:
    assert float(metrics.kappa(of_matrix(matrix))) == float(value)


def test_kappa_of_one_class_is_undefined() -> None:
    assert math.isnan(first("kappa", (1, 1), (1, 1), 2))
    assert math.isnan(first("kappa", (1, 1), (1, 1), 2, weighting="quadratic"))


def test_weighted_kappa_knows_of_classes_that_are_absent() -> None:
    """Among classes 0, 1 and 3 of four; scikit-learn without labels= closes the gap: .3478."""
    y, p = (0, 0, 0, 0, 3), (0, 0, 1, 1, 1)
    found = numbers("kappa", y, p, 4, weighting="quadratic")
    assert found == {"kappa_quadratic": 2 / 7}
    data = Data({"labels": np.array(y), "predictions": np.array(p)}, 4)
    assert fold_all(Distances(Stored("predictions")), data.cut()).tolist() == [2, 2, 1, 0]


def test_torchmetrics_2441() -> None:
    assert first("recall", (0, 0, 1, 1), (0, 0, 0, 1), 2, ignore=0) == 1 / 2  # .25


def test_torchmetrics_2846_generalised_dice_by_class() -> None:
    one_hot = np.zeros((4, 3, 8, 8), bool)
    one_hot[0, 0] = one_hot[2, 1] = True
    tags = one_hot.astype(np.uint8)
    found = alone("generalised_dice", tags, tags, 3, task="multilabel")
    np.testing.assert_array_equal(found, [1, 1, NAN])  # .25, .25, 0
    assert first("generalised_dice", tags, tags, 3, task="multilabel") == 1


TWO_IMAGES = (((0, 0, 0, 1), (1, 1, 1, 1)), ((0, 0, 0, 0), (1, 1, 1, 0)))


@pytest.mark.parametrize("classes", [2, 3])
def test_two_images_are_pooled(classes: int) -> None:
    y, p = TWO_IMAGES
    expected = {"iou": 3 / 5, "dice": 3 / 4, "recall": 4 / 5, "f1": 3 / 4}
    for name, value in expected.items():
        assert first(name, y, p, classes) == value
    assert first("accuracy", y, p, classes) == 3 / 4
    # (2·3/9 + 2·3/25) / (8/9 + 8/25)
    assert first("generalised_dice", y, p, classes) == 3 / 4


@pytest.mark.parametrize("weighting", ["square", "simple", "uniform"])
def test_generalised_dice_does_not_depend_on_batches(weighting: str) -> None:
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 3, (2, 6, 8))
    p[3] = 3  # a class without elements
    orders = [np.arange(6), rng.permutation(6), np.arange(6)[::-1]]
    found = {
        first(
            "generalised_dice", y[order], p[order], 4, [[size] * (6 // size)], weighting=weighting
        )
        for order in orders
        for size in (1, 2, 3, 6)
    }
    t, q = (np.bincount(x.reshape(-1), minlength=4) for x in (y, p))
    tp = np.bincount(y[y == p], minlength=4)
    power = {"square": 2, "simple": 1, "uniform": 0}[weighting]
    w = [Fraction(1, int(n or t[t > 0].min()) ** power) for n in t]
    right = sum(2 * a * int(b) for a, b in zip(w, tp, strict=True))
    assert found == {float(right / sum(a * int(b) for a, b in zip(w, t + q, strict=True)))}


def test_torchmetrics_2596_options_of_the_same_first_batch() -> None:
    """Metrics that agree on the first batch are not one computation."""
    y, scores = (1, 0, 1, 1), (0.9, 0.1, 0.6, 0.7)
    for threshold, value in ((0.5, 1), (0.8, 1 / 2)):
        found = first("accuracy", y, scores, 2, [[2, 2]], task="binary", threshold=threshold)
        assert found == value
    rows = np.array([[0.8, 0.1, 0.1], [0.5, 0.4, 0.1]])
    assert first("accuracy", (0, 1), rows, 3, [[1], [1]], average="macro") == 1 / 2
    assert first("accuracy", (0, 1), rows, 3, [[1], [1]], average="macro", top_k=2) == 1
    y, p = (1, 2, 0, 0), (1, 2, 0, 1)
    assert first("iou", y, p, 3, [[2], [2]]) == 2 / 3
    assert first("iou", y, p, 3, [[2], [2]], ignore=0) == 1


def test_torcheval_176() -> None:
    assert first("f1", (2, 1, 0, 4), (2, 1, 0, 1), 5) == 2 / 3  # .7778


def test_scikit_learn_10573() -> None:
    y, p = (0, 0, 1, 1, 1), (0, 0, 1, 1, 2)
    assert first("recall", y, p, 3) == first("balanced_accuracy", y, p, 3) == 5 / 6  # .5556


def test_torchmetrics_1693() -> None:
    y, p = (0, 1, 0, 0), (0, 1, 0, 1)
    np.testing.assert_array_equal(alone("iou", y, p, 3), [2 / 3, 1 / 2, NAN])
    assert first("iou", y, p, 3) == 7 / 12


def test_torchmetrics_1385() -> None:
    assert first("iou", (2, 1, 0, 0), (2, 1, 0, 1), 3, ignore=0) == 1


def test_torchmetrics_2418() -> None:
    rows = np.tile([0.9, 0.1, 0.0], (3, 1))
    for top_k in (1, 2):
        assert first("accuracy", (0, 0, 2), rows, 3, average="macro", top_k=top_k) == 1 / 2


def test_torchmetrics_2851() -> None:
    y = (0, 1, 1, 2)
    assert first("dice", y, y, 3, average="weighted") == 1  # 2.0
    assert first("generalised_dice", y, y, 3) == 1


class TestTorchmetrics3047:
    """Maps of 9 x 10 elements with the counts of the report."""

    y = np.zeros((9, 10), int)
    y[0, :9] = 1
    y[1, :9] = 2
    y[2, :9] = 3
    y[3, :9] = 4
    y[4, :5] = 5
    p = y.copy()
    p[0, :3] = 5
    p[5, :5] = 5

    def test_iou(self) -> None:
        expected = [44 / 49, 6 / 9, 1, 1, 1, 5 / 13]
        assert alone("iou", [self.y], [self.p], 6) == expected


@pytest.mark.parametrize(
    ("ignore", "by_class", "mean", "recall", "accuracy"),
    [
        ((), [1 / 2, 1 / 3, 2 / 3], 1 / 2, 2 / 3, 4 / 6),
        (3, [1 / 2, 1 / 3, 2 / 3], 1 / 2, 2 / 3, 4 / 6),
        (255, [1 / 2, 1 / 3, 2 / 3], 1 / 2, 2 / 3, 4 / 6),
        (-100, [1 / 2, 1 / 3, 2 / 3], 1 / 2, 2 / 3, 4 / 6),
        (1, [1 / 2, 1], 3 / 4, 3 / 4, 3 / 4),
    ],
)
def test_a14_ignored_labels(
    ignore: Any, by_class: Any, mean: float, recall: float, accuracy: float
) -> None:
    y, p = (0, 0, 1, 1, 2, 2), (0, 1, 1, 2, 2, 2)
    assert alone("iou", y, p, 3, ignore=ignore) == by_class
    assert first("iou", y, p, 3, ignore=ignore) == mean
    assert first("recall", y, p, 3, ignore=ignore) == recall
    assert first("accuracy", y, p, 3, ignore=ignore) == accuracy


def test_a07_small_integers_do_not_wrap() -> None:
    y, p = np.array([16, 20], "u1"), np.array([16, 3], "u1")
    data = Data({"labels": y, "predictions": p}, 21)
    counts = outcome(metrics.ConfusionMatrix(), data.cut()).counts
    assert np.argwhere(counts).tolist() == [[16, 16], [20, 3]]
    assert counts.dtype == np.int64


def test_a17_states_are_merged_not_values() -> None:
    """Batches of (TP, FN) = (1, 0), (0, 3), and of accuracy 2/2, 2/2, 0/1."""
    y, p = (1, 1, 1, 1), (1, 0, 0, 0)
    assert numbers("recall", y, p, 2, [[1], [3]], average="none")["recall_1"] == 1 / 4
    assert first("accuracy", (0, 1, 0, 1, 1), (0, 1, 0, 1, 0), 2, [[2], [2], [1]]) == 4 / 5
