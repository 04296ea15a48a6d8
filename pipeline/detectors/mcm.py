"""Maximum concept matching: the softmax over similarities of an image to the names of classes."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead, refuse_without_weights, weights_present
from pipeline.linalg import squared_norms
from pipeline.procedure import Passes
from pipeline.views import Linear, Projected, View, softmax_outside_largest

__all__ = ["MCM"]


@value
class MCM:
    """One minus the largest softmax of similarities: 1 - max_c softmax(s / tau)_c.

    s (n, k) are the logits, which a vision-language model stores as the cosines of image and text
    embeddings. With ``cosine`` they are formed here: s_c = cos(z, w_c) for the features z that the
    head reads and its weights W (k, d), the text embeddings; the bias plays no part, and a vector
    of zeros is like no class (0). Nothing is fitted.

    Raises :class:`ConfigError` for a ``tau`` that is not above 0, and for ``cosine`` with a head
    without weights.

    Reference: Ming, Cai, Gu, Sun, Li and Li 2022, "Delving into out-of-distribution detection with
    vision-language representations", arXiv 2211.13445.
    Differs from the reference code: the score is -max softmax + 1, summed from the other classes,
    which keeps the order of rows whose largest probability rounds to 1.
    """

    head: Head = StoredHead()
    tau: float = 1.0
    cosine: bool = False
    paper: ClassVar[str] = "Ming et al. 2022"
    formula: ClassVar[str] = "1 - max softmax(similarity / tau)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"cosine": True},
        "openood-1.5": {},
    }

    def __post_init__(self) -> None:
        if not 0 < self.tau < inf:
            raise ConfigError(f"tau: {self.tau!r}; expected a finite number above 0, such as 1")

    def passes(self, schema: Schema) -> Passes[MCMScorer]:
        if self.cosine:
            refuse_without_weights(self.head, "mcm with cosine: true")
        logits = yield from self.head.passes(schema)
        if not self.cosine:
            return MCMScorer(logits, None, self.tau)
        if not isinstance(logits, Linear):
            raise ConfigError(f"cosine: needs a head that is linear in features, got {logits}")
        weight, _ = weights_present(logits)
        lengths = np.linalg.norm(weight, axis=1, keepdims=True)
        directions = (weight / np.where(lengths > 0, lengths, 1.0)).T
        origin = np.zeros(len(directions))
        inner = Projected(logits.of, Const(np.ascontiguousarray(directions)), Const(origin))
        return MCMScorer(inner, logits.of, self.tau)


@value
class MCMScorer:
    """One minus the largest softmax of similarities over ``tau``."""

    similarities: View
    features: View | None
    """Features whose length the similarities are divided by; None where they are cosines."""
    tau: float

    @property
    def views(self) -> tuple[View, ...]:
        return (self.similarities,) if self.features is None else (self.similarities, self.features)

    def score(self, chunk: Chunk) -> Array:
        s = self.similarities(chunk)
        if self.features is None:
            return arrays.by_tiles(self._doubts, s)
        return arrays.by_tiles(self._doubts, s, squared_norms(self.features(chunk)))

    def _doubts(self, s: Array, squared: Array | None = None) -> Array:
        if squared is not None:
            xp = arrays.namespace(s)
            lengths = xp.sqrt(xp.where(squared > 0, squared, xp.ones_like(squared)))
            s = s / lengths[:, None]
        return softmax_outside_largest(s, self.tau)
