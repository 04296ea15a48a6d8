"""Relative Mahalanobis distance: to the nearest class, less that to all classes together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.linalg import (
    check_regularisation,
    nearest_squared,
    squared_norms,
    unused_ridge,
    whiten,
)
from pipeline.procedure import Passes, check_image, unused_image
from pipeline.statistics import ClassMoments, Moments
from pipeline.views import Projected, View, features, normalized

__all__ = ["RelativeMahalanobis"]


@value
class RelativeMahalanobis:
    """Nearest class distance minus background distance: min_c d_c - d_0.

    d_c = (z - mu_c)' S^-1 (z - mu_c) with the class means mu_c and the within-class covariance S;
    d_0 = (z - mu)' S_0^-1 (z - mu) with the mean mu and the covariance S_0 of all fit rows; z
    (n, d) are pooled features, both covariances are scatter / N. May be negative. Fit: one pass,
    state k x d + d x d, shared with mahalanobis. ``pool: tokens`` fits on tokens and scores (n, t).

    ``normalize``, ``covariance``, ``ridge`` and ``image`` are those of mahalanobis; both
    covariances follow the same rule. ``normalize: 1`` is the relative distance of Mahalanobis++.

    Raises :class:`ConfigError` for unknown options and :class:`DataError` for features that do not
    vary within their classes.

    Reference: Ren, Fort, Liu, Roy, Padhy and Lakshminarayanan 2021, "A simple fix to Mahalanobis
    distance for improving near-OOD detection", arXiv 2106.09022. ``normalize``: Mueller and Hein
    2025, arXiv 2505.18032; Janiak, Binkowski and Kajdanowicz 2025, arXiv 2510.15202.
    Differs from the reference code: one rule of regularisation for both covariances (a ridge
    relative to trace / d, or a pseudo-inverse in float64; reported), no factor 1/2. With ``pinvh``
    the two ranks may differ: a direction in which only the class means vary counts in d_0 alone.
    Classes without rows are left out of the minimum.
    """

    pool: str = "mean"
    field: str = "features"
    covariance: str = "ridge"
    ridge: float = 1e-6
    precision: str = "auto"
    normalize: float = 0.0
    image: str = "max"

    paper: ClassVar[str] = "Ren et al. 2021"
    formula: ClassVar[str] = "min_c (z - mu_c)' S^-1 (z - mu_c) - (z - mu)' S_0^-1 (z - mu)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"covariance": "scatter"},
        "openood-1.5": {"covariance": "pinvh"},
    }

    def __post_init__(self) -> None:
        check_regularisation(self.covariance, self.ridge)
        check_image(self.image)
        self._moments()

    @property
    def unused(self) -> dict[str, str]:
        return unused_ridge(self.covariance) | unused_image(self.pool)

    def _moments(self) -> ClassMoments:
        of = normalized(features(self.pool, self.field), self.normalize)
        return ClassMoments(of=of, precision=self.precision)

    def passes(self, schema: Schema) -> Passes[RelativeMahalanobisScorer]:
        statistic = self._moments()
        results = yield {"moments": statistic}
        moments: Moments = results["moments"]
        tokens = math.prod(statistic.of.shape(schema)[:-1])
        within, overall = (
            whiten(
                covariance, self.covariance, self.ridge, statistic.products, moments.rows, tokens
            )
            for covariance in (moments.covariance, moments.overall_covariance)
        )
        origin = moments.overall_mean
        means = (moments.mean[moments.count > 0] - origin) @ within.matrix
        return RelativeMahalanobisScorer(
            Projected(statistic.of, Const(within.matrix), Const(origin)),
            Projected(statistic.of, Const(overall.matrix), Const(origin)),
            Const(means),
            (f"within classes: {within.note}", f"background: {overall.note}"),
            self.image,
        )


@value
class RelativeMahalanobisScorer:
    """Squared distance to the nearest class mean less that to the overall mean, each whitened."""

    within: View
    background: View
    """Features about the overall mean, whitened by the covariance of all rows."""
    means: Const
    """Class means (c, r) of the classes that had rows, whitened within classes."""
    notes: tuple[str, ...] = ()
    image: str = "max"

    @property
    def views(self) -> tuple[View, ...]:
        return (self.within, self.background)

    def score(self, chunk: Chunk) -> Array:
        z = self.within(chunk)
        return nearest_squared(z, self.means.like(z)) - squared_norms(self.background(chunk))
