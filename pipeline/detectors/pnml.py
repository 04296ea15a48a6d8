"""Predictive normalized maximum likelihood: the regret of the last layer for every label."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, log1p
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.heads import (
    Head,
    StoredHead,
    beside_head,
    refuse_other_features,
)
from pipeline.linalg import check_regularisation, unused_ridge, whiten
from pipeline.procedure import Passes
from pipeline.statistics import ClassMoments, Moments
from pipeline.subspace import moment_about
from pipeline.views import Linear, LogSoftmax, Pooled, Projected, View, normalized

__all__ = ["PNML"]

PROBABILITIES = ("normalized", "raw")
REGULARISATIONS = ("ridge", "pinvh")


@value
class PNML:
    """Regret log sum_c p_c / (p_c + (1 - p_c) p_c^g) / log k, with g = x'G^-1 x / (1 + x'G^-1 x).

    x = z / |z| of the pooled features z (n, d) that the head reads, G = sum x x' over the fit rows,
    p (k,) the softmax of the head. It is 0 for a row that the fit rows leave no freedom, and grows
    with g: a row outside of what they span has g = 1. ``probabilities: normalized`` applies the
    head to x, as the reference code does; ``probabilities: raw`` to z, for which stored logits are
    enough, and which a head with a large bias needs, such as lda: beside unit vectors it decides
    alone.

    G is regularised as the covariance of mahalanobis is: ``ridge``, relative to trace / d, takes a
    row outside of the span to g = 1; ``pinvh`` does not see what is outside. A zero vector has
    g = 0. ``clamp`` keeps probabilities between itself and one minus itself (0, the default: as
    they are). Fit: one pass, shared with mahalanobis of ``normalize: 1``; state k x d + d x d.

    Raises :class:`ConfigError` for unknown options, a ``clamp`` outside 0 to 1 / 2, fewer than 2
    classes, a head over other features, and one without weights where ``probabilities`` are
    normalized.

    Reference: Bibas, Feder and Hassner 2021, "Single layer predictive normalized maximum
    likelihood for out-of-distribution detection", NeurIPS 2021, arXiv 2110.09246.
    Differs from the reference code: ridge where it has a plain inverse (a pseudo-inverse if
    singular), float64, and sums of what is left to the sum's least value, 1: probabilities of
    nearly 0 or 1, which pytorch-ood clamps at 1e-12, keep their order.
    """

    paper: ClassVar[str] = "Bibas et al. 2021"
    formula: ClassVar[str] = "log of the normalizer of the most likely p for every label"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"covariance": "pinvh", "clamp": 1e-12}
    }

    head: Head = StoredHead()
    probabilities: str = "normalized"
    covariance: str = "ridge"
    ridge: float = 1e-6
    clamp: float = 0.0
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.probabilities not in PROBABILITIES:
            known = " or ".join(PROBABILITIES)
            raise ConfigError(f"probabilities: {self.probabilities!r} is unknown; choose {known}")
        check_regularisation(self.covariance, self.ridge, REGULARISATIONS)
        if not 0 <= self.clamp < 0.5:
            raise ConfigError(f"clamp: {self.clamp!r}; expected 0 (none) or more, below 0.5")

    @property
    def unused(self) -> dict[str, str]:
        return unused_ridge(self.covariance)

    def passes(self, schema: Schema) -> Passes[PNMLScorer]:
        if schema.classes < 2:
            raise ConfigError(f"pnml needs at least 2 classes, the split declares {schema.classes}")
        features = Pooled(self.pool, self.field)
        directions = normalized(features, 1.0)
        if self.probabilities == "normalized" and isinstance(self.head, StoredHead):
            raise ConfigError(
                "pnml applies the head to unit vectors and needs its weights: choose head: "
                "{weights: FILE}, or probabilities: raw, for which stored logits are enough"
            )
        logits: Any
        moments: Moments
        logits, moments = yield from beside_head(self.head, schema, ClassMoments(of=directions))
        refuse_other_features(logits, features, "pnml")
        if self.probabilities == "normalized":
            logits = Linear(directions, logits.weight, logits.bias)
        (d,) = features.shape(schema)
        white = whiten(moment_about(moments, np.zeros(d)), self.covariance, self.ridge)
        basis = Const(white.matrix / np.sqrt(moments.rows))
        return PNMLScorer(
            Projected(directions, basis, Const(np.zeros(d))),
            LogSoftmax(logits),
            log(schema.classes),
            self.clamp,
            (white.note,),
        )


@value
class PNMLScorer:
    """Log of the sum over classes of the probability each could be learnt to have, over log k."""

    white: View
    """x whitened by the Gram matrix of the fit rows: (r,)."""
    log_probabilities: View
    log_classes: float
    clamp: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.white, self.log_probabilities)

    def score(self, chunk: Chunk) -> Array:
        regret = arrays.by_tiles(self._regret, self.white(chunk), self.log_probabilities(chunk))
        return regret / self.log_classes

    def _regret(self, white: Array, log_p: Array) -> Array:
        # The sum is that of p, 1, plus sum_c p (1 - p) (1 - p^g) / (p + (1 - p) p^g): positive
        # terms without the 1, which would round them off where one class takes all. Divided by
        # p^g, nothing overflows.
        xp = arrays.namespace(white)
        leverage = xp.sum(white * white, axis=1)[:, None]
        freedom = leverage / (1 + leverage)
        if self.clamp > 0:
            log_p = xp.clip(log_p, log(self.clamp), log1p(-self.clamp))
        others = -xp.expm1(log_p)
        kept = xp.exp((1 - freedom) * log_p)
        rest = xp.sum(kept * others * -xp.expm1(freedom * log_p) / (kept + others), axis=1)
        if self.clamp > 0:  # then the sum of p is not 1
            rest = rest + (xp.sum(xp.exp(log_p), axis=1) - 1)
        return xp.log1p(rest)
