"""PaDiM: one Gaussian per position of a token, over channels drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, DataError
from pipeline.linalg import Host, lower_inverse, squared_norms
from pipeline.procedure import Passes, check_image
from pipeline.statistics import PositionMoments, Scatters
from pipeline.views import Tokens, View
from pipeline.views.positions import Channels

__all__ = ["PaDiM"]

EPSILON_STEPS = 12


@value
class PaDiM:
    """Mahalanobis distance of a token to the Gaussian of its position: sqrt((z-mu)' S^-1 (z-mu)).

    z are ``channels`` features of the token, drawn at random with ``seed`` and kept in the scorer
    (all of them where there are no more); mu and S = scatter / (N - 1) + ``epsilon`` I those of the
    N fit tokens at the position. Scores (n, t) are anomaly maps; an image scores its largest
    (``image: max``). ``epsilon`` is absolute, as in the paper; it is raised ten times until S has a
    Cholesky factor, which the notes report. Positions that one fit token had have S = epsilon I,
    those that none had, which masks may cause, the Gaussian of all tokens.

    Fit: one pass, state t x (q^2 + 2 q) for q channels, folded in stripes of positions, in further
    passes, where it does not fit; the scorer holds t x (q^2 + q). Labels do not matter, but rows
    below 0 are left out. Positions are compared with themselves: images must be aligned.

    The paper draws 100 of the 448 channels of a ResNet-18, 550 of 1792 of a Wide ResNet-50, from
    the concatenation of three layers, brought to one resolution before they are stored.

    Raises :class:`ConfigError` for options out of range, :class:`DataError` for features without
    tokens.

    Reference: Defard, Setkov, Loesch and Audigier 2021, "PaDiM: a patch distribution modeling
    framework for anomaly detection and localization", arXiv 2011.08785.
    Differs from the reference code: maps are neither enlarged nor blurred (sigma 4) before the
    largest is taken; float64, by a Cholesky factor, so that nothing needs to be clamped at 0.
    anomalib 2.6 keeps every embedding on the device, twice while it stacks them, adds a further
    1e-5 I, and inverts in float32.
    """

    paper: ClassVar[str] = "Defard et al. 2021"
    formula: ClassVar[str] = "distance to the Gaussian of the position, over random channels"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    channels: int = 100
    seed: int = 0
    epsilon: float = 0.01
    field: str = "features"
    image: str = "max"
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_image(self.image)
        if self.channels < 1:
            raise ConfigError(f"channels: {self.channels}; expected at least 1")
        if self.seed < 0:
            raise ConfigError(f"seed: {self.seed}; expected a number from 0 up")
        if not 0 < self.epsilon < inf:
            raise ConfigError(
                f"epsilon: {self.epsilon!r}; expected a finite number above 0, such as 0.01"
            )
        PositionMoments(precision=self.precision)

    def passes(self, schema: Schema) -> Passes[PaDiMScorer]:
        tokens = Tokens(self.field)
        _, d = tokens.shape(schema)
        drawn = np.random.default_rng(self.seed).permutation(d)[: self.channels]
        of = Channels(tokens, Const(np.sort(drawn)))
        results = yield {"moments": PositionMoments(of=of, precision=self.precision)}
        moments: Scatters = results["moments"]
        means, whitening, epsilon = _gaussians(moments, self.epsilon)
        seen = moments.count[moments.count > 0]
        unseen = len(means) - len(seen)
        notes = (
            f"{len(drawn)} of {d} channels, {len(seen)} Gaussians of {seen.min()} tokens or more, "
            f"epsilon {epsilon:.0e}",
            *((f"{unseen} positions that no fit token had",) if unseen else ()),
        )
        return PaDiMScorer(of, Const(means), Const(whitening), self.image, notes)


def _gaussians(moments: Scatters, epsilon: float) -> tuple[Host, Host, float]:
    """Return the means (t, q), whitening matrices (t, q, q) and largest epsilon of positions."""
    seen = np.flatnonzero(moments.count)
    means, whitening = moments.mean.copy(), np.empty_like(moments.scatter)
    needed = epsilon
    for position in seen:
        covariance = moments.scatter[position] / max(moments.count[position] - 1, 1)
        whitening[position], used = _whitening(covariance, epsilon)
        needed = max(needed, used)
    if len(seen) < len(means):
        unseen = moments.count == 0
        mean, covariance = _of_all(moments, seen)
        means[unseen] = mean
        whitening[unseen], used = _whitening(covariance, epsilon)
        needed = max(needed, used)
    return means, whitening, needed


def _of_all(moments: Scatters, seen: Host) -> tuple[Host, Host]:
    """Return the mean and covariance of the tokens of all positions, which are at ``seen``."""
    count = moments.count[seen]
    mean = count @ moments.mean[seen] / count.sum()
    scatter = sum(moments.scatter[position] for position in seen)
    spread = np.sqrt(count)[:, None] * (moments.mean[seen] - mean)
    return mean, (scatter + spread.T @ spread) / max(count.sum() - 1, 1)


def _whitening(covariance: Host, epsilon: float) -> tuple[Host, float]:
    """Return W (q, q) with W W' = (S + epsilon I)^-1, and the epsilon that it took."""
    if not np.isfinite(covariance).all():
        raise DataError("padim: a covariance is not finite; look for huge features")
    for step in range(EPSILON_STEPS):
        added = epsilon * 10.0**step
        try:
            factor = np.linalg.cholesky(covariance + added * np.eye(len(covariance)))
        except np.linalg.LinAlgError:
            continue
        return np.ascontiguousarray(lower_inverse(factor).T), added
    raise DataError(f"padim: no Cholesky factor of a covariance with an epsilon of {added:.0e}")


@value
class PaDiMScorer:
    """Distance of every token to the Gaussian of its position."""

    tokens: View
    means: Const
    """Means of the positions (t, q)."""
    whitening: Const
    """W (t, q, q) of every position."""
    image: str
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.tokens,)

    def score(self, chunk: Chunk) -> Array:
        x = self.tokens(chunk)
        means, whitening = self.means.like(x), self.whitening.like(x)

        def distances(x: Array) -> Array:
            xp = arrays.namespace(x)
            each = [
                squared_norms(arrays.row_products(x[:, i, :], whitening[i, ...], means[i, ...]))
                for i in range(x.shape[1])
            ]
            return xp.sqrt(xp.stack(each, axis=1))

        return arrays.by_tiles(distances, x)
