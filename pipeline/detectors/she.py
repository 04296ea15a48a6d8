"""Simplified Hopfield energy: likeness to the stored pattern of the predicted class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.statistics import ClassMeans, Means
from pipeline.views import Correct, Pooled, Predicted, View

__all__ = ["SHE"]


@value
class SHE:
    """Minus the inner product with the pattern of the predicted class: -z . S_c, c = argmax f.

    z (n, d) are pooled features; S_c the mean feature of the fit rows of class c that are
    classified correctly. Fit: one pass, after that of the head if it is fitted; state k x d.

    Reference: Zhang, Fu, Chen, Du, Li, Wang, Liu, Han and Zhang 2023, "Out-of-distribution
    detection based on in-distribution data patterns memorization with modern Hopfield energy",
    ICLR 2023.
    Differs from the reference code: float64; a class without one correct row stores the zero
    pattern, so that predicting it scores 0 (like nothing that is stored) instead of NaN.
    """

    paper: ClassVar[str] = "Zhang et al. 2023"
    formula: ClassVar[str] = "- inner product with the class pattern"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}, "openood-1.5": {}}

    head: Head = StoredHead()
    pool: str = "mean"
    field: str = "features"

    def passes(self, schema: Schema) -> Passes[SHEScorer]:
        features = Pooled(self.pool, self.field)
        logits = yield from self.head.passes(schema)
        results = yield {"patterns": ClassMeans(of=features, where=Correct(logits))}
        patterns: Means = results["patterns"]
        note = f"{(patterns.count > 0).sum()} of {schema.classes} classes have a pattern"
        return SHEScorer(features, Predicted(logits), Const(patterns.mean), (note,))


@value
class SHEScorer:
    """Minus the inner product of the features with the pattern of the predicted class."""

    features: View
    predicted: View
    patterns: Const
    """S (k, d)."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.predicted)

    def score(self, chunk: Chunk) -> Array:
        z = self.features(chunk)
        xp = arrays.namespace(z)
        patterns = self.patterns.like(z)

        def unlikeness(z: Array, predicted: Array) -> Array:
            return -xp.sum(z * xp.take(patterns, predicted, axis=0), axis=1)

        return arrays.by_tiles(unlikeness, z, self.predicted(chunk))
