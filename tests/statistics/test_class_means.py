from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline.errors import DataError
from pipeline.statistics import ClassMeans, Means
from pipeline.testing import StatisticLaws, assert_close, drive, labelled
from pipeline.views import Correct, Every, Logits


def class_means(x: Any, y: Any, classes: int = 5) -> Means:
    count = np.array([(y == c).sum() for c in range(classes)])
    mean = np.zeros((classes, *x.shape[1:]))
    for c in np.unique(y):
        mean[c] = x[y == c].mean(axis=0)
    return Means(count, mean)


class TestOfFeatures(StatisticLaws):
    statistic = ClassMeans()

    def reference(self, rows: Mapping[str, Any]) -> Means:
        kept = rows["labels"] >= 0
        return class_means(rows["features"].mean(axis=1)[kept], rows["labels"][kept])


class TestOfCorrectRows(StatisticLaws):
    statistic = ClassMeans(where=Correct())

    def reference(self, rows: Mapping[str, Any]) -> Means:
        kept = rows["logits"].argmax(axis=1) == rows["labels"]
        return class_means(rows["features"].mean(axis=1)[kept], rows["labels"][kept])


class TestOfLogits(StatisticLaws):
    statistic = ClassMeans(of=Logits())

    def reference(self, rows: Mapping[str, Any]) -> Means:
        kept = rows["labels"] >= 0
        return class_means(rows["logits"][kept], rows["labels"][kept])


def test_a_far_offset_costs_no_digits() -> None:
    data = labelled(rows=400).shifted(1e6)
    found = drive.fold_all(ClassMeans(), data.cut([[1] * 400]))
    kept = data.arrays["labels"] >= 0
    expected = class_means(data.arrays["features"].mean(axis=1)[kept], data.arrays["labels"][kept])
    assert_close(found, expected, 1e-14)


@pytest.mark.parametrize("library", drive.PLACES)
def test_void_rows_that_are_kept_are_refused(library: str) -> None:
    data = labelled(rows=30)
    data.arrays["labels"][:] = 1
    data.arrays["labels"][[4, 17]] = -1
    with pytest.raises(DataError, match=r"id/train: 2 rows \(row 4, row 17\) hold classes -1"):
        drive.fold_all(ClassMeans(where=Every()), data.cut([[20, 10]]), drive.PLACES[library])
