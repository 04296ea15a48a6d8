"""What figures show of scores: ROC and precision-recall curves, and histograms with shared bins.

All are exact counts from the ranks. Thinning a curve leaves points out and moves none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

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

TAIL = 0.005
"""Share of the finite rows of all sets beyond either quantile that histogram bins start from."""

SMALL_TAIL = 0.1
"""Largest share that rounding up to whole rows may make of ``TAIL``: ten rows can lose one."""

NEAR = 0.5
"""Scores beyond those quantiles by this much of the distance between them still get bins."""

LOG_SPREAD = 100.0
"""Ratio of the quantiles from which positive scores get a log scale.

Beyond it, 60 equal bins put every score below a sixtieth of the highest into the first.
"""

LARGEST = 1e300
"""Magnitude at which the bins end: arithmetic on their edges must not overflow."""
LOG_DECADES = 30
"""Most decades of bins below the upper quantile: two of 60 bins for each.

A saturated softmax leaves scores down to 1e-300, too far apart to draw.
"""


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
    scale: Literal["log", "linear"]
    """Bins of equal ratio, or of equal width."""
    beyond: dict[str, tuple[int, int]]
    """Rows of each set below the first and above the last edge, counted in the end bins."""


def roc_curve(ranks: Ranks, max_points: int = 500) -> ROCCurve:
    """Return the ROC curve, at most ``max_points`` (>= 3) of its points.

    Both ends and the first point with a true positive rate >= 95 % are always among them.
    """
    hits, misses = from_the_top(ranks)
    if missing_side(ranks):
        return ROCCurve(np.zeros(0), np.zeros(0))
    tpr, fpr = (np.append(0, np.cumsum(side)) / side.sum() for side in (hits, misses))
    kept = thinned(fpr, tpr, 1 + operating_point(hits, MARKED_TPR), max_points)
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
    kept = thinned(recall, precision, operating_point(hits, MARKED_TPR), max_points)
    return PrecisionRecallCurve(recall[kept], precision[kept])


def histogram(sets: Mapping[str, Ranks], bins: int = 60) -> Histogram:
    """Return histograms of the scores of several sets over shared ``bins`` that show the bulk.

    The bins are geometric where no score is negative or zero and the scores spread widely, else
    equal. They reach as far as scores lie near the bulk of all sets together; scores beyond, and
    infinite ones, count in the end bins. Where all scores are equal the bins are one unit, or as
    much as float64 can tell apart, wide in all.
    """
    occupied = {name: _occupied(ranks) for name, ranks in sets.items()}
    scores, rows = _pooled(list(occupied.values()))
    edges = _geometric(scores, rows, bins)
    scale: Literal["log", "linear"] = "linear" if edges is None else "log"
    if edges is None:
        edges = _even(*_range(scores, rows), bins)
    return Histogram(
        edges,
        {name: _binned(*held, edges) for name, held in occupied.items()},
        scale,
        {name: _beyond(*held, edges) for name, held in occupied.items()},
    )


def one_side(ranks: Ranks, side: str) -> Ranks:
    """Return the ranks of the ``ood`` or of the ``id`` rows alone."""
    if side not in SUFFIXES:
        raise ConfigError(f"side: {side!r} is unknown; choose {' or '.join(SUFFIXES)}")
    none = np.zeros_like(arrays.to_host(ranks.negatives))
    return ranks._replace(negatives=none) if side == "ood" else ranks._replace(positives=none)


def thinned(x: Floats, y: Floats, marked: int, max_points: int) -> Any:
    """Return which points of a curve are kept: its ends, ``marked``, and its corners.

    Some are at even distances along the curve; between two of these it is the one farthest from the
    straight line, where that is far.
    """
    if max_points < 3:
        raise ConfigError(f"max_points: a curve keeps at least 3 points, got {max_points}")
    if len(x) <= max_points:
        return slice(None)
    left = max_points - 3
    length = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    even = np.searchsorted(length, np.linspace(0, length[-1], left // 2 + 2)[1:-1])
    kept = np.unique(np.concatenate([even, [0, marked, len(x) - 1]]))
    corners = [_corner(x, y, *ends) for ends in pairwise(kept.tolist())]
    farthest = sorted(corners, reverse=True)[: max_points - len(kept)]
    return np.unique([*kept.tolist(), *(index for _, index in farthest)])


def _corner(x: Floats, y: Floats, start: int, stop: int) -> tuple[float, int]:
    """Return the point farthest from the line between two others, and its distance."""
    across, up = x[stop] - x[start], y[stop] - y[start]
    part = slice(start, stop + 1)
    off = np.abs(across * (y[part] - y[start]) - up * (x[part] - x[start]))
    place = int(np.argmax(off))
    return float(off[place]) / max(math.hypot(across, up), 1e-300), start + place


def _occupied(ranks: Ranks) -> tuple[Floats, Counts]:
    """Return the scores that some row has, ascending, and their rows."""
    rows = arrays.to_host(ranks.negatives) + arrays.to_host(ranks.positives)
    return arrays.to_host(ranks.values)[rows > 0], rows[rows > 0]


def _pooled(held: Sequence[tuple[Floats, Counts]]) -> tuple[Floats, Counts]:
    """Return the scores of all sets, ascending, and their rows."""
    scores = np.concatenate([np.zeros(0), *(scores for scores, _ in held)])
    rows = np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in held)])
    order = np.argsort(scores, kind="stable")
    return scores[order], rows[order]


def _bulk(scores: Floats, rows: Counts) -> tuple[float, float]:
    """Return the scores with ``TAIL`` of the rows below and above, of at least one score."""
    below = np.cumsum(rows)
    total = int(below[-1])
    left_out = min(math.ceil(TAIL * total), int(SMALL_TAIL * total))
    low = np.searchsorted(below, left_out, side="right")
    high = np.searchsorted(below, total - left_out, side="left")
    return float(scores[low]), float(scores[high])


def _range(scores: Floats, rows: Counts) -> tuple[float, float]:
    """Return the outermost finite scores near the bulk; of no finite score, zero."""
    finite = np.isfinite(scores)
    scores, rows = scores[finite], rows[finite]
    if not len(scores):
        return 0.0, 0.0
    scores = scores.clip(-LARGEST, LARGEST)
    low, high = _bulk(scores, rows)
    if low == high:  # nearly all scores are equal, and no bins could show more of them
        return float(scores[0]), float(scores[-1])
    reach = NEAR * high - NEAR * low
    near = scores[(scores >= low - reach) & (scores <= high + reach)]
    return float(near[0]), float(near[-1])


def _geometric(scores: Floats, rows: Counts, bins: int) -> Floats | None:
    """Return edges of equal ratio, or None where scores are not positive or close together."""
    finite = np.isfinite(scores)
    if not finite.any() or scores[0] <= 0:
        return None
    smallest = float(np.finfo(np.float64).smallest_normal)  # ratios below it are coarse
    low, high = (max(score, smallest) for score in _bulk(scores[finite], rows[finite]))
    if high / LOG_SPREAD <= low:
        return None
    floor = max(math.log10(high) - LOG_DECADES, math.log10(smallest))
    first, last = _range(np.log10(scores).clip(min=floor), rows)
    # From the scores themselves where they are the ends: rounding must put none of them beyond.
    within = scores[finite & (np.log10(scores) >= first) & (np.log10(scores) <= last)]
    low = float(within[0]) if first > floor else 10.0**floor
    share = np.arange(bins + 1) / bins
    edges: Floats = low ** (1 - share) * float(within[-1]) ** share
    return edges


def _even(low: float, high: float, bins: int) -> Floats:
    """Return edges of equal width over a range, widened where float64 could not part them."""
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


def _beyond(scores: Floats, rows: Counts, edges: Floats) -> tuple[int, int]:
    return int(rows[scores < edges[0]].sum()), int(rows[scores > edges[-1]].sum())
