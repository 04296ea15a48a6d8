"""Gradient uncertainty: size of the gradient towards every class at once, in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead, logits_present, refuse_other_features
from pipeline.procedure import Passes
from pipeline.views import LogSoftmax, Pooled, View

__all__ = ["GradUncertainty"]


@value
class GradUncertainty:
    """Minus the squared gradient towards all classes: - (|z|^2 + 1) sum_c (k p_c - 1)^2.

    p (n, k) is the softmax of the logits, z (n, d) the pooled features that the head reads. This is
    the squared norm of the gradient of - sum_c log p_c, the cross entropy to a label of all ones,
    by the weights and the bias of the head: it needs neither gradients nor the weights. Classes
    that an lda head has no rows of are left out. Nothing is fitted.

    ``cutoff`` weakens the gradient of log p_c to the share w_c = min(p_c (1 - p_c) / cutoff, 1), so
    that k p_c - 1 becomes p_c sum_j w_j - w_c (0, the default: it is left alone).

    Raises :class:`ConfigError` for a head with weights over other features and for a ``cutoff``
    that is negative or not finite.

    Reference: Lee and AlRegib 2020, "Gradients as a measure of uncertainty in neural networks",
    arXiv 2008.08030.
    Differs from the paper: the last layer alone, negated because its gradient is largest where the
    prediction is confident, instead of a classifier trained on the squared norms of all layers.
    Differs from pytorch-ood: closed form in float64, and exact where p (1 - p) is below
    1e-12, where torch's binary cross entropy cuts its gradient off (``cutoff: 1e-12``): the rows
    that the head is surest of then have small ones. It takes every parameter of the model unless
    ``param_filter`` names the head.
    """

    paper: ClassVar[str] = "Lee and AlRegib 2020"
    formula: ClassVar[str] = "- (|z|^2 + 1) |k softmax - 1|^2"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {"cutoff": 1e-12}}

    head: Head = StoredHead()
    cutoff: float = 0.0
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if not 0 <= self.cutoff < inf:
            raise ConfigError(f"cutoff: {self.cutoff!r}; expected 0 (none) or more, such as 1e-12")

    def passes(self, schema: Schema) -> Passes[GradUncertaintyScorer]:
        features = Pooled(self.pool, self.field)
        features.shape(schema)
        logits = yield from self.head.passes(schema)
        refuse_other_features(logits, features, "grad_uncertainty")
        present = logits_present(logits)
        note = f"softmax over {present.shape(schema)[0]} of {schema.classes} classes"
        return GradUncertaintyScorer(features, LogSoftmax(present), self.cutoff, (note,))


@value
class GradUncertaintyScorer:
    """Minus the product of two squared norms: of the features and a 1, and of k p - 1."""

    features: View
    log_p: View
    cutoff: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.log_p)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._scores, self.features(chunk), self.log_p(chunk))

    def _scores(self, z: Array, log_p: Array) -> Array:
        xp = arrays.namespace(z)
        excess = self._excess(log_p)
        return -(xp.sum(z * z, axis=1) + 1) * xp.sum(excess * excess, axis=1)

    def _excess(self, log_p: Array) -> Array:
        xp = arrays.namespace(log_p)
        p = xp.exp(log_p)
        if self.cutoff == 0:
            return log_p.shape[1] * p - 1
        kept = xp.clip(p * -xp.expm1(log_p), None, self.cutoff) / self.cutoff
        return p * xp.sum(kept, axis=1, keepdims=True) - kept
