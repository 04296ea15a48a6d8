"""LTS: energy of logits that are scaled by what the largest features hold of their sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.heads import Head, StoredHead, logits_present
from pipeline.procedure import Passes
from pipeline.views import Pooled, View
from pipeline.views.shaping import ActivationRatio, check_percentile, kept_of

__all__ = ["LTS"]


@value
class LTS:
    """Energy of scaled logits: - log sum_c exp(r^2 f_c).

    f (n, k) are the logits. r is the sum of the positive entries of the pooled features z (n, d)
    over that of the largest d - round(d ``percentile`` / 100) of them, at least one; it lies
    between 1 and d over their number, and is 1 where no entry is positive. Stored logits are
    enough: the weights of the head do not matter. Nothing is fitted but an lda head.

    Raises :class:`ConfigError` for a percentile that is not from 0 to 100.

    Reference: Djurisic, Liu and Nikolic 2025, "Logit scaling for out-of-distribution detection",
    arXiv 2409.01175.
    Differs from the reference code: float64; a row without a positive entry keeps its logits
    instead of NaN. As in that code negative entries count as 0, of which the paper says nothing;
    pytorch-ood's ``p`` = 0.05 is percentile 95 here.
    """

    head: Head = StoredHead()
    percentile: float = 95.0
    pool: str = "mean"
    field: str = "features"
    paper: ClassVar[str] = "Djurisic et al. 2025"
    formula: ClassVar[str] = "- logsumexp(logits times (sum of features / largest sum)^2)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}}

    def __post_init__(self) -> None:
        check_percentile("percentile", self.percentile)

    def passes(self, schema: Schema) -> Passes[LTSScorer]:
        features = Pooled(self.pool, self.field)
        logits = yield from self.head.passes(schema)
        (d,) = features.shape(schema)
        kept = kept_of(d, self.percentile)
        note = f"scaled by the sum of all {d} features over that of the {kept} largest"
        return LTSScorer(logits_present(logits), ActivationRatio(features, kept), (note,))


@value
class LTSScorer:
    """Minus the log partition function of the logits times a square of the row."""

    logits: View
    ratio: View
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.logits, self.ratio)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(_energies, self.logits(chunk), self.ratio(chunk))


def _energies(f: Array, ratio: Array) -> Array:
    xp = arrays.namespace(f)
    scaled = f * (ratio * ratio)[:, None]
    top = xp.max(scaled, axis=1)
    return -(top + xp.log(xp.sum(xp.exp(scaled - top[:, None]), axis=1)))
