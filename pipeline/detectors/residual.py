"""Residual: the length of what features leave outside their principal space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead, refuse_without_weights
from pipeline.procedure import Passes
from pipeline.statistics import ClassMoments
from pipeline.subspace import (
    DistanceScorer,
    about_root,
    dim_within,
    refuse_components,
    refuse_no_residual,
    usual_dim,
)
from pipeline.views import Pooled, Projected, SquaredLength

__all__ = ["Residual"]


@value
class Residual:
    """Length of the residual: |R'(z - u)|.

    z (n, d) are the pooled features that the head reads, f = W z + b its logits, u = -W^+ b the
    point of least norm where they vanish. R (d, d - dim) spans the complement of the ``dim``
    principal directions of the second moment of the fit rows about u.

    ``dim`` defaults as that of vim does. Fit: one pass, the first of vim; state k x d + d x d. A
    sweep over ``dim``, of both detectors, reads nothing more. ``precision`` is as in vim.

    Raises :class:`ConfigError` for a head without weights, or one over other features, for an
    unknown ``precision``, and for ``dim`` >= d or >= the rows of the split; :class:`DataError`
    where the fit rows have no residual.

    Reference: Wang, Li, Feng and Zhang 2022, "ViM: out-of-distribution with virtual-logit
    matching", arXiv 2203.10807, where it is the first ablation.
    Differs from the reference code: symmetric eigendecomposition in float64. OpenOOD fits on ID
    validation rows, with 512 dimensions.
    """

    paper: ClassVar[str] = "Wang et al. 2022"
    formula: ClassVar[str] = "length outside the principal space"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "openood-1.5": {"dim": 512, "fit_split": "val"},
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

    def passes(self, schema: Schema) -> Passes[DistanceScorer]:
        features = Pooled(self.pool, self.field)
        (d,) = features.shape(schema)
        refuse_without_weights(self.head, "residual")
        refuse_components(self.dim, d, schema.rows, "dim")
        about = yield from about_root(self.head, self._moments(), schema, "residual")
        dim = dim_within(self.dim, usual_dim(d), about.space.rank, about.rows)
        refuse_no_residual(dim, about.space.rank, "residual")
        outside = Projected(features, Const(about.space.axes[:, dim:]), Const(about.root))
        note = f"principal space {dim} of {d}, the fit rows span {about.space.rank}"
        return DistanceScorer(SquaredLength(outside), notes=(note,))
