"""SCALE: energy of features that are scaled by what their largest entries hold of their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.shaping import ShapedEnergy, energy_of, head_over
from pipeline.views import Pooled
from pipeline.views.shaping import Pruned, check_percentile, kept_of

__all__ = ["Scale"]


@value
class Scale:
    """Energy of scaled activations: - log sum_c exp(e^r W_c z + b_c).

    z (n, d) are the pooled features that the head reads, W (k, d) and b (k,) its weights and bias.
    r is the sum of z over the sum of its largest d - round(d ``percentile`` / 100) entries, at
    least one. Nothing is pruned, and nothing is fitted but an lda head.

    Features of both signs, such as those after a layer norm, have sums that may be 0 or below.
    Where the sum of the largest is not positive, r is 1. No row overflows: r is at most d over the
    number of largest entries, and 500.

    Raises :class:`ConfigError` for a head without weights, one over other features, and a
    percentile that is not from 0 to 100.

    Reference: Xu, Chen, Franchi and Yao 2024, "Scaling for training time and post-hoc
    out-of-distribution detection enhancement", arXiv 2310.00227.
    Differs from the reference code: float64; a row of zeros scores the energy of the bias instead
    of NaN.
    """

    head: Head = StoredHead()
    percentile: float = 85.0
    pool: str = "mean"
    field: str = "features"
    paper: ClassVar[str] = "Xu et al. 2024"
    formula: ClassVar[str] = "- logsumexp of the head on features times exp(sum / largest sum)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"percentile": 65.0},
        "openood-1.5": {},
    }

    def __post_init__(self) -> None:
        check_percentile("percentile", self.percentile)

    def passes(self, schema: Schema) -> Passes[ShapedEnergy]:
        features = Pooled(self.pool, self.field)
        logits = yield from head_over(schema, self.head, features, "scale")
        (d,) = features.shape(schema)
        kept = kept_of(d, self.percentile)
        note = f"scaled by the sum of all {d} features over that of the {kept} largest"
        return energy_of(logits, Pruned(features, kept, "scale"), note)
