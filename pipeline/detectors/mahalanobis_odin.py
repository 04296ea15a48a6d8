"""Mahalanobis distance with input perturbation: Gaussians of clean features, perturbed rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.linalg import check_regularisation, nearest_squared, unused_ridge, whiten
from pipeline.procedure import Passes
from pipeline.statistics import ClassMoments, Moments
from pipeline.views import Pooled, Projected, View
from pipeline.views.probed import ProbedFeatures

__all__ = ["MahalanobisODIN"]


@value
class MahalanobisODIN:
    """Squared Mahalanobis distance of perturbed inputs to the nearest class mean.

    min_c (z' - mu_c)' S^-1 (z' - mu_c): mu_c and S, the within-class covariance, are those of the
    pooled features z (n, d), as of ``mahalanobis``; z' (n, d) are features of inputs that were
    moved towards their class, the array ``perturbed``. Two steps: fit on features, then have the
    probe ``mahalanobis`` of the fitted detector write ``perturbed`` for rows that are scored; those
    that are fitted on need none. Fit: one pass, state k x d + d x d.

    ``covariance``, ``ridge``, ``precision`` and ``scale`` are those of ``mahalanobis``.

    Raises :class:`MissingInputError` for rows without ``perturbed`` when they are scored,
    :class:`ConfigError` for unknown options, :class:`DataError` for features that do not vary
    within their classes.

    Reference: Lee, Lee, Lee and Shin 2018, "A simple unified framework for detecting
    out-of-distribution samples and adversarial attacks", arXiv 1807.03888.
    Differs from the reference code: one layer, no regression on out-of-distribution rows; as
    ``mahalanobis`` elsewhere.
    """

    pool: str = "mean"
    field: str = "features"
    perturbed: str = "mahalanobis_features"
    covariance: str = "ridge"
    ridge: float = 1e-6
    precision: str = "auto"
    scale: float = 1.0
    paper: ClassVar[str] = "Lee et al. 2018"
    formula: ClassVar[str] = "min_c (z' - mu_c)' S^-1 (z' - mu_c), z' of perturbed inputs"
    probed: ClassVar[Mapping[str, str]] = {"mahalanobis_features": "D"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"covariance": "scatter", "scale": 0.5},
    }

    def __post_init__(self) -> None:
        check_regularisation(self.covariance, self.ridge)
        if not 0 < self.scale < math.inf:
            raise ConfigError(f"scale: {self.scale!r}; expected a finite number above 0, such as 1")
        if self.pool not in ("mean", "cls"):
            raise ConfigError(
                f"pool: {self.pool!r}; the probe, which has to differentiate it, knows mean and cls"
            )
        self._moments()

    @property
    def unused(self) -> dict[str, str]:
        return unused_ridge(self.covariance)

    def _moments(self) -> ClassMoments:
        return ClassMoments(of=Pooled(self.pool, self.field), precision=self.precision)

    def passes(self, schema: Schema) -> Passes[MahalanobisODINScorer]:
        statistic = self._moments()
        results = yield {"moments": statistic}
        moments: Moments = results["moments"]
        white = whiten(
            moments.covariance, self.covariance, self.ridge, statistic.products, moments.rows
        )
        matrix, origin = Const(white.matrix * self.scale**0.5), Const(moments.overall_mean)
        means = (moments.mean[moments.count > 0] - moments.overall_mean) @ matrix.array
        perturbed = ProbedFeatures(self.perturbed, "mahalanobis")
        return MahalanobisODINScorer(
            Projected(perturbed, matrix, origin),
            Const(means),
            Projected(statistic.of, matrix, origin),
            (white.note,),
        )


@value
class MahalanobisODINScorer:
    """Squared distance to the nearest of the class means, in whitened space."""

    white: View
    means: Const
    """Whitened class means (c, r) of the classes that had rows."""
    clean: View
    """What was fitted: features as they are, in whitened space. The probe differentiates it."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.white,)

    def score(self, chunk: Chunk) -> Array:
        z = self.white(chunk)
        return nearest_squared(z, self.means.like(z))
