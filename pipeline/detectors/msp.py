"""Maximum softmax probability: the baseline that every other detector is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.views import View, softmax_outside_largest

__all__ = ["MSP"]


@value
class MSP:
    """One minus the largest softmax probability: 1 - max_c p_c.

    p (n, k) is the softmax of the logits. Nothing is fitted.

    Reference: Hendrycks and Gimpel 2017, "A baseline for detecting misclassified and
    out-of-distribution examples in neural networks", arXiv 1610.02136.
    Differs from the reference code: the score is -max p + 1, summed from the other classes. That
    keeps the order of rows whose largest probability rounds to 1, where -max p itself ties; rows
    tie only where every other class is more than 745 below the largest logit.
    """

    head: Head = StoredHead()
    paper: ClassVar[str] = "Hendrycks and Gimpel 2017"
    formula: ClassVar[str] = "1 - max softmax"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}, "openood-1.5": {}}

    def passes(self, schema: Schema) -> Passes[MSPScorer]:
        logits = yield from self.head.passes(schema)
        return MSPScorer(logits)


@value
class MSPScorer:
    """Probability of all classes but the most likely one."""

    logits: View

    @property
    def views(self) -> tuple[View, ...]:
        return (self.logits,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(softmax_outside_largest, self.logits(chunk))
