"""Maximum logit: confidence before the softmax divides it away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.views import View

__all__ = ["MaxLogit"]


@value
class MaxLogit:
    """Minus the largest logit: -max_c f_c.

    f (n, k) are the logits. Nothing is fitted.

    Reference: Hendrycks, Basart, Mazeika, Zou, Kwon, Mostajabi, Steinhardt and Song 2022, "Scaling
    out-of-distribution detection for real-world settings", arXiv 1911.11132.
    Differs from the reference code: not at all.
    """

    head: Head = StoredHead()
    paper: ClassVar[str] = "Hendrycks et al. 2022"
    formula: ClassVar[str] = "- max logit"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}, "openood-1.5": {}}

    def passes(self, schema: Schema) -> Passes[MaxLogitScorer]:
        logits = yield from self.head.passes(schema)
        return MaxLogitScorer(logits)


@value
class MaxLogitScorer:
    """Minus the largest logit."""

    logits: View

    @property
    def views(self) -> tuple[View, ...]:
        return (self.logits,)

    def score(self, chunk: Chunk) -> Array:
        f = self.logits(chunk)
        return -arrays.namespace(f).max(f, axis=1)
