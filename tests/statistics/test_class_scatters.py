from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.statistics import ClassMoments, ClassScatters, Scatters
from pipeline.testing import StatisticLaws, assert_close, drive, labelled, recipes
from pipeline.views import Tokens

CLASSES = 5


def scatters(groups: list[Any], d: int) -> Scatters:
    """Count, mean and scatter of each group of rows (n, d), all at once."""
    count, mean = np.array([len(rows) for rows in groups]), np.zeros((len(groups), d))
    scatter = np.zeros((len(groups), d, d))
    for i, rows in enumerate(groups):
        if len(rows):
            mean[i] = rows.mean(axis=0)
            scatter[i] = (rows - mean[i]).T @ (rows - mean[i])
    return Scatters(count, mean, scatter)


class TestClassScatters(StatisticLaws):
    statistic = ClassScatters()
    memory_shapes = recipes.SMALL_SHAPES

    def reference(self, rows: Mapping[str, Any]) -> Scatters:
        x, y = rows["features"].mean(axis=1), rows["labels"]
        return scatters([x[y == c] for c in range(CLASSES)], x.shape[1])


class TestStripe(StatisticLaws):
    statistic = ClassScatters(stripe=(2, 5))
    memory_shapes = recipes.SMALL_SHAPES

    def reference(self, rows: Mapping[str, Any]) -> Scatters:
        x, y = rows["features"].mean(axis=1), rows["labels"]
        return scatters([x[y == c] for c in range(2, 5)], x.shape[1])


def test_they_add_up_to_the_scatter_within_classes() -> None:
    split = labelled(rows=200).cut(recipes.regular(200, 30))
    each = drive.fold_all(ClassScatters(), split)
    assert_close(each.scatter.sum(axis=0), drive.fold_all(ClassMoments(), split).scatter, 1e-10)
    assert_close(each.covariance[1], each.scatter[1] / each.count[1], 0.0)


@pytest.mark.parametrize("stripe", [(1,), (0, 6), (3, 3), (-1, 2)])
def test_a_stripe_outside_the_classes_is_refused(stripe: Any) -> None:
    with pytest.raises(ConfigError, match="5 classes"):
        ClassScatters(stripe=stripe).empty(labelled(rows=9).schema)


def test_token_views_are_refused() -> None:
    with pytest.raises(ConfigError, match="vectors"):
        ClassScatters(of=Tokens()).empty(labelled(rows=9).schema)
