"""One Gaussian per position of a token, all of them with the same covariance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.linalg import check_regularisation, squared_norms, unused_ridge, whiten
from pipeline.procedure import Passes, check_image
from pipeline.statistics import Moments, TiedMoments
from pipeline.views import TokenMask, Tokens, View
from pipeline.views.positions import position_residuals, tile_images

__all__ = ["TiedPositions"]


@value
class TiedPositions:
    """Squared Mahalanobis distance of a token to the mean of its position, one covariance for all.

    (z_i - mu_i)' S^-1 (z_i - mu_i) of tokens z (n, t, d) with the means mu (t, d) of the positions
    and S, the covariance of all tokens about them, scatter / N. Scores (n, t) are anomaly maps; an
    image scores as ``image`` says. Between the Gaussian of each position of padim and one for all
    tokens of mahalanobis: it needs aligned images, but t times fewer rows than padim. Labels do not
    matter, but rows below 0 are left out; a position that no fit token had takes the mean of all.
    Fit: one pass, state t x d + d x d, shared with matrix_normal.

    Raises :class:`ConfigError` for unknown options, :class:`DataError` for features without tokens
    and for tokens that do not vary.

    Reference: Defard, Setkov, Loesch and Audigier 2021, "PaDiM", arXiv 2011.08785, with the
    covariance of linear discriminant analysis (Fisher 1936) in place of one for each position.
    """

    paper: ClassVar[str] = "after Defard et al. 2021"
    formula: ClassVar[str] = "squared distance to the mean of the position, one covariance"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    field: str = "features"
    image: str = "max"
    covariance: str = "ridge"
    ridge: float = 1e-6
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_image(self.image)
        check_regularisation(self.covariance, self.ridge)
        self._moments()

    @property
    def unused(self) -> dict[str, str]:
        return unused_ridge(self.covariance)

    def _moments(self) -> TiedMoments:
        return TiedMoments(of=Tokens(self.field), precision=self.precision)

    def passes(self, schema: Schema) -> Passes[TiedPositionsScorer]:
        statistic = self._moments()
        statistic.of.shape(schema)
        results = yield {"moments": statistic}
        moments: Moments = results["moments"]
        white = whiten(moments.covariance, self.covariance, self.ridge, statistic.products)
        means = np.where(moments.count[:, None] > 0, moments.mean, moments.overall_mean)
        return TiedPositionsScorer(
            statistic.of, Const(means), Const(white.matrix), self.image, (white.note,)
        )


@value
class TiedPositionsScorer:
    """Squared distance of every token to the mean of its position, in whitened space."""

    tokens: Tokens
    means: Const
    """Means of the positions (t, d)."""
    whitening: Const
    """W (d, r)."""
    image: str
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.tokens, TokenMask(self.tokens.field))

    def score(self, chunk: Chunk) -> Array:
        x = self.tokens(chunk)
        means, whitening = self.means.like(x), self.whitening.like(x)

        def distances(x: Array, valid: Array) -> Array:
            return squared_norms(position_residuals(x, valid, means, whitening))

        valid = TokenMask(self.tokens.field)(chunk)
        return arrays.by_tiles(distances, x, valid, tile_rows=tile_images(x.shape[1]))
