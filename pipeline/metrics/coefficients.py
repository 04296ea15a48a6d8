"""Numbers of the whole matrix from its margins: accuracies, MCC, kappa, generalised Dice.

Each is exact, in whole numbers of any size, and rounded to float64 once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.metrics.estimates import (
    GUARD_BITS,
    added,
    dot,
    entries,
    quotient,
    root_quotient,
    scaled_sum,
    undefined,
    whole_numbers,
)
from pipeline.metrics.ratios import NO_ROWS, Cells, cells
from pipeline.procedure import Estimate
from pipeline.statistics import LabelCounts
from pipeline.statistics.image_means import DICE_WEIGHTINGS

__all__ = [
    "accuracy",
    "balanced_accuracy",
    "generalised_dice",
    "kappa",
    "kappa_of",
    "mcc",
    "mcc_of",
]

KAPPA_WEIGHTINGS = ("none", "linear", "quadratic")
ONE_CLASS = "all labels, or all predictions, are of one class"


def accuracy(counts: Any) -> Estimate:
    """Return the share of elements predicted right, sum of tp / elements."""
    found = _classes(counts)
    return quotient(added(found.tp), added(found.t), NO_ROWS)


def balanced_accuracy(counts: Any, *, adjusted: bool = False) -> Estimate:
    """Return the mean recall of the classes that are the label of some element.

    ``adjusted`` for chance: (b - 1/c) / (1 - 1/c) with c such classes; undefined for one.
    """
    found = _classes(counts)
    labelled = found.t != 0
    present = int(np.count_nonzero(labelled))
    recalls = scaled_sum(found.tp[labelled], found.t[labelled])
    if not adjusted or not present:
        return quotient(recalls, present << GUARD_BITS, NO_ROWS)
    chance = "all labels are of one class, so that chance is always right"
    return quotient(recalls - (1 << GUARD_BITS), present - 1 << GUARD_BITS, chance)


def mcc(counts: Any) -> Estimate:
    """Return the Matthews correlation coefficient of k classes, correctly rounded.

    (n sum tp - sum t p) / sqrt((n² - sum p²) (n² - sum t²)), in whole numbers of any size.
    Undefined where all labels or all predictions are of one class.

    Reference: Gorodkin 2004, "Comparing two K-category assignments by a K-category correlation
    coefficient". Differs from torchmetrics, which gives numbers where there is none.
    """
    return mcc_of(_classes(counts))


def mcc_of(found: Cells) -> Estimate:
    """Return :func:`mcc` of all classes."""
    n, predicted = added(found.t), added(found.p) + found.undecided
    spread_t = n * n - dot(found.t, found.t)
    spread_p = predicted * predicted - dot(found.p, found.p) - found.undecided**2
    covariance = predicted * added(found.tp) - dot(found.t, found.p)
    return root_quotient(covariance, spread_p, spread_t, ONE_CLASS if n else NO_ROWS)


def kappa(counts: Any, distances: Any = None, weighting: str = "none") -> Estimate:
    """Return Cohen's kappa, exactly: 1 - n sum w_ij K_ij / sum w_ij t_i p_j.

    ``weighting``: w_ij is [i != j] for none, |i - j| for linear, (i - j)² for quadratic; these two
    need ``distances`` (k,), the elements with each |i - j|. Undefined where nothing can differ.

    Reference: Cohen 1960, "A coefficient of agreement for nominal scales"; 1968, "Weighted kappa".
    """
    check_weighting(weighting, KAPPA_WEIGHTINGS)
    if weighting != "none" and distances is None:
        raise ConfigError(f"weighting: {weighting} needs the counts of distances between classes")
    return kappa_of(_classes(counts), distances, weighting)


def kappa_of(found: Cells, distances: Any = None, weighting: str = "none") -> Estimate:
    """Return :func:`kappa` of all classes."""
    n = added(found.t)
    reason = ONE_CLASS if n else NO_ROWS
    if weighting == "none":
        by_chance = dot(found.t, found.p)
        return quotient(n * added(found.tp) - by_chance, n * n - by_chance, reason)
    (apart,) = whole_numbers(distances)
    steps = np.arange(len(apart), dtype=np.int64)
    observed = dot(steps if weighting == "linear" else steps * steps, apart)
    # Shares of their own totals: sums of weights are whole numbers of different units.
    observed, expected = (observed * n * added(found.p), _expected(found, weighting) * added(apart))
    return quotient(expected - observed, expected, reason)


def _expected(found: Cells, weighting: str) -> int:
    """Return the sum of w_ij t_i p_j over all pairs of classes."""
    if weighting == "linear":  # |i - j| counts the steps from one class to the next between them
        t, p = np.cumsum(found.t), np.cumsum(found.p)
        return dot(t, p[-1] - p) + dot(p, t[-1] - t)
    steps = np.arange(len(found.t), dtype=np.int64)
    squares = steps * steps
    return (
        dot(squares, found.t) * added(found.p)
        - 2 * dot(steps, found.t) * dot(steps, found.p)
        + dot(squares, found.p) * added(found.t)
    )


def generalised_dice(
    counts: Any, weighting: str = "square", ignore: Iterable[int] = ()
) -> Estimate:
    """Return the generalised Dice score of pooled counts: 2 sum w tp / sum w (t + p).

    ``weighting``: w is 1 / t² for square, 1 / t for simple, 1 for uniform. A class without elements
    has the weight of the rarest class that has some, so that predicting it lowers the score.

    Reference: Sudre et al. 2017, "Generalised Dice overlap as a deep learning loss function for
    highly unbalanced segmentations", arXiv 1707.03237. Differs from torchmetrics, where an absent
    class has the largest weight among the images of its batch, whatever the batches are.
    """
    check_weighting(weighting, DICE_WEIGHTINGS)
    found = cells(counts, ignore)
    present = found.t[found.t != 0]
    if not len(present):
        return undefined(NO_ROWS if not found.rows else "no class that counts has rows")
    power = 2 - DICE_WEIGHTINGS.index(weighting)
    size = np.where(found.t != 0, found.t, present.min())
    places = GUARD_BITS + power * int(size.max()).bit_length()
    sizes, place = np.unique(size, return_inverse=True)
    both = found.combined((0, 1, 1, 0))
    right, some = np.zeros((2, len(sizes)), both.dtype)
    np.add.at(right, place, found.tp)
    np.add.at(some, place, both)
    numerator = denominator = 0
    for tp, either, t in entries(right, some, sizes):
        numerator += (2 * tp << places) // t**power
        denominator += (either << places) // t**power
    return quotient(numerator, denominator, NO_ROWS)


def check_weighting(given: str, known: Sequence[str]) -> None:
    """Raise :class:`ConfigError` for a weighting that is not known."""
    if given not in known:
        raise ConfigError(f"weighting: {given!r} is unknown; choose {', '.join(known)}")


def _classes(counts: Any) -> Cells:
    if isinstance(counts, LabelCounts):
        raise ConfigError(
            "counts of labels that a row may have several of are no matrix of classes; use a "
            "metric of task='multilabel', or class_metric"
        )
    return cells(counts)
