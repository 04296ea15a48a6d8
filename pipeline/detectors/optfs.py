"""OptFS: contributions to the largest logit, weighted by what features of their size are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, DataError
from pipeline.heads import Head, StoredHead
from pipeline.procedure import REHEARSING, Passes, together
from pipeline.quantiles import quantiles
from pipeline.shaping import head_over
from pipeline.statistics.bin_sums import BinSums, BinTotals, bins_between
from pipeline.views import Pooled, Predicted, View
from pipeline.views.shaping import OfPredicted

__all__ = ["OptFS"]

TAIL = 0.001
"""Share of the activations that is left out on either side."""
LENGTH = 1000.0
"""Length of the vector of weights."""


@value
class OptFS:
    """Minus the shaped logit of the predicted class: - sum_j u(z_j) w_cj z_j, c = argmax f.

    z (n, d) are the pooled features that the head reads, f = W z + b its logits. u is constant on
    each of ``bins`` intervals of equal width between the 0.1 and 99.9 percentiles of all n x d
    activations of the fit rows, and 0 outside: on interval i it is the mean, over the fit rows, of
    the contributions w_cj z_j of their features within it, all scaled to a vector of length 1000.
    That maximises the mean shaped logit of the fit rows among vectors of this length.

    Fit: three passes, the first beside that of an lda head; two where the rows hold no more than
    131,072 values, a fourth above 10^9 or where very many values crowd. State: at most 2.1 MB for
    each bin that is searched, then 8 bytes for each of ``bins``. Every pass depends on the one
    before it.

    Raises :class:`ConfigError` for a head without weights, one over other features, and ``bins``
    below 1; :class:`DataError` where nearly all activations are equal, or contribute nothing.

    Reference: Zhao, Xu, Gupta, Asthana, Zheng and Gould 2024, "Towards optimal feature-shaping
    methods for out-of-distribution detection", arXiv 2402.00865, and its code.
    Differs from the reference code: float64, all rows, exact percentiles; exactly ``bins``
    intervals, of which rounding there may add one more.
    """

    head: Head = StoredHead()
    bins: int = 100
    pool: str = "mean"
    field: str = "features"
    paper: ClassVar[str] = "Zhao et al. 2024"
    formula: ClassVar[str] = "- largest logit of features weighted by their size"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise ConfigError(f"bins: {self.bins}; expected at least 1")

    def passes(self, schema: Schema) -> Passes[OptFSScorer]:
        features = Pooled(self.pool, self.field)
        found = yield from together(
            {
                "head": head_over(schema, self.head, features, "optfs"),
                "ends": quantiles(schema, features, (TAIL, 1 - TAIL)),
            }
        )
        logits, (low, high) = found["head"], found["ends"]
        if not low < high:
            raise DataError(
                f"optfs: all but {2 * TAIL:.1%} of the activations are {low:.6g}; intervals "
                "between them have no width"
            )
        edges = Const(np.linspace(low, high, self.bins + 1))
        contributions = OfPredicted(features, logits.weight, Predicted(logits))
        results = yield {"worth": BinSums(contributions, features, edges)}
        note = f"{self.bins} intervals from {low:.4g} to {high:.4g}"
        return OptFSScorer(features, contributions, edges, _weights(results["worth"]), (note,))


def _weights(worth: BinTotals) -> Const:
    """Return u (bins + 2,) of the intervals, with a zero at either end for what is outside."""
    mean = worth.totals / worth.rows
    length = float(np.linalg.norm(mean))
    if not length > 0:
        if not REHEARSING.get():
            raise DataError("optfs: the activations of the fit rows contribute nothing to logits")
        length = 1.0
    return Const(np.pad(mean * (LENGTH / length), 1))


@value
class OptFSScorer:
    """Minus the sum of contributions to the largest logit, weighted by the size of the feature."""

    features: View
    contributions: View
    edges: Const
    weights: Const
    """(bins + 2,): of what is below all edges, of each interval, of what is above."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.contributions)

    def score(self, chunk: Chunk) -> Array:
        z = self.features(chunk)
        xp = arrays.namespace(z)
        edges, weights = self.edges.like(z), self.weights.like(z)

        def unlikeness(z: Array, contributions: Array) -> Array:
            ids = xp.reshape(bins_between(edges, z) + 1, (-1,))
            weight = xp.reshape(xp.take(weights, ids), z.shape)
            return -xp.sum(weight * contributions, axis=1)

        return arrays.by_tiles(unlikeness, z, self.contributions(chunk))
