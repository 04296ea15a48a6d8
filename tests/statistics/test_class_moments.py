from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.statistics import ClassMoments, Moments
from pipeline.testing import Data, StatisticLaws, assert_close, drive, labelled, recipes
from pipeline.views import Both, Correct, Logits, Pooled, Predicted, Tokens, Valid

CLASSES = 5


def moments(x: Any, y: Any, weight: Any = None) -> Moments:
    """Count, mean and within-class scatter of rows x (n, d) of classes y, all at once."""
    d = x.shape[1]
    count, mean, scatter = np.zeros(CLASSES, int), np.zeros((CLASSES, d)), np.zeros((d, d))
    for c in np.unique(y):
        rows = x[y == c]
        count[c], mean[c] = len(rows), rows.mean(axis=0)
        scatter += (rows - mean[c]).T @ (rows - mean[c])
    return Moments(count, mean, scatter)


def labelled_rows(rows: Mapping[str, Any]) -> tuple[Any, Any]:
    kept = rows["labels"] >= 0
    return rows["features"][kept], rows["labels"][kept]


class TestPooled(StatisticLaws):
    statistic = ClassMoments()

    def reference(self, rows: Mapping[str, Any]) -> Moments:
        x, y = labelled_rows(rows)
        return moments(x.mean(axis=1), y)


class TestOfPredictedClasses(StatisticLaws):
    statistic = ClassMoments(by=Predicted(), where=Both(Valid(), Correct()))

    def reference(self, rows: Mapping[str, Any]) -> Moments:
        predicted = rows["logits"].argmax(axis=1)
        kept = predicted == rows["labels"]
        return moments(rows["features"].mean(axis=1)[kept], predicted[kept])


class TestVectorsInFloat32(StatisticLaws):
    statistic = ClassMoments(precision="float32")
    tolerance = 1e-6

    def reference(self, rows: Mapping[str, Any]) -> Moments:
        x, y = labelled_rows(rows)
        return moments(x.mean(axis=1), y)


def token_moments(rows: Mapping[str, Any]) -> Moments:
    x, y = labelled_rows(rows)
    tokens = x.shape[1]
    return moments(x.reshape(-1, x.shape[2]), np.repeat(y, tokens))


class TestTokens(StatisticLaws):
    statistic = ClassMoments(of=Tokens(), precision="float64")

    def reference(self, rows: Mapping[str, Any]) -> Moments:
        return token_moments(rows)


class TestTokensInFloat32(StatisticLaws):
    statistic = ClassMoments(of=Tokens())
    tolerance = 1e-6

    def reference(self, rows: Mapping[str, Any]) -> Moments:
        return token_moments(rows)


def masked(data: Data) -> Data:
    """Leave a varying number of valid tokens per row; the others hold NaN."""
    n, t, _ = data.arrays["features"].shape
    mask = np.arange(t) < 1 + np.arange(n)[:, None] % t
    mask[11] = False  # a void row
    features = np.where(mask[:, :, None], data.arrays["features"], np.nan)
    return data.with_arrays(features=features, mask=mask)


class TestMaskedTokens(StatisticLaws):
    statistic = ClassMoments(of=Tokens(), precision="float64")

    def rows(self) -> Data:
        return masked(labelled(rows=80))

    def reference(self, rows: Mapping[str, Any]) -> Moments:
        kept = (rows["labels"] >= 0) & (rows["mask"] != 0).any(axis=1)
        x, y, mask = (rows[name][kept] for name in ("features", "labels", "mask"))
        flat = mask.reshape(-1) != 0
        y = np.repeat(y, x.shape[1])[flat]
        return moments(x.reshape(-1, x.shape[2])[flat], y)


class TestMaskedTokensInFloat32(TestMaskedTokens):
    statistic = ClassMoments(of=Tokens())
    tolerance = 1e-6


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("recipe", [labelled, lambda rows: masked(labelled(rows=rows))])
def test_float32_tokens_at_an_offset_keep_their_scatter(offset: float, recipe: Any) -> None:
    data = recipe(rows=200)
    features = (data.arrays["features"] + np.float32(offset)).astype(np.float32)
    data = data.with_arrays(features=features)
    found = drive.fold_all(ClassMoments(of=Tokens()), data.cut(recipes.regular(200, 30)))
    law = TestMaskedTokens()
    reference = law.reference if "mask" in data.arrays else token_moments
    expected = reference(data.upcast())
    assert_close(found.scatter, expected.scatter, 1e-6)
    assert_close(found.mean, expected.mean, 1e-12)


def test_overall_moments_are_exact() -> None:
    data = labelled(rows=200).shifted(1e4)
    found = drive.fold_all(ClassMoments(), data.cut(recipes.regular(200, 30)))
    x, _ = labelled_rows(data.arrays)
    x = x.mean(axis=1)
    assert found.rows == len(x)
    assert_close(found.overall_mean, x.mean(axis=0), 1e-14)
    assert_close(found.overall_covariance, np.cov(x.T, bias=True), 1e-10)
    assert_close(found.covariance, found.scatter / len(x), 0.0)


def test_precision_is_checked() -> None:
    with pytest.raises(ConfigError, match="float16"):
        ClassMoments(precision="float16")


def test_a_label_that_a_filter_lets_through_is_refused() -> None:
    statistic = replace(ClassMoments(), where=Both(Valid(), Valid()), by=Predicted(Logits("wide")))
    data = labelled(rows=20)
    wide = np.zeros((20, CLASSES + 2))
    wide[:, -1] = 1.0
    split = data.with_arrays(wide=wide).cut()
    with pytest.raises(ValueError, match="expected"):
        drive.outcome(drive.Ask(statistic), split)


def test_equal_options_are_one_computation() -> None:
    assert ClassMoments() == ClassMoments(of=Pooled(), precision="auto")
    assert len({ClassMoments(), ClassMoments(Pooled("mean")), ClassMoments(Pooled("cls"))}) == 2
