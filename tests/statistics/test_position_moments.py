from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.statistics import PositionMoments, Scatters
from pipeline.testing import Data, StatisticLaws, labelled, recipes


def scatters_by_position(tokens: Any, valid: Any) -> Scatters:
    _, t, d = tokens.shape
    count, mean, scatter = valid.sum(axis=0), np.zeros((t, d)), np.zeros((t, d, d))
    for j in range(t):
        rows = tokens[valid[:, j], j]
        if len(rows):
            mean[j] = rows.mean(axis=0)
            scatter[j] = (rows - mean[j]).T @ (rows - mean[j])
    return Scatters(count, mean, scatter)


class PositionLaws(StatisticLaws):
    memory_shapes = recipes.SMALL_SHAPES

    def reference(self, rows: Mapping[str, Any]) -> Scatters:
        valid = rows.get("mask", np.ones(rows["features"].shape[:2])) != 0
        kept = (rows["labels"] >= 0) & valid.any(axis=1)
        return scatters_by_position(rows["features"][kept], valid[kept])


class TestPositions(PositionLaws):
    statistic = PositionMoments(precision="float64")


class TestPositionsInFloat32(PositionLaws):
    statistic = PositionMoments(precision="float32")
    tolerance = 1e-6


class TestStripe(PositionLaws):
    statistic = PositionMoments(precision="float64", stripe=(1, 3))
    memory_shapes = (recipes.Shape(64, 16, 128, 3), recipes.Shape(500, 4, 64, 3, "float16"))

    def reference(self, rows: Mapping[str, Any]) -> Scatters:
        return Scatters(*(x[1:3] for x in super().reference(rows)))


class TestMaskedPositions(PositionLaws):
    statistic = PositionMoments(precision="float64")

    def rows(self) -> Data:
        data = labelled(rows=80)
        n, t, _ = data.arrays["features"].shape
        mask = np.arange(t) < 1 + np.arange(n)[:, None] % (t - 1)  # none is valid at the last
        mask[11] = False  # a void row
        features = np.where(mask[:, :, None], data.arrays["features"], np.nan)
        return data.with_arrays(features=features, mask=mask)


def test_options_are_checked() -> None:
    schema = labelled(rows=9).schema
    with pytest.raises(ConfigError, match="4 positions"):
        PositionMoments(stripe=(2, 9)).empty(schema)
    with pytest.raises(ConfigError, match="float16"):
        PositionMoments(precision="float16")
