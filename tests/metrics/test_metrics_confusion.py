"""Metrics of predicted classes: worked numbers, scikit-learn, public fault cases, huge counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from pipeline import metrics
from pipeline.errors import ConfigError, DataError
from pipeline.procedure import Estimate
from pipeline.statistics import ClassCounts, Marginals
from pipeline.testing import CutSplit, Data
from pipeline.testing.drive import PLACES, at, fold_all, outcome
from pipeline.testing.strategies import LAW
from pipeline.views import ArgMax, Every, Stored, Truth

PREDICTIONS = Stored("predictions")
CLASS_METRICS = {
    "precision": metrics.Precision,
    "recall": metrics.Recall,
    "f1": metrics.F1,
    "iou": metrics.IoU,
    "dice": metrics.Dice,
}


def rows_of(target: Any, predicted: Any, classes: int, dtype: str = "int64") -> Data:
    arrays = {"labels": np.asarray(target, dtype), "predictions": np.asarray(predicted, dtype)}
    return Data(arrays, classes)


def measured(
    metric: Any, target: Any, predicted: Any, classes: int, dtype: str = "int64", cut: Any = None
) -> Any:
    return outcome(metric, rows_of(target, predicted, classes, dtype).cut(cut))


def numbers(result: Mapping[str, Estimate]) -> list[float]:
    return [float(estimate) for estimate in result.values()]


def every_class_metric(target: Any, predicted: Any, classes: int, **options: Any) -> Any:
    """Return name -> the first number of its result, for each of the five metrics."""
    return {
        name: numbers(measured(cls(of=PREDICTIONS, **options), target, predicted, classes))[0]
        for name, cls in CLASS_METRICS.items()
    }


def per_class(cls: Any, target: Any, predicted: Any, classes: int, **options: Any) -> list[float]:
    metric = cls(average="none", of=PREDICTIONS, **options)
    return numbers(measured(metric, target, predicted, classes))


class TestAbsentClasses:
    """Class 2 is only predicted, class 3 occurs nowhere."""

    y, p = (0, 0, 1, 1), (0, 0, 1, 2)

    def test_per_class_values_are_nan_where_they_are_0_by_0(self) -> None:
        nan = math.nan
        for cls, expected in (
            (metrics.Recall, [1, 0.5, nan, nan]),
            (metrics.Precision, [1, 1, 0, nan]),
            (metrics.F1, [1, 2 / 3, 0, nan]),
            (metrics.IoU, [1, 0.5, 0, nan]),
            (metrics.Dice, [1, 2 / 3, 0, nan]),
        ):
            np.testing.assert_array_equal(per_class(cls, self.y, self.p, 4), expected)

    def test_macro_is_the_mean_over_defined_classes_and_says_how_many(self) -> None:
        expected = {"recall": (0.75, 2), "precision": (2 / 3, 3), "f1": (5 / 9, 3), "iou": (0.5, 3)}
        for name, (mean, averaged) in expected.items():
            result = measured(CLASS_METRICS[name](of=PREDICTIONS), self.y, self.p, 4)
            assert float(result[f"{name}_mean"]) == mean
            assert float(result[f"{name}_classes_averaged"]) == averaged

    @pytest.mark.parametrize(
        ("absent", "recall", "f1"),
        [("nan", 3 / 4, 5 / 9), ("zero", 3 / 8, 5 / 12), ("one", 7 / 8, 2 / 3)],
    )
    def test_absent_gives_undefined_classes_a_value(
        self, absent: str, recall: float, f1: float
    ) -> None:
        found = every_class_metric(self.y, self.p, 4, absent=absent)
        assert (found["recall"], found["f1"]) == (recall, f1)

    def test_balanced_accuracy_counts_labelled_classes_only(self) -> None:
        found = measured(metrics.BalancedAccuracy(of=PREDICTIONS), self.y, self.p, 4)
        assert numbers(found) == [0.75]

    def test_weighted_leaves_undefined_classes_out_with_their_weight(self) -> None:
        found = every_class_metric((0, 1, 1, 2), (0, 1, 1, 1), 4, average="weighted")
        assert found["recall"] == 3 / 4
        assert found["precision"] == 7 / 9  # (1 x 1 + 2 x 2/3) / 3; class 2 is never predicted

    def test_reason_names_the_class(self) -> None:
        metric = metrics.Precision(average="none", of=PREDICTIONS)
        result = measured(metric, self.y, self.p, 4)
        assert result["precision_3"].reason == "class 3 has no predictions"
        assert result["precision_2"].reason == ""

    def test_more_absent_classes_change_no_average(self) -> None:
        for average in ("macro", "micro", "weighted"):
            few = every_class_metric(self.y, self.p, 4, average=average)
            assert every_class_metric(self.y, self.p, 400, average=average) == few


class TestIgnore:
    """A14 and relatives: ignored labels leave the rows and every average."""

    y, p = (0, 0, 1, 1, 2, 2), (0, 1, 1, 2, 2, 2)

    def test_a14_ignored_class_inside_the_range(self) -> None:
        assert per_class(metrics.IoU, self.y, self.p, 3, ignore=(1,)) == [0.5, 1.0]
        assert every_class_metric(self.y, self.p, 3, ignore=(1,))["iou"] == 0.75
        assert every_class_metric(self.y, self.p, 3, ignore=(1,))["recall"] == 0.75
        found = measured(metrics.Accuracy(of=PREDICTIONS, ignore=(1,)), self.y, self.p, 3)
        assert numbers(found) == [3 / 4]

    @pytest.mark.parametrize("ignore", [(), (3,), (255,), (-100,)])
    def test_a14_none_or_outside_the_range(self, ignore: tuple[int, ...]) -> None:
        assert per_class(metrics.IoU, self.y, self.p, 3, ignore=ignore) == [0.5, 1 / 3, 2 / 3]
        found = every_class_metric(self.y, self.p, 3, ignore=ignore)
        assert (found["iou"], found["recall"]) == (0.5, 2 / 3)
        found = measured(metrics.Accuracy(of=PREDICTIONS, ignore=ignore), self.y, self.p, 3)
        assert numbers(found) == [4 / 6]

    @pytest.mark.parametrize(("void", "dtype"), [(3, "uint8"), (255, "uint8"), (-100, "int16")])
    def test_rows_with_the_void_label_leave(self, void: int, dtype: str) -> None:
        y, p = (*self.y, void, void), (*self.p, 0, 2)
        for cls in CLASS_METRICS.values():
            metric = cls(of=PREDICTIONS, ignore=(void,))
            with_void = measured(metric, y, p, 3, dtype)
            assert with_void == measured(cls(of=PREDICTIONS), self.y, self.p, 3)

    def test_a_label_out_of_range_that_is_not_ignored_is_an_error(self) -> None:
        with pytest.raises(DataError, match="1 label outside 0 to 2, first in row 1: 255; add"):
            measured(metrics.IoU(of=PREDICTIONS, ignore=(254,)), (0, 255), (0, 0), 3)

    def test_a_prediction_of_the_ignored_class_is_a_miss_of_its_label(self) -> None:
        y, p = (0, 1, 2, 1, 1), (0, 0, 2, 1, 0)
        found = every_class_metric(y, p, 3, ignore=(0,))
        expected = {"recall": 2 / 3, "precision": 1, "f1": 0.75, "iou": 2 / 3, "dice": 0.75}
        assert found == expected
        micro = every_class_metric(y, p, 3, ignore=(0,), average="micro")
        assert (micro["recall"], micro["precision"], micro["iou"]) == (1 / 2, 1, 1 / 2)

    def test_torchmetrics_2441(self) -> None:
        found = every_class_metric((0, 0, 1, 1), (0, 0, 0, 1), 2, ignore=(0,))
        assert found["recall"] == 0.5

    def test_torchmetrics_1385(self) -> None:
        found = every_class_metric((2, 1, 0, 0), (2, 1, 0, 1), 3, ignore=(0,))
        assert found["iou"] == 1.0

    def test_ignoring_changes_no_other_metric_of_the_pass(self) -> None:
        """Torchmetrics 2916: metrics that agree on the first batch are not one computation."""
        y, p = (1, 2, 0, 0), (1, 2, 0, 1)
        assert every_class_metric(y, p, 3)["iou"] == (1 / 2 + 1 / 2 + 1) / 3
        assert every_class_metric(y, p, 3, ignore=(0,))["iou"] == 1.0

    def test_order_and_repeats_do_not_make_another_statistic(self) -> None:
        schema = rows_of((0,), (0,), 3).schema
        several = [(1, 2), (2, 1), (2, 1, 2)]
        asked = {next(metrics.IoU(ignore=i).passes(schema))["marginals"] for i in several}
        assert len(asked) == 1
        assert metrics.IoU(ignore=255) == metrics.IoU(ignore=(255,)) == metrics.IoU(ignore=[255])

    @pytest.mark.parametrize("ignore", ["255", 0.5, (1, "a"), True, (None,)])
    def test_labels_that_do_not_count_are_integers(self, ignore: Any) -> None:
        with pytest.raises(ConfigError, match=r"ignore: .*expected a label such as 255"):
            metrics.IoU(ignore=ignore)

    def test_an_ignored_prediction_outside_the_range_is_a_miss(self) -> None:
        y, p = (0, 1, 1, 255), (0, 1, 255, 7)
        assert every_class_metric(y, p, 2, ignore=255)["recall"] == 3 / 4
        assert every_class_metric(y, p, 2, ignore=255)["precision"] == 1
        table = measured(metrics.ConfusionMatrix(ignore=255), y, p, 2)
        assert table.counts.tolist() == [[1, 0], [0, 1]]
        assert table.undecided.tolist() == [0, 1]
        assert [x.tolist() for x in table.marginals] == [[1, 1], [1, 2], [1, 1]]
        assert table.normalised().tolist() == [[1, 0], [0, 0.5]]
        with pytest.raises(DataError, match="1 prediction outside 0 to 1, first in row 2: 255"):
            measured(metrics.ConfusionMatrix(ignore=254), (0, 1, 1), (0, 1, 255), 2)


def test_equal_statistics_are_shared() -> None:
    schema = rows_of((0,), (0,), 3).schema
    every = [metrics.Accuracy(), metrics.BalancedAccuracy(), metrics.MCC(), metrics.Kappa()]
    every += [cls(average=a) for cls in CLASS_METRICS.values() for a in ("macro", "micro", "none")]
    every += [metrics.Kappa(weighting="linear"), metrics.GeneralisedDice(weighting="simple")]
    asked = {next(metric.passes(schema))["marginals"] for metric in every}
    assert asked == {Marginals(of=PREDICTIONS, by=Truth(), where=Every())}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64"])
def test_a07_small_integers_do_not_overflow(dtype: str) -> None:
    counts = measured(metrics.ConfusionMatrix(of=PREDICTIONS), [16, 20], [16, 3], 21, dtype).counts
    assert np.argwhere(counts).tolist() == [[16, 16], [20, 3]]
    assert counts.dtype == np.int64
    found = measured(metrics.IoU(average="none", of=PREDICTIONS), [16, 20], [16, 3], 21, dtype)
    defined = {name: float(x) for name, x in found.items() if not math.isnan(float(x))}
    assert defined == {"iou_3": 0.0, "iou_16": 1.0, "iou_20": 0.0}


def test_a17_states_are_merged_not_values() -> None:
    """Batches of (TP, FN) = (1, 0), (0, 3), and of accuracy 2/2, 2/2, 0/1."""
    recall = metrics.Recall(average="none", of=PREDICTIONS)
    found = measured(recall, (1, 1, 1, 1), (1, 0, 0, 0), 2, cut=[[1], [3]])
    assert float(found["recall_1"]) == 1 / 4
    accuracy = metrics.Accuracy(of=PREDICTIONS)
    found = measured(accuracy, (0, 1, 0, 1, 1), (0, 1, 0, 1, 0), 2, cut=[[2], [2], [1]])
    assert numbers(found) == [4 / 5]


def test_a_prediction_out_of_range_is_an_error_not_another_cell() -> None:
    for metric in (metrics.Accuracy(of=PREDICTIONS), metrics.ConfusionMatrix(of=PREDICTIONS)):
        with pytest.raises(DataError, match=r"row 1\b.*4"):
            measured(metric, (0, 0), (0, 4), 3)


def test_torchmetrics_1693() -> None:
    assert per_class(metrics.Recall, (0, 1, 0, 0), (0, 1, 0, 1), 3)[:2] == [2 / 3, 1.0]
    precision = per_class(metrics.Precision, (0, 1, 0, 0), (0, 1, 0, 1), 3)
    np.testing.assert_array_equal(precision, [1, 1 / 2, math.nan])


def test_torcheval_176_and_scikit_learn_10573() -> None:
    assert every_class_metric((2, 1, 0, 4), (2, 1, 0, 1), 5)["f1"] == 2 / 3
    assert every_class_metric((0, 0, 1, 1, 1), (0, 0, 1, 1, 2), 3)["recall"] == 5 / 6


def test_two_images_of_four_pixels_pooled() -> None:
    y, p = (0, 0, 0, 1, 1, 1, 1, 1), (0, 0, 0, 0, 1, 1, 1, 0)
    for classes in (2, 3):
        found = every_class_metric(y, p, classes)
        assert (found["iou"], found["dice"], found["recall"]) == (0.6, 0.75, 0.8)
        assert numbers(measured(metrics.Accuracy(of=PREDICTIONS), y, p, classes)) == [0.75]


@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "none"])
@pytest.mark.parametrize("absent", ["nan", "zero", "one"])
def test_without_rows_everything_is_undefined(average: str, absent: str) -> None:
    nothing = ClassCounts(*np.zeros((3, 4), np.int64))
    for name in CLASS_METRICS:
        for key, estimate in metrics.class_metric(name, nothing, average, absent).items():
            if key.endswith("_classes_averaged"):
                assert float(estimate) == 0
            else:
                assert math.isnan(float(estimate))
                assert estimate.reason == "no row with a label counts"
    for whole in (metrics.accuracy(nothing), metrics.balanced_accuracy(nothing)):
        assert math.isnan(float(whole))
        assert whole.reason == "no row with a label counts"


@pytest.mark.parametrize(("y", "ignore"), [((1, 1), 1), ((255, -1), (255, -1))])
def test_numbers_of_no_element_are_undefined(y: Any, ignore: Any) -> None:
    for name in ("accuracy", "iou", "mcc", "kappa", "generalised_dice", "exact_match"):
        found = measured(metrics.make(name, ignore=ignore), y, (0, 1), 3)
        number = next(iter(found.values()))
        assert math.isnan(number.value)
        assert number.reason == "no row with a label counts"


def test_a_split_of_images_without_a_label_is_refused() -> None:
    data = Data({"labels": np.array([-1, -1]), "logits": np.eye(2)}, 2)
    with pytest.raises(DataError, match="no usable row"):
        outcome(metrics.Accuracy(), data.cut())


@pytest.mark.parametrize("cls", CLASS_METRICS.values())
def test_unknown_options_are_named(cls: Any) -> None:
    with pytest.raises(ConfigError, match=r"average: 'mean' is unknown; choose macro"):
        cls(average="mean")
    with pytest.raises(ConfigError, match=r"absent: '0' is unknown; choose nan, zero, one"):
        cls(absent="0")
    with pytest.raises(ConfigError, match=r"metric: 'jaccard' is unknown; choose precision"):
        metrics.class_metric("jaccard", ClassCounts(*np.ones((3, 2), np.int64)))


labels = st.integers(1, 6).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)), min_size=1, max_size=40),
    )
)


def drawn_counts(y: Any, p: Any, classes: int, cut: Any = None) -> ClassCounts:
    counts: ClassCounts = fold_all(Marginals(of=PREDICTIONS), rows_of(y, p, classes).cut(cut))
    return counts


def first(name: str, counts: ClassCounts, average: str, absent: str = "nan") -> float:
    return numbers(metrics.class_metric(name, counts, average, absent))[0]


def alone(name: str, counts: ClassCounts) -> Any:
    return np.array(numbers(metrics.class_metric(name, counts, "none")))


@LAW
@given(labels)
def test_every_metric_agrees_with_scikit_learn(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    classes, pairs = drawn
    y, p = (np.array(side) for side in zip(*pairs, strict=True))
    counts, every = drawn_counts(y, p, classes), list(range(classes))
    for zero, absent in ((np.nan, "nan"), (0.0, "zero"), (1.0, "one")):
        theirs = sk.precision_recall_fscore_support(y, p, labels=every, zero_division=zero)
        for name, peer in zip(("precision", "recall", "f1"), theirs, strict=False):
            ours = first(name, counts, "macro", absent)
            np.testing.assert_allclose(ours, np.nanmean(peer), rtol=1e-14)
            if absent == "nan":
                np.testing.assert_allclose(alone(name, counts), peer, rtol=1e-15)
            weight = theirs[3] * ~np.isnan(peer)
            ours = first(name, counts, "weighted", absent)
            if weight.any():
                expected = np.average(np.nan_to_num(peer), weights=weight)
                np.testing.assert_allclose(ours, expected, rtol=1e-14)
            else:
                assert math.isnan(ours)
    jaccard = sk.jaccard_score(y, p, labels=every, average=None, zero_division=0.0)
    present = np.isin(every, [*y, *p])
    np.testing.assert_allclose(alone("iou", counts)[present], jaccard[present], rtol=1e-15)
    np.testing.assert_array_equal(np.isnan(alone("iou", counts)), ~present)
    ours = first("iou", counts, "macro")
    np.testing.assert_allclose(ours, jaccard[present].mean(), rtol=1e-14)


@LAW
@given(labels)
def test_identities(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    classes, pairs = drawn
    y, p = (np.array(side) for side in zip(*pairs, strict=True))
    counts = drawn_counts(y, p, classes)
    accuracy = float(metrics.accuracy(counts))
    assert accuracy == sk.accuracy_score(y, p)
    for name in ("precision", "recall", "f1", "dice"):
        assert first(name, counts, "micro") == accuracy
    iou, dice = alone("iou", counts), alone("dice", counts)
    np.testing.assert_allclose(iou, dice / (2 - dice), rtol=1e-15)
    balanced = float(metrics.balanced_accuracy(counts))
    np.testing.assert_allclose(balanced, np.nanmean(alone("recall", counts)), rtol=1e-15)
    swapped = alone("precision", drawn_counts(p, y, classes))
    np.testing.assert_array_equal(alone("recall", counts), swapped)
    order = np.random.default_rng(len(pairs)).permutation(classes)
    moved = drawn_counts(order[y], order[p], classes)
    for name in CLASS_METRICS:
        assert metrics.class_metric(name, moved) == metrics.class_metric(name, counts)


class TestConfusionTable:
    table = measured(metrics.ConfusionMatrix(of=PREDICTIONS), (0, 0, 1, 1), (0, 0, 1, 2), 4)

    def test_rows_are_labels(self) -> None:
        assert self.table.counts.tolist() == [[2, 0, 0, 0], [0, 1, 1, 0], [0] * 4, [0] * 4]

    def test_marginals_equal_the_statistic(self) -> None:
        split = rows_of((0, 0, 1, 1), (0, 0, 1, 2), 4).cut()
        expected = fold_all(Marginals(of=PREDICTIONS), split)
        for ours, theirs in zip(self.table.marginals, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_normalising(self) -> None:
        nan = math.nan
        np.testing.assert_array_equal(
            self.table.normalised(), [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [nan] * 4, [nan] * 4]
        )
        np.testing.assert_array_equal(
            self.table.normalised("prediction"),
            [[1, 0, 0, nan], [0, 1, 1, nan], [0, 0, 0, nan], [0, 0, 0, nan]],
        )
        assert self.table.normalised("all").sum() == 1
        with pytest.raises(ConfigError, match="by: 'rows' is unknown"):
            self.table.normalised("rows")

    def test_ignored_labels_leave_the_matrix(self) -> None:
        metric = metrics.ConfusionMatrix(of=PREDICTIONS, ignore=(0, 255))
        table = measured(metric, (0, 1, 255, 1), (0, 0, 2, 1), 3)
        assert table.counts.tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_ignored_labels_leave_in_every_array_library(library: str) -> None:
    split: CutSplit = rows_of((0, 1, 255, 1, -1), (0, 0, 2, 1, 1), 3, "int16").cut([[2, 3]])
    metric = metrics.IoU(average="none", ignore=(0, -1, 255))
    assert outcome(metric, split, at(PLACES[library])) == outcome(metric, split)


LOGITS = np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 3.0]])


def test_a_void_token_mask_leaves_the_row() -> None:
    data = rows_of((0, 1, 1), (0, 1, 0), 2)
    tokens = np.ones((3, 2, 4), np.float32)
    mask = np.array([[1, 1], [1, 0], [0, 0]], np.uint8)
    split = Data({**data.arrays, "mask": mask, "features": tokens}, 2).cut()
    split = replace(split, data=replace(split.data, arrays={**split.data.arrays, "logits": LOGITS}))
    assert numbers(outcome(metrics.Accuracy(of=ArgMax()), split)) == [1 / 2]


def test_an_ignored_row_may_hold_anything() -> None:
    logits = np.array([[2.0, 1.0], [np.nan, np.inf], [0.0, 3.0]])
    data = Data({"labels": np.array([0, 255, 0], np.uint8), "logits": logits}, 2)
    for top_k in (1, 2):
        metric = metrics.Accuracy(ignore=(255,), top_k=top_k)
        assert numbers(outcome(metric, data.cut())) == [top_k / 2]
    with pytest.raises(DataError, match="row 1: 255"):
        outcome(metrics.Accuracy(), data.cut())


def test_scores_that_are_nan_choose_no_class() -> None:
    logits = np.zeros((3, 2, 4), np.float32)
    logits[1, 0, 2] = np.nan
    labels = np.zeros((3, 4), np.uint8)
    statistic = next(metrics.IoU().passes(Data({"labels": labels, "logits": logits}, 2).schema))
    data = Data({"labels": labels, "logits": logits}, 2)
    with pytest.raises(DataError, match="scores of 1 element are NaN, first in row 1, and choose"):
        fold_all(statistic["marginals"], data.cut([[1, 2]]))
    with pytest.raises(DataError, match="row 1"):
        outcome(metrics.IoU(), data.cut([[1, 2]]))
