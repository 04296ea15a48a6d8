"""Matrix-normal distance: one covariance between tokens, one between features, for whole images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.linalg import Host, Whitening, check_regularisation, squared_norms, whiten
from pipeline.procedure import REHEARSING, Passes
from pipeline.statistics import Moments, TiedMoments
from pipeline.statistics.kronecker import FeatureScatter, PairSums, TokenScatter
from pipeline.views import TokenMask, Tokens, View, memoised
from pipeline.views.positions import position_residuals, tile_images, whitened_images

__all__ = ["MatrixNormal"]


@value
class MatrixNormal:
    """Squared Mahalanobis distance of all tokens of an image at once: tr(U^-1 R V^-1 R').

    R = Z - M (t, d) are the tokens about the means of their positions; the covariance of the t x d
    numbers is U (x) V, U (t, t) between tokens and V (d, d) between features. It is what a
    covariance of flattened tokens cannot be: t^2 + d^2 numbers, and regular from few images on.
    One score per image (n,), of one class: labels do not matter, but rows below 0 are left out.

    Fit, by flip-flop from U = I: V in the first pass, shared with tied_positions, then U given V,
    then V given U, ... in ``max_passes`` passes over the tokens, fewer where U (scaled to a mean
    variance of 1) changes by less than ``tolerance``. Two passes give each factor once; three are
    the non-iterated estimator of Werner, Jansson and Stoica, which is as good as the maximum of
    the likelihood for many images. Later passes depend on the first: they read everything again
    when rows are added. State t x d + d x d, then t x t or d x d.

    Masked tokens: pairs that an image lacks do not count in U, and an image is compared by the
    rows and columns of U of its valid tokens, its distance times t / valid; positions that no fit
    token had have the mean of all tokens and no correlation. Both factors get a ``ridge`` of their
    trace, raised until there is a Cholesky factor (in the notes).

    Raises :class:`ConfigError` for options out of range, :class:`DataError` for features without
    tokens and for tokens that do not vary.

    Reference: Dutilleul 1999, "The MLE algorithm for the matrix normal distribution", Journal of
    Statistical Computation and Simulation 64; Werner, Jansson and Stoica 2008, "On estimation of
    covariance matrices with Kronecker product structure", IEEE Transactions on Signal Processing
    56. Differs from them: a ridge, masks, and a stated number of passes.
    """

    paper: ClassVar[str] = "Dutilleul 1999"
    formula: ClassVar[str] = "tr(U^-1 R V^-1 R') of the tokens R about their positions"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    max_passes: int = 2
    tolerance: float = 1e-6
    ridge: float = 1e-6
    field: str = "features"
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_regularisation("ridge", self.ridge)
        if self.max_passes < 2:
            raise ConfigError(f"max_passes: {self.max_passes}; expected at least 2")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"tolerance: {self.tolerance!r}; expected a number from 0 to below 1")
        self._moments()

    def _moments(self) -> TiedMoments:
        return TiedMoments(of=Tokens(self.field), precision=self.precision)

    def passes(self, schema: Schema) -> Passes[MatrixNormalScorer]:
        statistic = self._moments()
        of = statistic.of
        of.shape(schema)
        results = yield {"moments": statistic}
        moments: Moments = results["moments"]
        seen = moments.count > 0
        means = Const(np.where(seen[:, None], moments.mean, moments.overall_mean))
        white = whiten(moments.covariance, "ridge", self.ridge, statistic.products)
        tokens, number, change = np.eye(len(seen)), 1, np.inf
        while number < self.max_passes and (change > self.tolerance or REHEARSING.get()):
            if number % 2:
                results = yield {"tokens": TokenScatter(of, means, Const(white.matrix))}
                before, tokens = tokens, self._between_tokens(results["tokens"], white)
                change = _change(before, tokens)
            else:
                results = yield {"features": FeatureScatter(of, means, Const(tokens))}
                sums: PairSums = results["features"]
                white = whiten(sums.scatter / max(int(sums.count[0]), 1), "ridge", self.ridge)
            number += 1
        spread = np.linalg.eigvalsh(tokens)
        notes = (
            f"features: {white.note}",
            f"tokens: condition {spread[-1] / spread[0]:.1e}; U changed by {change:.1e} in pass "
            f"{number} of {self.max_passes} at most",
        )
        distances = ImageDistances(of, means, Const(white.matrix), Const(tokens))
        return MatrixNormalScorer(distances, notes)

    def _between_tokens(self, sums: PairSums, white: Whitening) -> Host:
        """Return U (t, t): the mean of R V^-1 R' over features, and over images that have both."""
        rank = white.matrix.shape[1]
        tokens = sums.scatter / np.maximum(sums.count, 1) / rank
        unseen = np.flatnonzero(np.diag(sums.count) == 0)
        tokens[unseen, unseen] = 1.0
        added = whiten(tokens, "ridge", self.ridge).ridge * np.trace(tokens) / len(tokens)
        ridged: Host = tokens + added * np.eye(len(tokens))
        return ridged


def _change(before: Host, after: Host) -> float:
    """Return how far two covariances of tokens are apart, whatever their scale."""
    one, other = (x * len(x) / np.trace(x) for x in (before, after))
    return float(np.linalg.norm(other - one) / np.linalg.norm(one))


@value
class ImageDistances:
    """Squared distances () of the tokens of an image, about the means of their positions."""

    tokens: Tokens
    means: Const
    """Means of the positions (t, d)."""
    whitening: Const
    """W (d, r) of the covariance between features."""
    between: Const
    """U (t, t), the covariance between tokens."""

    @property
    def fields(self) -> frozenset[str]:
        return self.tokens.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.tokens.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        t, d = self.tokens.shape(schema)
        images = min(rows, tile_images(t))
        tile = 8 * images * t * (5 * max(d, int(self.whitening.shape[1])) + 3 * t)
        return tile + arrays.products_nbytes(*self.whitening.shape) + rows * (8 + t)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x, valid = self.tokens(chunk), TokenMask(self.tokens.field)(chunk)
        constants = [c.like(x) for c in (self.means, self.whitening, self.between)]
        means, whitening, between = constants

        def distances(x: Array, valid: Array) -> Array:
            xp = arrays.namespace(x)
            residual = position_residuals(x, valid, means, whitening)
            white = whitened_images(residual, valid, between)
            count = xp.astype(xp.count_nonzero(valid, axis=1), xp.float64)
            count = xp.where(count > 0, count, xp.full_like(count, xp.nan))
            total = xp.sum(squared_norms(white), axis=1)
            return total * (x.shape[1] / count)

        return arrays.by_tiles(distances, x, valid, tile_rows=tile_images(x.shape[1]))


@value
class MatrixNormalScorer:
    """Squared distance of the tokens of an image to the means of their positions."""

    distances: ImageDistances
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.distances,)

    def score(self, chunk: Chunk) -> Array:
        return self.distances(chunk)
