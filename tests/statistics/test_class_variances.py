from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.statistics import ClassScatters, ClassVariances
from pipeline.statistics.class_variances import Variances
from pipeline.testing import Data, StatisticLaws, assert_close, drive, labelled, recipes
from pipeline.views import Tokens

CLASSES = 5


class TestClassVariances(StatisticLaws):
    statistic = ClassVariances()

    def reference(self, rows: Mapping[str, Any]) -> Variances:
        x, y = rows["features"].mean(axis=1), rows["labels"]
        count, mean = np.zeros(CLASSES, int), np.zeros((CLASSES, x.shape[1]))
        scatter = np.zeros_like(mean)
        for c in range(CLASSES):
            of_class = x[y == c]
            if len(of_class):
                count[c], mean[c] = len(of_class), of_class.mean(axis=0)
                scatter[c] = ((of_class - mean[c]) ** 2).sum(axis=0)
        return Variances(count, mean, scatter)


def test_they_are_the_diagonals_of_the_scatters() -> None:
    split = labelled(rows=200).cut(recipes.regular(200, 30))
    whole = drive.fold_all(ClassScatters(), split)
    found = drive.fold_all(ClassVariances(), split)
    expected = np.diagonal(whole.scatter, axis1=1, axis2=2)
    assert_close(found, Variances(whole.count, whole.mean, expected), 1e-12)


def test_rows_that_are_alike_vary_by_nothing() -> None:
    rows = np.tile([1e6 + 0.1, 0.3, 1 / 3], (7, 1))
    data = Data({"features": rows, "labels": np.zeros(7, int)}, 1)
    found = drive.fold_all(ClassVariances(), data.cut([[3], [4]]))
    assert (found.scatter >= 0).all()
    assert found.scatter.max() < 1e-18


def test_token_views_are_refused() -> None:
    with pytest.raises(ConfigError, match="vectors"):
        ClassVariances(of=Tokens()).empty(labelled(rows=9).schema)
