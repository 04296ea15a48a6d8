"""DICE: energy of a head that keeps only the weights which contribute most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, DataError
from pipeline.heads import (
    ABSENT_BIAS,
    Head,
    StoredHead,
    beside_head,
    refuse_without_weights,
    with_weights,
)
from pipeline.procedure import Passes
from pipeline.shaping import ShapedEnergy
from pipeline.statistics import Sums
from pipeline.views import Linear, LogSumExp, Pooled

__all__ = ["DICE"]


@value
class DICE:
    """Energy of the sparse head: - log sum_c exp(sum_j M_cj W_cj z_j + b_c).

    z (n, d) are the pooled features that the head reads, W (k, d) and b (k,) its weights and bias.
    M_cj is 1 where the mean contribution W_cj m_j is above the quantile ``p`` of all k x d of them,
    else 0; m (d,) is the mean of the fit rows. Classes that an lda head has no rows of are left out
    of the quantile. Fit: one pass, beside that of an lda head; state d, so that a sweep over ``p``
    reads nothing more.

    Raises :class:`ConfigError` for a head without weights, one over other features, and for ``p``
    outside 0 <= p < 1; :class:`DataError` where no weight contributes more than the others.

    Reference: Sun and Li 2022, "DICE: leveraging sparsification for out-of-distribution detection",
    ECCV 2022, arXiv 2111.09805.
    Differs from the reference code: float64; one product with the sparse weights, never rows x k x
    d; OpenOOD gives ``p`` in percent.
    """

    paper: ClassVar[str] = "Sun and Li 2022"
    formula: ClassVar[str] = "- logsumexp of a head without its smallest contributions"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}, "openood-1.5": {}}

    head: Head = StoredHead()
    p: float = 0.9
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ConfigError(
                f"p: {self.p!r}; expected the share of weights to leave out, from 0 to below 1"
            )

    def passes(self, schema: Schema) -> Passes[ShapedEnergy]:
        refuse_without_weights(self.head, "dice")
        features = Pooled(self.pool, self.field)
        given, mean = yield from beside_head(self.head, schema, Sums(of=features))
        logits = with_weights(given, features, "dice")
        weight, bias = logits.weight.array, logits.bias.array
        contributions = weight * mean.mean
        present = bias > ABSENT_BIAS
        kept = contributions > np.quantile(contributions[present], self.p)
        if not kept.any():
            raise DataError(
                f"{schema.split}: dice keeps the weights that contribute most, but the largest "
                f"{1 - self.p:.0%} contributions are all {contributions[present].max():.3g}; look "
                "for features that are all zero, or choose a smaller p"
            )
        sparse = Linear(features, Const(np.where(kept, weight, 0.0)), logits.bias)
        note = f"{kept[present].sum()} of {contributions[present].size} weights kept"
        return ShapedEnergy(LogSumExp(sparse), (note,))
