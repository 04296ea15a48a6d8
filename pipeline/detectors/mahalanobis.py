"""Mahalanobis distance to the nearest class mean, under one covariance shared by all classes."""

from __future__ import annotations

from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.linalg import check_regularisation, nearest_squared, whiten
from pipeline.procedure import Passes
from pipeline.statistics import ClassMoments, Moments
from pipeline.views import Projected, View, features

__all__ = ["Mahalanobis"]


@value
class Mahalanobis:
    """Squared Mahalanobis distance to the nearest class: min_c (z - mu_c)' S^-1 (z - mu_c).

    z (n, d) are pooled features; mu_c the class means; S the within-class covariance, scatter / N.
    Fit: one pass, state k x d + d x d. ``pool: tokens`` fits on tokens and scores (n, t).

    Reference: Lee, Lee, Lee and Shin 2018, "A simple unified framework for detecting
    out-of-distribution samples and adversarial attacks", arXiv 1807.03888.
    Differs from the reference code: covariance divided by N, a ridge relative to trace / d
    (reported) or a pseudo-inverse in float64, no input perturbation, no factor 1/2. Classes
    without rows are left out of the minimum.
    """

    pool: str = "mean"
    field: str = "features"
    covariance: str = "ridge"
    ridge: float = 1e-6
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_regularisation(self.covariance, self.ridge)
        self._moments()

    def _moments(self) -> ClassMoments:
        return ClassMoments(of=features(self.pool, self.field), precision=self.precision)

    def passes(self, schema: Schema) -> Passes[MahalanobisScorer]:
        statistic = self._moments()
        results = yield {"moments": statistic}
        moments: Moments = results["moments"]
        white = whiten(moments.covariance, self.covariance, self.ridge, statistic.products)
        origin = moments.overall_mean
        means = (moments.mean[moments.count > 0] - origin) @ white.matrix
        return MahalanobisScorer(
            Projected(statistic.of, Const(white.matrix), Const(origin)), Const(means), (white.note,)
        )


@value
class MahalanobisScorer:
    """Squared distance to the nearest of the class means, in whitened space."""

    white: View
    means: Const
    """Whitened class means (c, r) of the classes that had rows."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.white,)

    @property
    def fields(self) -> frozenset[str]:
        return self.white.fields

    @property
    def bank(self) -> None:
        return None

    def score(self, chunk: Chunk) -> Array:
        z = self.white(chunk)
        return nearest_squared(z, self.means.like(z))
