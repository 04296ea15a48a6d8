"""GradNorm: size of the gradient that would make the softmax uniform, in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead, logits_present, refuse_other_features
from pipeline.procedure import Passes
from pipeline.views import LogSoftmax, Pooled, View

__all__ = ["GradNorm"]


@value
class GradNorm:
    """Minus the L1 norm of the gradient of a divergence: - |z|_1 sum_c |p_c - 1/k|.

    p (n, k) is the softmax of the logits, z (n, d) the pooled features that the head reads. This is
    the norm of the gradient of KL(uniform || p) by the weights of the head, which is the outer
    product of p - 1/k and z: it needs neither gradients nor the weights. ``reduce: sum`` takes the
    cross entropy that is summed over the classes, k times as much. Classes that an lda head has no
    rows of are left out. Nothing is fitted.

    Raises :class:`ConfigError` for a head with weights over other features, and for an unknown
    ``reduce``.

    Reference: Huang, Geng and Li 2021, "On the importance of gradients for detecting
    distributional shifts in the wild", arXiv 2110.00218.
    Differs from the reference code: closed form in float64 instead of a backward pass for each row,
    and the temperature is 1; it sums over the classes, as OpenOOD does; pytorch-ood takes the
    gradient by every parameter of the model, unless its ``param_filter`` names these weights.
    """

    paper: ClassVar[str] = "Huang et al. 2021"
    formula: ClassVar[str] = "- |z|_1 |softmax - 1/k|_1"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {},
        "openood-1.5": {"reduce": "sum"},
    }

    head: Head = StoredHead()
    reduce: str = "mean"
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.reduce not in ("mean", "sum"):
            raise ConfigError(f"reduce: {self.reduce!r} is unknown; choose mean or sum")

    def passes(self, schema: Schema) -> Passes[GradNormScorer]:
        features = Pooled(self.pool, self.field)
        features.shape(schema)
        logits = yield from self.head.passes(schema)
        refuse_other_features(logits, features, "gradnorm")
        present = logits_present(logits)
        (classes,) = present.shape(schema)
        scale = classes if self.reduce == "sum" else 1.0
        note = f"softmax over {classes} of {schema.classes} classes"
        return GradNormScorer(features, LogSoftmax(present), scale, (note,))


@value
class GradNormScorer:
    """Minus the product of two L1 norms: of the features, and of the softmax less the uniform."""

    features: View
    log_p: View
    scale: float
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.log_p)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._scores, self.features(chunk), self.log_p(chunk))

    def _scores(self, z: Array, log_p: Array) -> Array:
        xp = arrays.namespace(z)
        unevenness = xp.sum(xp.abs(xp.exp(log_p) - 1 / log_p.shape[1]), axis=1)
        return -self.scale * xp.sum(xp.abs(z), axis=1) * unevenness
