from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.statistics import Moments, TiedMoments
from pipeline.testing import Data, StatisticLaws, labelled


def tied_moments(tokens: Any, valid: Any) -> Moments:
    _, t, d = tokens.shape
    mean, scatter = np.zeros((t, d)), np.zeros((d, d))
    for j in range(t):
        rows = tokens[valid[:, j], j]
        if len(rows):
            mean[j] = rows.mean(axis=0)
            scatter += (rows - mean[j]).T @ (rows - mean[j])
    return Moments(valid.sum(axis=0), mean, scatter)


class TiedLaws(StatisticLaws):
    def reference(self, rows: Mapping[str, Any]) -> Moments:
        valid = rows.get("mask", np.ones(rows["features"].shape[:2])) != 0
        kept = (rows["labels"] >= 0) & valid.any(axis=1)
        return tied_moments(rows["features"][kept], valid[kept])


class TestTied(TiedLaws):
    statistic = TiedMoments(precision="float64")


class TestTiedInFloat32(TiedLaws):
    statistic = TiedMoments(precision="float32")
    tolerance = 2 * 308**0.5 * 2.0**-24  # random rounding of sums of 308 float32 products, twice


class TestMaskedTied(TiedLaws):
    statistic = TiedMoments(precision="float64")

    def rows(self) -> Data:
        data = labelled(rows=80)
        n, t, _ = data.arrays["features"].shape
        mask = np.arange(t) < 1 + np.arange(n)[:, None] % (t - 1)  # none is valid at the last
        mask[11] = False  # a void row
        features = np.where(mask[:, :, None], data.arrays["features"], np.nan)
        return data.with_arrays(features=features, mask=mask)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="float16"):
        TiedMoments(precision="float16")
