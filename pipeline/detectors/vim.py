"""Virtual-logit matching: what features leave outside the principal space, as one more logit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, DataError
from pipeline.heads import Head, StoredHead, refuse_without_weights
from pipeline.linalg import squared_norms
from pipeline.procedure import REHEARSING, Passes
from pipeline.statistics import ClassMoments, Sum, Sums
from pipeline.subspace import (
    about_root,
    dim_within,
    refuse_components,
    refuse_no_residual,
    usual_dim,
)
from pipeline.views import LogSumExp, Pooled, Projected, View, memoised

__all__ = ["ViM"]


@value
class ViM:
    """Virtual logit minus energy: a |R'(z - u)| - log sum_c exp(f_c).

    z (n, d) are the pooled features that the head reads, f = W z + b its logits, u = -W^+ b the
    point of least norm where they vanish. R (d, d - dim) spans the complement of the ``dim``
    principal directions of the second moment of the fit rows about u, and
    a = sum max f / sum |R'(z - u)| over the fit rows matches the residual to the logits.

    ``dim`` defaults to 1000 for d >= 1500, 512 for d >= 768, else d // 2. Where the fit rows span
    no more than the default, or are no more than ``dim``, half of what they span is taken; the
    notes of the scorer say which. Fit: two passes (the first shared with mahalanobis and an lda
    head), state k x d + d x d, then d: the second pass keeps the sums for every ``dim``, so that
    a sweep over it reads nothing more.

    ``precision`` is that of the products behind the principal directions, as in mahalanobis, so
    that equal ones share them; what is projected is float64 always.

    Raises :class:`ConfigError` for a head without weights, or one over other features, for an
    unknown ``precision``, and for ``dim`` >= d or >= the rows of the split; :class:`DataError`
    where the fit rows have no residual, or a mean largest logit that is not positive.

    Reference: Wang, Li, Feng and Zhang 2022, "ViM: out-of-distribution with virtual-logit
    matching", arXiv 2203.10807.
    Differs from the reference code: symmetric eigendecomposition in float64; it has 1000
    dimensions from d = 2048 on and 512 below.
    """

    paper: ClassVar[str] = "Wang et al. 2022"
    formula: ClassVar[str] = "a length outside the principal space - logsumexp"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {},
        "openood-1.5": {"dim": 256},
    }

    head: Head = StoredHead()
    dim: int | None = None
    precision: str = "auto"
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.dim is not None and self.dim < 1:
            raise ConfigError(f"dim: {self.dim}; expected at least 1")
        self._moments()

    def _moments(self) -> ClassMoments:
        return ClassMoments(of=Pooled(self.pool, self.field), precision=self.precision)

    def passes(self, schema: Schema) -> Passes[ViMScorer]:
        features = Pooled(self.pool, self.field)
        (d,) = features.shape(schema)
        refuse_without_weights(self.head, "vim")
        refuse_components(self.dim, d, schema.rows, "dim")
        about = yield from about_root(self.head, self._moments(), schema, "vim")
        axes, rank, origin = about.space.axes, about.space.rank, Const(about.root)
        dim = dim_within(self.dim, usual_dim(d), rank, about.rows)
        refuse_no_residual(dim, rank, "vim")
        sums = yield {
            "residuals": Sums(ResidualNorms(Projected(features, Const(axes), origin))),
            "logits": Sums(Largest(about.logits)),
        }
        alpha = _alpha(sums["logits"], sums["residuals"], dim)
        return ViMScorer(
            Projected(features, Const(axes[:, dim:]), origin),
            LogSumExp(about.logits),
            alpha,
            (f"principal space {dim} of {d}, the fit rows span {rank}; alpha {alpha:.4g}",),
        )


def _alpha(logits: Sum, residuals: Sum, dim: int) -> float:
    if REHEARSING.get():
        return 1.0
    if not logits.total > 0:
        raise DataError(
            f"vim: the largest logits of the fit rows are {logits.mean:.3g} on average; scaled by "
            "a number that is not positive, a larger residual would count as less "
            "out-of-distribution. Add a constant to the bias of the head"
        )
    return float(logits.total / residuals.total[dim])


@value
class ResidualNorms:
    """Norm of the coordinates from the j-th on, for every j: (d,), the residual at dim j."""

    coordinates: View

    @property
    def fields(self) -> frozenset[str]:
        return self.coordinates.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.coordinates.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 8 * self.shape(schema)[0] * (rows + 4 * min(rows, arrays.TILE_ROWS))

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(_norms_from, self.coordinates(chunk))


def _norms_from(x: Array) -> Array:
    # From the smallest direction up: a difference of large sums would cancel.
    xp = arrays.namespace(x)
    sums = xp.cumulative_sum(xp.flip(x * x, axis=1), axis=1)
    return xp.sqrt(xp.flip(sums, axis=1))


@value
class Largest:
    """Largest entry () of a vector view."""

    of: View

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 8 * rows

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        return arrays.namespace(x).max(x, axis=1)


@value
class ViMScorer:
    """Scaled norm of the residual minus the log partition function of the logits."""

    residual: View
    """Coordinates (d - dim,) outside the principal space."""
    log_partition: View
    alpha: float
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.residual, self.log_partition)

    def score(self, chunk: Chunk) -> Array:
        lengths = squared_norms(self.residual(chunk)) ** 0.5
        return self.alpha * lengths - self.log_partition(chunk)
