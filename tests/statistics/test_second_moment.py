from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.statistics import SecondMoment, Spread
from pipeline.testing import StatisticLaws, assert_close, drive, labelled, recipes
from pipeline.views import Logits, Tokens


def spread(x: Any) -> Spread:
    mean = x.mean(axis=0)
    return Spread(np.array([len(x)]), mean, (x - mean).T @ (x - mean))


class TestOfFeatures(StatisticLaws):
    statistic = SecondMoment()

    def reference(self, rows: Mapping[str, Any]) -> Spread:
        return spread(rows["features"].mean(axis=1)[rows["labels"] >= 0])


class TestOfLogits(StatisticLaws):
    statistic = SecondMoment(of=Logits())

    def reference(self, rows: Mapping[str, Any]) -> Spread:
        return spread(rows["logits"][rows["labels"] >= 0])


@pytest.mark.parametrize("distance", [0.0, 1.0, 1e4, 1e8])
def test_about_a_point_near_or_far(distance: float) -> None:
    data = labelled(rows=200).shifted(1e5)
    found = drive.fold_all(SecondMoment(), data.cut(recipes.regular(200, 30)))
    x = data.arrays["features"].mean(axis=1)[data.arrays["labels"] >= 0]
    point = x.mean(axis=0) + distance * np.linspace(-1.0, 1.0, x.shape[1])
    exact = x.astype(np.longdouble) - point
    expected = (exact.T @ exact).astype(np.float64)
    assert_close(found.about(point), expected, 1e-10)
    assert_close(found.covariance, np.cov(x.T, bias=True), 1e-10)


def test_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="vector view"):
        SecondMoment(of=Tokens()).empty(labelled(rows=5).schema)
