"""Generalised entropy: how far the largest probabilities are from 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log, log1p
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.views import LogSoftmax, View

__all__ = ["GEN"]

REDUCTIONS = ("sum", "mean")


@value
class GEN:
    """Generalised entropy of the M largest probabilities: sum_c p_c^gamma (1 - p_c)^gamma.

    p (n, k) is the softmax of the logits, ``M`` at most k (None: all classes), ``gamma`` > 0.
    Nothing is fitted. ``reduce: mean`` divides by the number of classes summed; ``clamp`` keeps
    probabilities between itself and one minus itself (0, the default: as they are). Raises
    :class:`ConfigError` for options outside these bounds.

    Reference: Liu, Lochman and Zach 2023, "GEN: pushing the limits of softmax-based
    out-of-distribution detection", CVPR 2023.
    Differs from the reference code: computed from log probabilities, so that 1 - p keeps its
    digits where p is nearly 1 and confident rows keep their order.
    """

    head: Head = StoredHead()
    gamma: float = 0.1
    M: int | None = 100
    reduce: str = "sum"
    clamp: float = 0.0
    paper: ClassVar[str] = "Liu et al. 2023"
    formula: ClassVar[str] = "sum of p^gamma (1 - p)^gamma over the M largest p"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"M": None, "reduce": "mean", "clamp": 1e-7},
        "openood-1.5": {},
    }

    def __post_init__(self) -> None:
        if not 0 < self.gamma < inf:
            raise ConfigError(
                f"gamma: {self.gamma!r}; expected a finite number above 0, such as 0.1"
            )
        if self.M is not None and self.M < 1:
            raise ConfigError(f"M: {self.M!r}; expected at least 1, or null for all classes")
        if self.reduce not in REDUCTIONS:
            raise ConfigError(
                f"reduce: {self.reduce!r} is unknown; choose {' or '.join(REDUCTIONS)}"
            )
        if not 0 <= self.clamp < 0.5:
            raise ConfigError(f"clamp: {self.clamp!r}; expected 0 (none) or more, below 0.5")

    def passes(self, schema: Schema) -> Passes[GENScorer]:
        logits = yield from self.head.passes(schema)
        largest = schema.classes if self.M is None else min(self.M, schema.classes)
        return GENScorer(LogSoftmax(logits), self.gamma, largest, self.reduce, self.clamp)


@value
class GENScorer:
    """Generalised entropy of the ``largest`` largest probabilities."""

    log_p: View
    gamma: float
    largest: int
    reduce: str
    clamp: float

    @property
    def views(self) -> tuple[View, ...]:
        return (self.log_p,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._entropies, self.log_p(chunk))

    def _entropies(self, log_p: Array) -> Array:
        xp = arrays.namespace(log_p)
        if self.largest < log_p.shape[1]:
            log_p = arrays.top_k(log_p, self.largest)
        if self.clamp > 0:
            log_p = xp.clip(log_p, log(self.clamp), log1p(-self.clamp))
        others = -xp.expm1(log_p)  # 1 - p, to every digit even where p is nearly 1
        none = others <= 0  # NaN is not: it must not count as a class that is certain
        log_others = xp.log(xp.where(none, xp.ones_like(others), others))
        terms = xp.exp(self.gamma * (log_p + log_others))
        sums = xp.sum(xp.where(none, xp.zeros_like(terms), terms), axis=1)
        return sums / self.largest if self.reduce == "mean" else sums
