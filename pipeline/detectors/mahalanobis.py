"""Mahalanobis distance to the nearest class mean, under one covariance shared by all classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.linalg import check_regularisation, nearest_squared, unused_ridge, whiten
from pipeline.procedure import Passes, check_image, unused_image
from pipeline.statistics import ClassMoments, Moments
from pipeline.views import Projected, View, features, normalized

__all__ = ["Mahalanobis"]


@value
class Mahalanobis:
    """Squared Mahalanobis distance to the nearest class: min_c (z - mu_c)' S^-1 (z - mu_c).

    z (n, d) are pooled features; mu_c the class means; S the within-class covariance, scatter / N.
    Fit: one pass, state k x d + d x d. ``pool: tokens`` fits on tokens and scores (n, t);
    ``image`` says how they make the score of an image.

    ``normalize`` is the exponent b of z / |z|^b, taken of every row (token) before anything else:
    1 is Mahalanobis++, 0 leaves the features as they are. Each exponent has statistics of its own,
    all from the same pass.

    ``covariance``: ``ridge`` adds ``ridge`` times trace / d to the diagonal of S, ten times more
    until a float64 Cholesky factor exists; ``oas`` shrinks S towards trace / d by as much as its
    number of rows (images, for tokens) asks for, which suits few rows; ``pinvh`` is the
    pseudo-inverse; ``scatter`` adds ``ridge`` itself to the scatter, which is not divided by N.
    What was done is in the notes of the scorer. ``scale`` multiplies the scores.

    Raises :class:`ConfigError` for unknown options and :class:`DataError` for features that do not
    vary within their classes.

    Reference: Lee, Lee, Lee and Shin 2018, "A simple unified framework for detecting
    out-of-distribution samples and adversarial attacks", arXiv 1807.03888. ``normalize``: Mueller
    and Hein 2025, "Mahalanobis++: improving OOD detection via feature normalization", arXiv
    2505.18032, for 1; Janiak, Binkowski and Kajdanowicz 2025, "A geometry-based view of Mahalanobis
    OOD detection", arXiv 2510.15202, for any exponent. ``oas``: Chen, Wiesel, Eldar and Hero 2010,
    "Shrinkage algorithms for MMSE covariance estimation", arXiv 0907.4698.
    Differs from the reference code: covariance divided by N, a ridge relative to trace / d
    (reported) or a pseudo-inverse in float64, no input perturbation, no factor 1/2. Classes
    without rows are left out of the minimum. A zero vector has no direction and stays zero where
    the code of Mahalanobis++ gives NaN.
    """

    pool: str = "mean"
    field: str = "features"
    covariance: str = "ridge"
    ridge: float = 1e-6
    precision: str = "auto"
    normalize: float = 0.0
    scale: float = 1.0
    image: str = "max"

    paper: ClassVar[str] = "Lee et al. 2018"
    formula: ClassVar[str] = "min_c (z - mu_c)' S^-1 (z - mu_c)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"covariance": "scatter", "scale": 0.5},
        "openood-1.5": {"covariance": "pinvh"},
    }

    def __post_init__(self) -> None:
        check_regularisation(self.covariance, self.ridge)
        check_image(self.image)
        if not 0 < self.scale < math.inf:
            raise ConfigError(f"scale: {self.scale!r}; expected a finite number above 0, such as 1")
        self._moments()

    @property
    def unused(self) -> dict[str, str]:
        return unused_ridge(self.covariance) | unused_image(self.pool)

    def _moments(self) -> ClassMoments:
        of = normalized(features(self.pool, self.field), self.normalize)
        return ClassMoments(of=of, precision=self.precision)

    def passes(self, schema: Schema) -> Passes[MahalanobisScorer]:
        statistic = self._moments()
        results = yield {"moments": statistic}
        moments: Moments = results["moments"]
        white = whiten(
            moments.covariance,
            self.covariance,
            self.ridge,
            statistic.products,
            moments.rows,
            math.prod(statistic.of.shape(schema)[:-1]),
        )
        matrix, origin = white.matrix * self.scale**0.5, moments.overall_mean
        means = (moments.mean[moments.count > 0] - origin) @ matrix
        coordinates = Projected(statistic.of, Const(matrix), Const(origin))
        return MahalanobisScorer(coordinates, Const(means), (white.note,), self.image)


@value
class MahalanobisScorer:
    """Squared distance to the nearest of the class means, in whitened space."""

    white: View
    means: Const
    """Whitened class means (c, r) of the classes that had rows."""
    notes: tuple[str, ...] = ()
    image: str = "max"

    @property
    def views(self) -> tuple[View, ...]:
        return (self.white,)

    def score(self, chunk: Chunk) -> Array:
        z = self.white(chunk)
        return nearest_squared(z, self.means.like(z))
