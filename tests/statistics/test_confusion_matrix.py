from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from pipeline.errors import DataError
from pipeline.statistics import ClassCounts, ConfusionMatrix, Marginals
from pipeline.testing import Data, StatisticLaws, drive
from pipeline.testing.memory_laws import SLACK_NBYTES, peak
from pipeline.views import Every, Stored, Truth


class TestConfusionMatrix(StatisticLaws):
    statistic = ConfusionMatrix()

    def reference(self, rows: Mapping[str, Any]) -> Any:
        kept = rows["labels"] >= 0
        predicted = rows["logits"].argmax(axis=1)
        return confusion_matrix(rows["labels"][kept], predicted[kept], labels=range(5))


def counts(matrix: Any) -> ClassCounts:
    return ClassCounts(np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0))


class TestMarginals(StatisticLaws):
    statistic = Marginals()

    def reference(self, rows: Mapping[str, Any]) -> ClassCounts:
        return counts(TestConfusionMatrix().reference(rows))


def pairs(truth: Any, predicted: Any, classes: int) -> Data:
    return Data({"labels": np.asarray(truth), "predicted": np.asarray(predicted)}, classes)


@pytest.mark.parametrize("library", drive.PLACES)
@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "i8"])
def test_small_integers_do_not_wrap(library: str, dtype: str) -> None:
    data = pairs(np.array([16, 20], dtype), np.array([16, 3], dtype), 21)
    place = drive.PLACES[library]
    matrix = drive.fold_all(ConfusionMatrix(of=Stored("predicted")), data.cut(), place)
    assert matrix.dtype == np.int64
    assert {(int(t), int(p)): int(matrix[t, p]) for t, p in np.argwhere(matrix)} == {
        (16, 16): 1,
        (20, 3): 1,
    }
    margins = drive.fold_all(Marginals(of=Stored("predicted")), data.cut(), place)
    for ours, theirs in zip(margins, counts(matrix), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("statistic", [ConfusionMatrix, Marginals])
@pytest.mark.parametrize("wrong", [-1, 3, 200])
def test_a_prediction_out_of_range_is_named(statistic: Any, wrong: int) -> None:
    data = pairs([0, 1, 2, -1, 2], [0, 1, wrong, 1, 2], 3)
    match = rf"id/train: 1 prediction outside 0 to 2, first in row 2: {wrong}; expected one of 3"
    with pytest.raises(DataError, match=match):
        drive.fold_all(statistic(of=Stored("predicted")), data.cut([[1, 4]]))
    with pytest.raises(DataError, match=match):
        drive.outcome(drive.Ask(statistic(of=Stored("predicted"))), data.cut([[1, 4]]))


def test_a_prediction_in_a_void_row_is_never_looked_at() -> None:
    data = pairs([0, -1, 1], [0, 99, 1], 2)
    matrix = drive.fold_all(ConfusionMatrix(of=Stored("predicted")), data.cut())
    np.testing.assert_array_equal(matrix, np.eye(2))


def test_fractions_are_no_classes() -> None:
    data = pairs([0, 1], [0.0, 1.7], 2)
    with pytest.raises(DataError, match="float64; expected integers"):
        drive.fold_all(ConfusionMatrix(of=Stored("predicted")), data.cut())


def test_both_sides_may_be_any_views() -> None:
    data = pairs([0, 1, 1], [1, 1, 0], 2)
    swapped = ConfusionMatrix(of=Stored("labels"), by=Stored("predicted"), where=Every())
    plain = ConfusionMatrix(of=Stored("predicted"))
    np.testing.assert_array_equal(
        drive.fold_all(swapped, data.cut()), drive.fold_all(plain, data.cut()).T
    )


@pytest.mark.parametrize("classes", [100_000, 1_000_000])
def test_margins_of_many_classes_need_as_much_memory_as_they_declare(classes: int) -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, classes, (2, 300_000), dtype=np.int32)
    data = pairs(truth, predicted, classes)
    statistic = Marginals(Stored("predicted"), Truth(), Every())
    (chunk,) = next(drive.chunks(data.cut(), statistic.fields))
    state, used = peak(statistic.absorb, statistic.empty(data.schema), chunk)
    assert used <= statistic.work_nbytes(data.schema, data.rows) + SLACK_NBYTES
    np.testing.assert_array_equal(state.truth, np.bincount(truth, minlength=classes))
    np.testing.assert_array_equal(state.predicted, np.bincount(predicted, minlength=classes))


@pytest.mark.parametrize("classes", [255, 256, 1000, 2000])
@pytest.mark.parametrize("rows", [10, 300_000, 2_500_000])
@pytest.mark.parametrize(("dtype", "ignore"), [("u2", ()), ("i8", (3,))])
def test_matrices_of_many_classes_need_as_much_memory_as_they_declare(
    classes: int, rows: int, dtype: str, ignore: tuple[int, ...]
) -> None:
    truth, predicted = np.random.default_rng(0).integers(0, classes, (2, rows)).astype(dtype)
    data = pairs(truth, predicted, classes)
    statistic = ConfusionMatrix(Stored("predicted"), Truth(), Every(), ignore)
    (chunk,) = next(drive.chunks(data.cut(), statistic.fields))
    statistic.where(chunk)
    state, used = peak(statistic.absorb, statistic.empty(data.schema), chunk)
    declared = statistic.work_nbytes(data.schema, data.rows)
    assert used <= declared + SLACK_NBYTES
    assert state.sum() == rows - np.isin(truth, ignore).sum()
