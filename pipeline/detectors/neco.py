"""Neural collapse: the share of a feature that lies in the principal space of the classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead, beside_head
from pipeline.procedure import Passes
from pipeline.statistics import ClassMoments, Moments
from pipeline.subspace import (
    Host,
    dim_within,
    principal_space,
    refuse_components,
    refuse_no_residual,
)
from pipeline.views import Pooled, Projected, View

__all__ = ["NECO"]

DIM = 100
SCALINGS = ("both", "principal", "none")
CONSTANT = 1e-10
"""Deviation relative to the mean below which a feature does not vary, up to rounding."""


@value
class NECO:
    """Minus the relative length of the principal part: - |P'x| / |x|.

    x = (z - mean) / deviation of the pooled features z (n, d) over the fit rows, feature by
    feature; P (d, dim) the first principal directions of x. ``scaling: both`` takes x in both
    lengths; ``principal`` has the raw |z| below; ``none`` does not divide by deviations, P'(z -
    mean) over |z|, which the authors advise where the classes have collapsed well. Features that
    do not vary are not scaled; a row without length has no principal part, and the score 0.

    ``max_logit`` multiplies by the largest logit: - |P'x| / |x| max_c f_c. The authors do so for
    all networks but ResNets, with ``scaling: principal`` for DeiT and Swin.

    ``dim`` defaults to 100, as in the reference code, or d // 2 where d is no more; where the fit
    rows span no more than that, half of what they span is taken. Fit: one pass, shared with
    mahalanobis and an lda head; state k x d + d x d; a sweep over all options reads nothing more.

    Raises :class:`ConfigError` for unknown options, and for ``dim`` >= d or >= the fit rows;
    :class:`DataError` for ``dim`` at least what they span.

    Reference: Ben Ammar, Belkhir, Popescu, Manzanera and Franchi 2024, "NECO: neural collapse based
    out-of-distribution detection", ICLR 2024, arXiv 2310.06823.
    Differs from the reference code: eigenvectors of a streamed float64 correlation; the choices
    that it makes by the name of the network are options.
    """

    paper: ClassVar[str] = "Ben Ammar et al. 2024"
    formula: ClassVar[str] = "- length in the principal space over length"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    head: Head = StoredHead()
    dim: int | None = None
    scaling: str = "both"
    max_logit: bool = False
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            known = ", ".join(SCALINGS)
            raise ConfigError(f"scaling: {self.scaling!r} is unknown; choose {known}")
        if self.dim is not None and self.dim < 1:
            raise ConfigError(f"dim: {self.dim}; expected at least 1")

    def passes(self, schema: Schema) -> Passes[NECOScorer]:
        features = Pooled(self.pool, self.field)
        (d,) = features.shape(schema)
        refuse_components(self.dim, d, schema.rows, "dim")
        logits, moments = yield from self._first(schema, ClassMoments(of=features))
        mean, covariance = moments.overall_mean, moments.overall_covariance
        weights = np.ones(d) if self.scaling == "none" else _one_over_deviations(mean, covariance)
        space = principal_space(covariance * np.outer(weights, weights))
        dim = dim_within(self.dim, DIM if d > DIM else d // 2, space.rank, moments.rows)
        refuse_no_residual(dim, space.rank, "neco")
        raw = self.scaling != "both"
        return NECOScorer(
            Projected(features, Const(weights[:, None] * space.axes[:, :dim]), Const(mean)),
            features,
            Const(np.zeros(d) if raw else mean),
            Const(np.ones(d) if raw else weights),
            logits,
            (f"principal space {dim} of {d}, the fit rows span {space.rank}",),
        )

    def _first(self, schema: Schema, statistic: ClassMoments) -> Passes[tuple[Any, Moments]]:
        """Ask for the moments, beside what the head needs where logits are used."""
        if self.max_logit:
            return (yield from beside_head(self.head, schema, statistic))
        results = yield {"moments": statistic}
        return None, results["moments"]


def _one_over_deviations(mean: Host, covariance: Host) -> Host:
    deviation = np.sqrt(np.diag(covariance))
    varies = deviation > CONSTANT * np.abs(mean)
    inverse: Host = np.where(varies, 1.0, 0.0) / np.where(varies, deviation, 1.0)
    return np.where(varies, inverse, 1.0)


@value
class NECOScorer:
    """Minus the ratio of the length of the principal part to that of the row, maybe times a logit.

    The length of the row is |(z - origin) weights|.
    """

    principal: View
    """Coordinates (dim,) in the principal space."""
    features: View
    origin: Const
    weights: Const
    logits: Any = None
    """The view of logits whose largest multiplies the score; None for no factor."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.principal, self.features, *([self.logits] if self.logits else []))

    def score(self, chunk: Chunk) -> Array:
        z = self.features(chunk)
        xp = arrays.namespace(z)
        origin, weights = self.origin.like(z), self.weights.like(z)

        def share(principal: Array, z: Array) -> Array:
            x = (z - origin) * weights
            length = xp.sqrt(xp.sum(x * x, axis=1))
            known = length > 0
            part = xp.sqrt(xp.sum(principal * principal, axis=1))
            part = part / xp.where(known, length, xp.ones_like(length))
            return xp.where(known, part, xp.zeros_like(part))

        shares = arrays.by_tiles(share, self.principal(chunk), z)
        if self.logits is None:
            return -shares
        return -shares * xp.max(self.logits(chunk), axis=1)
