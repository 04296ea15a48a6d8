"""Neuron activation coverage: how often the states of the features occurred in the fit rows."""

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
from pipeline.heads import (
    Head,
    StoredHead,
    logits_present,
    refuse_without_weights,
    weights_present,
    with_weights,
)
from pipeline.linalg import Host
from pipeline.procedure import Passes
from pipeline.statistics import BinCounts, BinRows
from pipeline.statistics.bin_counts import bins_of
from pipeline.views import LogSoftmax, Pooled, View, memoised
from pipeline.views.base import floats_nbytes

__all__ = ["NAC"]

SPACINGS = ("logarithmic", "geometric")
BASE = 1e3
"""Of the logarithms that space the thresholds of the reference code."""
LEAST_STATE = 1e-6
"""Lowest threshold of pytorch-ood."""


@value
class NAC:
    """Minus the mean coverage of the states of the features: - mean_j min(N_j(bin of x_j) / O, 1).

    x_j = sigmoid(a z_j g_j) is the state of feature j, z (n, d) the pooled features that the head
    reads and g = W'(p - 1/k) the gradient of KL(uniform || p) by them, p (n, k) being the softmax
    of the logits: NAC-UE at the penultimate layer needs no backward pass. N_j counts the fit rows
    by the bin of their x_j; a bin that O rows (``o_star``) fell into is covered.

    The ``bins`` thresholds between 0 and 1 are dense at 1/2 (``spacing: logarithmic``, as in the
    reference code, which leaves ``bins`` - 2 of them) or at 0 and 1 (``geometric``, as in
    pytorch-ood). States are compared before the sigmoid, so that none rounds to 1. ``alpha`` is the
    steepness a. Where it is far too large for the sizes of z g, all states are in the outer bins
    and rows score alike: the notes say how many of the bins occur. An lda head, whose weights are
    large, needs a small one; classes that it has no rows of are left out.

    ``cutoff`` weakens the gradient of log p_c to the share w_c = p_c / (p_c + cutoff), so that
    p_c - 1/k becomes (p_c sum_j w_j - w_c) / k (0, the default: it is left alone).

    Fit: one pass, after that of the head if it is fitted; state d x bins, whatever ``o_star``.

    Raises :class:`ConfigError` for a head without weights or over other features, fewer than 4
    ``bins``, an ``o_star`` below 1, an ``alpha`` that is not above 0, an unknown ``spacing`` and a
    ``cutoff`` that is negative or not finite.

    Reference: Liu, Tian, Li, Ma and Wang 2024, "Neuron activation coverage: rethinking
    out-of-distribution detection and generalization", ICLR 2024, arXiv 2306.02879.
    Differs from the reference code: the penultimate layer alone, in closed form and float64; all
    fit rows, where the code draws about 1,000 of them, balanced over the classes. pytorch-ood
    rounds states to float32, which puts some of those near 1 a bin lower, and cuts the gradient
    off where a probability is below 1e-12 (``cutoff: 1e-12``).
    """

    paper: ClassVar[str] = "Liu et al. 2024"
    formula: ClassVar[str] = "- mean coverage of the states z * W'(softmax - 1/k)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"spacing": "geometric", "cutoff": 1e-12}
    }

    head: Head = StoredHead()
    bins: int = 50
    alpha: float = 100.0
    o_star: int = 50
    spacing: str = "logarithmic"
    cutoff: float = 0.0
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.bins < 4:
            raise ConfigError(f"bins: {self.bins}; expected at least 4, such as 50")
        if self.o_star < 1:
            raise ConfigError(f"o_star: {self.o_star}; expected at least 1 row, such as 50")
        if not 0 < self.alpha < inf:
            raise ConfigError(
                f"alpha: {self.alpha!r}; expected a finite number above 0, such as 100"
            )
        if self.spacing not in SPACINGS:
            raise ConfigError(
                f"spacing: {self.spacing!r} is unknown; choose {' or '.join(SPACINGS)}"
            )
        if not 0 <= self.cutoff < inf:
            raise ConfigError(f"cutoff: {self.cutoff!r}; expected 0 (none) or more, such as 1e-12")

    def passes(self, schema: Schema) -> Passes[NACScorer]:
        refuse_without_weights(self.head, "nac")
        features = Pooled(self.pool, self.field)
        given = yield from self.head.passes(schema)
        logits = with_weights(given, features, "nac")
        weight, _ = weights_present(logits)
        log_p = LogSoftmax(logits_present(logits))
        influences = Influences(features, log_p, Const(_about_their_mean(weight)), self.cutoff)
        edges = Const(thresholds(self.bins, self.spacing) / self.alpha)
        results = yield {"states": BinCounts(of=influences, edges=edges)}
        states: BinRows = results["states"]
        coverage = np.minimum(states.rows / self.o_star, 1.0)
        note = (
            f"{(states.rows > 0).mean():.0%} of the bins occur, {(coverage == 1).mean():.0%} full"
        )
        return NACScorer(influences, edges, Const(coverage), (note,))


def _about_their_mean(weight: Host) -> Host:
    """Return the weights (c, d) about their mean class, which changes no gradient.

    Exactly 0 where all classes agree: rounding must not choose a side of the middle threshold.
    """
    relative = weight - weight[0]
    about: Host = relative - relative.mean(axis=0)
    return about


def thresholds(bins: int, spacing: str) -> Host:
    """Return the inner thresholds of states (e,), as what the sigmoid makes them of."""
    half = bins // 2
    if spacing == "logarithmic":
        low = np.log(np.linspace(1.0, np.sqrt(BASE), half)[1:-1]) / np.log(BASE)
    else:
        low = np.geomspace(LEAST_STATE, 0.5, half + 1)[1:-1]
    below = np.log(low) - np.log1p(-low)
    return np.concatenate([below, [0.0], -below[::-1]])


@value
class Influences:
    """Features times the gradient of KL(uniform || p) by them: z * W'(p - 1/c), (d,)."""

    of: View
    log_p: View
    """log p (c,)."""
    weight: Const
    """W (c, d), about the mean class."""
    cutoff: float = 0.0

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | self.log_p.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.log_p.shape(schema)
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        c, d = self.weight.shape
        tile = 3 * floats_nbytes((c + d,), min(rows, arrays.TILE_ROWS))
        return floats_nbytes((d,), rows) + tile + arrays.products_nbytes(c, d)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._influences, self.of(chunk), self.log_p(chunk))

    def _influences(self, z: Array, log_p: Array) -> Array:
        return z * arrays.row_products(self._excess(log_p), self.weight.like(z))

    def _excess(self, log_p: Array) -> Array:
        xp, c = arrays.namespace(log_p), log_p.shape[1]
        p = xp.exp(log_p)
        if self.cutoff == 0:
            return p - 1 / c
        kept = p / (p + self.cutoff)
        return (p * xp.sum(kept, axis=1, keepdims=True) - kept) / c


@value
class NACScorer:
    """Minus the mean coverage of the bins that the features of a row fall into."""

    influences: View
    edges: Const
    coverage: Const
    """(d, e + 1)."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.influences,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._scores, self.influences(chunk))

    def _scores(self, x: Array) -> Array:
        xp = arrays.namespace(x)
        coverage = xp.reshape(self.coverage.like(x), (-1,))
        found = xp.reshape(bins_of(x, self.edges.like(x)), (-1,))
        return -xp.mean(xp.reshape(xp.take(coverage, found), x.shape), axis=1)
