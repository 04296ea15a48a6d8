from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.content import Const
from pipeline.statistics.kronecker import FeatureScatter, PairSums, TokenScatter
from pipeline.testing import Data, StatisticLaws, recipes
from pipeline.testing.recipes import Shape
from pipeline.views import Tokens

RNG = np.random.default_rng(0)
T, D = recipes.TOKENS, recipes.FEATURES
SHAPES = (Shape(64, 16, 96, 6), Shape(3, 4, 64, 6), Shape(300, 4, 64, 6, "float16", masked=True))


def means_and_basis(t: int, d: int) -> tuple[Const, Const]:
    rng = np.random.default_rng(1)
    return Const(rng.standard_normal((t, d))), Const(np.eye(d) + 0.1 * rng.standard_normal((d, d)))


def covariance(t: int) -> Const:
    return Const(0.5 ** np.abs(np.subtract.outer(np.arange(t), np.arange(t))))


def masked(data: Data) -> Data:
    n, t, _ = data.arrays["features"].shape
    mask = np.arange(t) < 1 + np.arange(n)[:, None] % (t - 1)
    mask[11] = False
    features = np.where(mask[:, :, None], data.arrays["features"], np.nan)
    return data.with_arrays(features=features, mask=mask)


class Laws(StatisticLaws):
    memory_shapes = ()

    def kept(self, rows: Mapping[str, Any]) -> tuple[Any, Any]:
        valid = rows.get("mask", np.ones(rows["features"].shape[:2])) != 0
        kept = (rows["labels"] >= 0) & valid.any(axis=1)
        deviation = rows["features"][kept] - self.statistic.means.array
        return np.where(valid[kept][:, :, None], deviation, 0.0), valid[kept]


class TestTokens(Laws):
    statistic = TokenScatter(Tokens(), *means_and_basis(T, D))

    def reference(self, rows: Mapping[str, Any]) -> PairSums:
        deviation, valid = self.kept(rows)
        white = deviation @ self.statistic.basis.array
        count = valid.astype(np.int64).T @ valid.astype(np.int64)
        return PairSums(count, np.einsum("nid,njd->ij", white, white))


class TestMaskedTokens(TestTokens):
    def rows(self) -> Data:
        return masked(recipes.labelled(rows=80))


class TestFeatures(Laws):
    statistic = FeatureScatter(Tokens(), means_and_basis(T, D)[0], covariance(T))

    def reference(self, rows: Mapping[str, Any]) -> PairSums:
        deviation, valid = self.kept(rows)
        total = np.zeros((D, D))
        for r, there in zip(deviation, valid, strict=True):
            own = self.statistic.tokens.array[np.ix_(there, there)]
            total += r[there].T @ np.linalg.solve(own, r[there])
        return PairSums(np.array([valid.sum()]), total)


class TestMaskedFeatures(TestFeatures):
    def rows(self) -> Data:
        return masked(recipes.labelled(rows=80))


def test_work_memory_is_declared() -> None:
    for shape in SHAPES:
        means, basis = means_and_basis(shape.tokens, shape.features)
        for made in (
            TokenScatter(Tokens(), means, basis),
            FeatureScatter(Tokens(), means, covariance(shape.tokens)),
        ):
            laws = Laws()
            laws.statistic = made
            assert not laws.work_undeclared(shape.data), (shape, made)
