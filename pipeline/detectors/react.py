"""ReAct: energy of features that are cut at a percentile of all activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes, together
from pipeline.quantiles import quantiles
from pipeline.shaping import ShapedEnergy, energy_of, head_over
from pipeline.views import Pooled
from pipeline.views.shaping import Clipped, check_percentile

__all__ = ["ReAct"]


@value
class ReAct:
    """Energy of rectified activations: - log sum_c exp(W_c min(z, t) + b_c).

    z (n, d) are the pooled features that the head reads, W (k, d) and b (k,) its weights and bias.
    t is the exact ``percentile`` of all n x d activations of the fit rows, linear between the two
    nearest. Fit: two passes, the first beside that of an lda head; one where the rows hold no
    more than 131,072 values, and a third above 10^9 or where very many values crowd. State: at
    most 2.1 MB for each bin that is searched. Every percentile shares the first pass. The second
    depends on the first.

    Raises :class:`ConfigError` for a head without weights, one over other features, and a
    percentile outside 0 to 100.

    Reference: Sun, Guo and Li 2021, "ReAct: out-of-distribution detection with rectified
    activations", arXiv 2111.12797.
    Differs from the reference code: all fit rows, in float64 and without a copy of them, instead of
    some 2,000 validation rows; pytorch-ood's example cuts feature maps before they are pooled.
    """

    head: Head = StoredHead()
    percentile: float = 90.0
    pool: str = "mean"
    field: str = "features"
    paper: ClassVar[str] = "Sun et al. 2021"
    formula: ClassVar[str] = "- logsumexp of the head on min(features, percentile)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {},
        "openood-1.5": {"fit_split": "val"},
    }

    def __post_init__(self) -> None:
        check_percentile("percentile", self.percentile)

    def passes(self, schema: Schema) -> Passes[ShapedEnergy]:
        features = Pooled(self.pool, self.field)
        found = yield from together(
            {
                "head": head_over(schema, self.head, features, "react"),
                "most": quantiles(schema, features, (self.percentile / 100,)),
            }
        )
        most = found["most"]
        cut = Clipped(features, Const(np.full(1, -np.inf)), Const(most))
        return energy_of(found["head"], cut, f"activations are cut at {most[0]:.6g}")
