"""Gradient uncertainty: size of the gradient towards every class at once, in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
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

    Raises :class:`ConfigError` for a head with weights over other features.

    Reference: Lee and AlRegib 2020, "Gradients as a measure of uncertainty in neural networks",
    arXiv 2008.08030.
    Differs from the paper: the last layer alone, negated because its gradient is largest where the
    prediction is confident, instead of a classifier trained on the squared norms of all layers.
    Differs from pytorch-ood: closed form in float64, and exact below p = 1e-12, where its gradient
    is cut off; it takes every parameter of the model unless ``param_filter`` names the head.
    """

    paper: ClassVar[str] = "Lee and AlRegib 2020"
    formula: ClassVar[str] = "- (|z|^2 + 1) |k softmax - 1|^2"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}}

    head: Head = StoredHead()
    pool: str = "mean"
    field: str = "features"

    def passes(self, schema: Schema) -> Passes[GradUncertaintyScorer]:
        features = Pooled(self.pool, self.field)
        features.shape(schema)
        logits = yield from self.head.passes(schema)
        refuse_other_features(logits, features, "grad_uncertainty")
        present = logits_present(logits)
        note = f"softmax over {present.shape(schema)[0]} of {schema.classes} classes"
        return GradUncertaintyScorer(features, LogSoftmax(present), (note,))


@value
class GradUncertaintyScorer:
    """Minus the product of two squared norms: of the features and a 1, and of k p - 1."""

    features: View
    log_p: View
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.log_p)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(_scores, self.features(chunk), self.log_p(chunk))


def _scores(z: Array, log_p: Array) -> Array:
    xp = arrays.namespace(z)
    excess = log_p.shape[1] * xp.exp(log_p) - 1
    return -(xp.sum(z * z, axis=1) + 1) * xp.sum(excess * excess, axis=1)
