"""Whether detectors that scored the same rows differ by more than chance.

AUROC by the paired test of DeLong, rates by a paired bootstrap. Both give the estimates of all
detectors and the covariance of their errors; rows of the in-distribution set are shared by all
out-of-distribution sets, so a mean over several sets is tested as exactly as one set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.errors import ConfigError
from pipeline.metrics.ranking import auroc
from pipeline.statistics import Ranks

__all__ = [
    "Difference",
    "Paired",
    "Placements",
    "Replicates",
    "bootstrap_fpr",
    "delong",
    "differences",
    "holm",
    "looked_up",
    "placements",
]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Weights = np.ndarray[Any, np.dtype[np.float32]]
Blocks = Iterable[Floats]
"""Scores of consecutive rows, (rows, D): a column for each detector."""

WEIGHTS_NBYTES = 16 * 2**20
"""Memory for the weights of the replicates that are formed at a time."""
ROUNDING = 1e-12
"""Share of two variances below which the variance of their difference is rounding."""


class Paired(NamedTuple):
    """Estimates of D detectors over the same rows, and the covariance of their errors."""

    values: Floats
    """(D,)."""
    covariance: Floats
    """(D, D)."""


class Difference(NamedTuple):
    """One estimate minus another, with its standard error and two-sided p-value."""

    value: float
    error: float
    p: float


def delong(ranks: Sequence[Sequence[Ranks]], inside: Blocks, outside: Sequence[Blocks]) -> Paired:
    """Return the AUROC of D detectors, averaged over S sets, and its covariance.

    ``ranks[s][r]``: the ranks of detector r over the in-distribution rows and those of set s.
    ``inside`` and ``outside[s]`` yield the scores themselves block by block, columns in the order
    of the detectors; memory does not depend on the rows. The covariance is NaN where a side has
    fewer than two rows.

    The component of an OOD row is the share of ID rows below it, that of an ID row the share of
    OOD rows above it, ties by half; the AUROC is the mean of either. Over several sets the
    components of an ID row are averaged.

    Reference: DeLong, DeLong and Clarke-Pearson 1988, "Comparing the areas under two or more
    correlated receiver operating characteristic curves: a nonparametric approach"; by ranks as in
    Sun and Xu 2014, "Fast implementation of DeLong's algorithm".
    """
    areas = np.array([[auroc(one).value for one in several] for several in ranks])
    values = areas.mean(axis=0)
    covariance = np.zeros((len(values), len(values)))
    for several, blocks, centre in zip(ranks, outside, areas, strict=True):
        below = [placements(one, "id") for one in several]
        components = (looked_up(below, block) for block in blocks)
        covariance += _error_of_mean(components, centre) / len(areas) ** 2
    above = [[placements(one, "ood") for one in several] for several in ranks]
    components = (
        1.0 - np.mean([looked_up(of_set, block) for of_set in above], axis=0) for block in inside
    )
    return Paired(values, covariance + _error_of_mean(components, values))


class Placements(NamedTuple):
    """Distinct scores (m,) in ascending order, and the share of one side below each."""

    scores: Floats
    shares: Floats
    """Rows below the score plus half of those at it, over all rows of the side."""


def placements(ranks: Ranks, side: str) -> Placements:
    """Return where scores lie among the rows of one side: ``id`` or ``ood``."""
    counts = arrays.to_host(ranks.negatives if side == "id" else ranks.positives)
    doubled = 2 * np.cumsum(counts) - counts
    return Placements(arrays.to_host(ranks.values), doubled / (2 * max(1, int(counts.sum()))))


def looked_up(columns: Sequence[Placements], block: Floats) -> Floats:
    """Return the places of scores (rows, D), a column for each detector."""
    found = np.empty(block.shape)
    for r, column in enumerate(columns):
        found[:, r] = column.shares[np.searchsorted(column.scores, block[:, r])]
    return found


def _error_of_mean(components: Blocks, mean: Floats) -> Floats:
    """Return the covariance (D, D) of the mean of components, whose mean (D,) is known."""
    rows, scatter = 0, np.zeros((len(mean), len(mean)))
    for block in components:
        rows += len(block)
        centred = block - mean
        scatter += centred.T @ centred
    return scatter / (rows * (rows - 1)) if rows > 1 else np.full_like(scatter, np.nan)


class Replicates(NamedTuple):
    """A rate of D detectors on S sets, and what it was each time the rows were drawn anew."""

    values: Floats
    """(S, D)."""
    drawn: Floats
    """(S, replicates, D)."""

    def over(self, sets: Sequence[int]) -> Paired:
        """Return the mean over some of the sets, and the covariance of the replicates of it."""
        chosen = list(sets)
        drawn = self.drawn[chosen].mean(axis=0)
        covariance = np.atleast_2d(np.cov(drawn, rowvar=False))
        return Paired(self.values[chosen].mean(axis=0), covariance)


def bootstrap_fpr(
    inside: Floats,
    outside: Iterable[Floats],
    tpr: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> Replicates:
    """Return the FPR at ``tpr`` of D detectors on S sets, and its replicates.

    ``inside`` (n, D) and each of ``outside`` (n_s, D) are scores, OOD positive, thresholds as in
    :func:`~pipeline.metrics.fpr_at_tpr`. In a replicate the rows of each split are drawn anew with
    replacement: the same rows for all detectors, the same in-distribution rows for all sets. The
    result depends on ``seed`` and on nothing else. Memory: 12 bytes for each row and detector, the
    scores of ``inside`` and of one set beside them, and about 16 MiB.

    Reference: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapters 6 and 16.
    """
    if replicates < 2:
        raise ConfigError(f"replicates: {replicates}; expected at least 2, such as 1000")
    known, found = _sorted(inside), [_sorted(scores) for scores in outside]
    values = [_rates(known, s, _ones(known), _ones(s), tpr)[0] for s in found]
    rates = np.empty((len(found), replicates, inside.shape[1]))
    step = max(1, WEIGHTS_NBYTES // (16 * max(len(each.scores) for each in (known, *found))))
    for start in range(0, replicates, step):
        part = range(start, min(start + step, replicates))
        weights = _drawn(seed, 0, part, len(inside))
        for s, scores in enumerate(found):
            drawn = _drawn(seed, s + 1, part, len(scores.scores))
            rates[s, start : part.stop] = _rates(known, scores, weights, drawn, tpr)
    return Replicates(np.array(values), rates)


class Sorted(NamedTuple):
    """Scores (n, D), each column in ascending order, and the rows they come from."""

    scores: Floats
    order: np.ndarray[Any, np.dtype[np.int32]]


def _sorted(scores: Floats) -> Sorted:
    order = np.argsort(scores, axis=0, kind="stable").astype(np.int32)
    return Sorted(np.take_along_axis(scores, order, axis=0), order)


def _ones(scores: Sorted) -> Weights:
    return np.ones((len(scores.scores), 1), np.float32)


def _drawn(seed: int, split: int, replicates: range, rows: int) -> Weights:
    """Return how often each row of a split is drawn in each replicate: (rows, replicates)."""
    drawn = np.empty((rows, len(replicates)), np.float32)
    for place, replicate in enumerate(replicates):  # seeded one by one: batches change nothing
        random = np.random.default_rng((seed, split, replicate))
        drawn[:, place] = np.bincount(random.integers(0, rows, rows), minlength=rows)
    return drawn


def _rates(known: Sorted, found: Sorted, weights: Weights, drawn: Weights, tpr: float) -> Floats:
    """Return the FPR (replicates, D) of weighted rows."""
    thresholds = _thresholds(found, drawn, tpr)
    columns = range(thresholds.shape[1])
    first = np.stack(
        [np.searchsorted(known.scores[:, r], thresholds[:, r]) for r in columns], axis=1
    )
    low, high = first.min(axis=0), first.max(axis=0)
    surely = np.zeros((len(known.scores), len(columns)), np.float32)
    for r in columns:
        surely[known.order[high[r] :, r], r] = 1.0
    above = (weights.T @ surely).astype(np.float64)  # sums of fewer than 2^24 ones: exact
    for r in columns:
        within = _cumulated(weights, known.order[low[r] : high[r], r])
        above[:, r] += within[-1] - np.take_along_axis(within, first[None, :, r] - low[r], 0)[0]
    return above / len(known.scores)


def _thresholds(found: Sorted, drawn: Weights, tpr: float) -> Floats:
    """Return the first thresholds (replicates, D) at or above which a share ``tpr`` lies."""
    rows, detectors = found.scores.shape
    missed = rows - math.ceil(Fraction(str(tpr)) * rows)
    likely = min(rows, missed + 8 * math.isqrt(missed) + 16)
    thresholds = np.empty((drawn.shape[1], detectors))
    for r in range(detectors):
        ascending = _cumulated(drawn, found.order[:likely, r])[1:]
        if (ascending[-1] <= missed).any():
            ascending = _cumulated(drawn, found.order[:, r])[1:]
        thresholds[:, r] = found.scores[np.argmax(ascending > missed, axis=0), r]
    return thresholds


def _cumulated(weights: Weights, order: np.ndarray[Any, Any]) -> Weights:
    """Return the sums of the first 0, 1, ... of the given rows: (rows + 1, replicates)."""
    sums = np.zeros((len(order) + 1, weights.shape[1]), weights.dtype)
    np.cumsum(weights[order], axis=0, out=sums[1:])
    return sums


def differences(paired: Paired, reference: int) -> list[Difference]:
    """Return each estimate minus that of ``reference``; p from the normal distribution.

    Where neither estimate has any error, a difference of zero has p = 1 and any other p = 0.
    """
    found = []
    for r, value in enumerate(paired.values):
        own = paired.covariance[r, r] + paired.covariance[reference, reference]
        variance = own - 2 * paired.covariance[r, reference]
        difference = float(value - paired.values[reference])
        if math.isnan(variance):
            found.append(Difference(difference, math.nan, math.nan))
            continue
        error = math.sqrt(variance) if variance > ROUNDING * own else 0.0
        if error:
            p = math.erfc(abs(difference) / error / math.sqrt(2))
        else:
            p = float(abs(difference) < ROUNDING)
        found.append(Difference(difference, error, p))
    return found


def holm(p: Sequence[float], level: float = 0.05) -> list[bool]:
    """Return which hypotheses are rejected so that any false rejection has at most ``level``.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    rejected = [False] * len(p)
    for place, index in enumerate(sorted(range(len(p)), key=lambda i: (math.isnan(p[i]), p[i]))):
        if not p[index] <= level / (len(p) - place):
            break
        rejected[index] = True
    return rejected
