"""Neural-collapse inspired detector: how well features point along the weights they choose."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead, beside_head, refuse_without_weights, with_weights
from pipeline.procedure import Passes
from pipeline.statistics import Sums
from pipeline.views import Pooled, Predicted, View

__all__ = ["NCI"]


@value
class NCI:
    """Minus the nearness to the weights of the prediction: - (z - m) . w_y / |z - m| - a |z|_1.

    z (n, d) are the pooled features that the head reads, w_y the weights (d,) of the class y that
    it predicts, m (d,) the mean of the fit rows, and a the weight ``alpha`` >= 0 of the size of the
    features. A row at the mean has no direction: its first term is 0. Fit: one pass, beside that of
    an lda head; state d.

    Raises :class:`ConfigError` for a head without weights, one over other features, and for an
    ``alpha`` that is negative or not finite.

    Reference: Liu and Qin 2025, "Detecting out-of-distribution through the lens of neural
    collapse", CVPR 2025, arXiv 2311.01479.
    Differs from the reference code: float64; OpenOOD chooses ``alpha`` on a validation set, and
    starts from the default here; pytorch-ood has 0.
    """

    paper: ClassVar[str] = "Liu and Qin 2025"
    formula: ClassVar[str] = "- projection of the weights on (z - mean) - alpha |z|_1"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"alpha": 0.0},
        "openood-1.5": {},
    }

    head: Head = StoredHead()
    alpha: float = 1e-4
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < inf:
            raise ConfigError(f"alpha: {self.alpha!r}; expected a finite number from 0 on")

    def passes(self, schema: Schema) -> Passes[NCIScorer]:
        refuse_without_weights(self.head, "nci")
        features = Pooled(self.pool, self.field)
        given, mean = yield from beside_head(self.head, schema, Sums(of=features))
        logits = with_weights(given, features, "nci")
        return NCIScorer(features, Predicted(logits), logits.weight, Const(mean.mean), self.alpha)


@value
class NCIScorer:
    """Minus the projection of the predicted class's weights, minus the weighted size."""

    features: View
    predicted: View
    weight: Const
    """W (k, d)."""
    mean: Const
    """(d,)."""
    alpha: float

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.predicted)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._scores, self.features(chunk), self.predicted(chunk))

    def _scores(self, z: Array, predicted: Array) -> Array:
        xp = arrays.namespace(z)
        centred = z - self.mean.like(z)
        chosen = xp.take(self.weight.like(z), predicted, axis=0)
        lengths = xp.sqrt(xp.sum(centred * centred, axis=1))
        lengths = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
        nearness = xp.sum(centred * chosen, axis=1) / lengths
        return -nearness - self.alpha * xp.sum(xp.abs(z), axis=1)
