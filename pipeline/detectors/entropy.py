"""Entropy of the softmax: how evenly probability is spread over the classes."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.views import LogSoftmax, View

__all__ = ["Entropy"]


@value
class Entropy:
    """Entropy of the softmax: -sum_c p_c log p_c.

    p (n, k) is the softmax of the logits. Nothing is fitted. ``clamp`` raises every probability to
    at least that much first; 0, the default, leaves them alone. Raises :class:`ConfigError` for a
    ``clamp`` outside 0 to 1 / 2.

    Reference: Chan, Rottmann and Gottschalk 2021, "Entropy maximization and meta classification
    for out-of-distribution detection in semantic segmentation", arXiv 2012.06575.
    Differs from the reference code: not divided by log k; in float64 from log probabilities, where
    pytorch-ood clamps at 1e-7 and so ties rows more certain than that.
    """

    head: Head = StoredHead()
    clamp: float = 0.0
    paper: ClassVar[str] = "Chan et al. 2021"
    formula: ClassVar[str] = "- sum p log p"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {"clamp": 1e-7}}

    def __post_init__(self) -> None:
        if not 0 <= self.clamp < 0.5:
            raise ConfigError(f"clamp: {self.clamp!r}; expected 0 (none) or more, below 0.5")

    def passes(self, schema: Schema) -> Passes[EntropyScorer]:
        logits = yield from self.head.passes(schema)
        return EntropyScorer(LogSoftmax(logits), self.clamp)


@value
class EntropyScorer:
    """Entropy of probabilities of at least ``clamp``."""

    log_p: View
    clamp: float

    @property
    def views(self) -> tuple[View, ...]:
        return (self.log_p,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._entropies, self.log_p(chunk))

    def _entropies(self, log_p: Array) -> Array:
        xp = arrays.namespace(log_p)
        if self.clamp > 0:
            log_p = xp.maximum(log_p, xp.full_like(log_p, log(self.clamp)))
        p = xp.exp(log_p)
        # 0 log 0 is 0, and the logarithm may be -inf where logits are too far apart for a float.
        return xp.sum(p * xp.where(p > 0, -log_p, xp.zeros_like(p)), axis=1)
