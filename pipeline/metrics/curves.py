"""What figures show of scores: ROC and precision-recall curves, and histograms with shared bins.

All are exact counts from the ranks. Thinning a curve leaves points out and moves none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.errors import ConfigError
from pipeline.metrics.ranking import SUFFIXES, from_the_top, missing_side, operating_point
from pipeline.statistics import Ranks

__all__ = [
    "Histogram",
    "PrecisionRecallCurve",
    "ROCCurve",
    "histogram",
    "one_side",
    "precision_recall_curve",
    "roc_curve",
]

Floats = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]

MARKED_TPR = 0.95
"""The true positive rate whose point every curve keeps."""


class ROCCurve(NamedTuple):
    """Points from (0, 0) to (1, 1), OOD positive; empty where one side has no row."""

    fpr: Floats
    tpr: Floats


class PrecisionRecallCurve(NamedTuple):
    """Steps by rising recall; ``precision[i]`` holds over recall from i-1 to i.

    Empty where one side has no row.
    """

    recall: Floats
    precision: Floats


class Histogram(NamedTuple):
    """Counts of several sets over the same bins, [low, high) but the last, which is closed."""

    edges: Floats
    """(b + 1,), ascending and finite."""
    counts: dict[str, Counts]
    """(b,) for each set; together all of its rows."""


def roc_curve(ranks: Ranks, max_points: int = 500) -> ROCCurve:
    """Return the ROC curve, at most ``max_points`` (>= 3) of its points.

    Both ends and the first point with a true positive rate >= 95 % are always among them.
    """
    hits, misses = from_the_top(ranks)
    if missing_side(ranks):
        return ROCCurve(np.zeros(0), np.zeros(0))
    tpr, fpr = (np.append(0, np.cumsum(side)) / side.sum() for side in (hits, misses))
    kept = _thinned(tpr + fpr, 1 + operating_point(hits, MARKED_TPR), max_points)
    return ROCCurve(fpr[kept], tpr[kept])


def precision_recall_curve(
    ranks: Ranks, positive: str = "ood", max_points: int = 500
) -> PrecisionRecallCurve:
    """Return the precision-recall curve, at most ``max_points`` (>= 3) of its points.

    The first and the last threshold and the first with recall >= 95 % are always among them.
    """
    hits, misses = from_the_top(ranks, positive)
    if missing_side(ranks):
        return PrecisionRecallCurve(np.zeros(0), np.zeros(0))
    found = np.cumsum(hits)
    recall, precision = found / found[-1], found / (found + np.cumsum(misses))
    length = np.append(0.0, np.cumsum(np.abs(np.diff(recall)) + np.abs(np.diff(precision))))
    kept = _thinned(length, operating_point(hits, MARKED_TPR), max_points)
    return PrecisionRecallCurve(recall[kept], precision[kept])


def histogram(sets: Mapping[str, Ranks], bins: int = 60) -> Histogram:
    """Return histograms of the scores of several sets over ``bins`` equal bins.

    The bins span the finite scores of all sets; infinite scores count in the end bins. Where all
    scores are equal the bins are one unit, or as much as float64 can tell apart, wide in all.
    """
    occupied = {name: _occupied(ranks) for name, ranks in sets.items()}
    edges = _edges([scores for scores, _ in occupied.values()], bins)
    return Histogram(edges, {name: _binned(*held, edges) for name, held in occupied.items()})


def one_side(ranks: Ranks, side: str) -> Ranks:
    """Return the ranks of the ``ood`` or of the ``id`` rows alone."""
    if side not in SUFFIXES:
        raise ConfigError(f"side: {side!r} is unknown; choose {' or '.join(SUFFIXES)}")
    none = np.zeros_like(arrays.to_host(ranks.negatives))
    return ranks._replace(negatives=none) if side == "ood" else ranks._replace(positives=none)


def _thinned(position: Floats, marked: int, max_points: int) -> Any:
    """Return the indices of points at even distances along a curve, its ends and ``marked``."""
    if max_points < 3:
        raise ConfigError(f"max_points: a curve keeps at least 3 points, got {max_points}")
    if len(position) <= max_points:
        return slice(None)
    even = np.linspace(position[0], position[-1], max_points - 1)
    nearest = np.searchsorted(position, even).clip(max=len(position) - 1)
    return np.unique(np.concatenate([nearest, [0, marked, len(position) - 1]]))


def _occupied(ranks: Ranks) -> tuple[Floats, Counts]:
    """Return the scores that some row has, ascending, and their rows."""
    rows = arrays.to_host(ranks.negatives) + arrays.to_host(ranks.positives)
    return arrays.to_host(ranks.values)[rows > 0], rows[rows > 0]


def _edges(scores: Sequence[Floats], bins: int) -> Floats:
    finite = np.concatenate([np.zeros(0), *scores])
    finite = finite[np.isfinite(finite)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    centre = low / 2 + high / 2
    # Neighbouring edges must differ, also where all scores lie a few units in the last place apart.
    least = 2 * bins * float(np.spacing(max(abs(low), abs(high))))
    if high / 2 - low / 2 < least:
        low, high = centre - least, centre + least
    share = np.arange(bins + 1) / bins
    return low * (1 - share) + high * share


def _binned(scores: Floats, rows: Counts, edges: Floats) -> Counts:
    inner = np.searchsorted(scores, edges[1:-1], side="left")
    below = np.append(0, np.cumsum(rows))
    counts: Counts = np.diff(below[np.concatenate([[0], inner, [len(scores)]])])
    return counts
