"""Adjacent bins of scores, what is known of each, and edges that make new ones.

Edges are int64 keys of float64 numbers, in their order: no range of scores is assumed. A bin holds
the scores from its edge to below the next one.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.content import Const
from pipeline.statistics.value_counts import BEYOND, LEAST, values_of

STEPS = 512
"""Bins of a power of two."""
LARGEST_EXPONENT = 24

Host = np.ndarray[Any, Any]


class Bins(NamedTuple):
    """Counts (b,) int64 of adjacent bins, in the order of their scores."""

    negatives: Array
    positives: Array
    least: Array
    """Key that no score of the bin is below: equal to the greatest where all its scores are."""
    greatest: Array
    """Key that no score of the bin is above."""


def in_bins(scores: Array, edges: Const) -> tuple[Array, Array, Array]:
    """Return the scores (n,) in order, and where in them each bin begins and ends: (b,) int64."""
    xp = arrays.namespace(scores)
    ordered = xp.sort(scores, stable=False)
    numbers = arrays.like(values_of(edges.array), scores)
    cuts = xp.searchsorted(xp.astype(ordered, xp.float64, copy=False), numbers)
    cuts = xp.astype(cuts, xp.int64)
    start, stop = xp.zeros_like(cuts[:1]), xp.full_like(cuts[:1], scores.shape[0])
    return ordered, xp.concat((start, cuts)), xp.concat((cuts, stop))


@functools.cache
def score_edges(steps: int = STEPS) -> Const:
    """Return edges that suit most scores before any is known: about 140 ``steps`` of them.

    ``steps`` bins, a power of two, for each factor of two in size from 2^-24 to 2^24, of either
    sign; and as many for each factor of two in the distance from 1 and -1, where probabilities
    crowd. Scores beyond have bins of their own, infinitely wide.
    """
    within = 1 + np.arange(steps) / steps
    powers = 2.0 ** np.arange(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    sizes = np.append(np.outer(powers, within), 2.0**LARGEST_EXPONENT)
    to_one = 1 - np.outer(2.0 ** np.arange(-LARGEST_EXPONENT, -1), within)
    positive = np.unique(np.concatenate((sizes, to_one.ravel())))
    return Const(arrays.sort_keys(np.concatenate((-positive[::-1], [0.0], positive))))


def ends_of(edges: Const) -> tuple[Host, Host]:
    """Return the least and the greatest key that each bin between edges may hold: (b,) int64."""
    return np.append(LEAST, edges.array), np.append(edges.array, BEYOND) - 1


def refined_edges(coarse: Bins, bins: int) -> Const:
    """Return edges that cut coarse bins by the rows in them, into about ``bins`` altogether.

    A bin with more rows than that leaves for each is cut into equal parts, as many as it has rows
    for; neighbours with fewer share one.
    """
    rows = arrays.to_host(coarse.negatives) + arrays.to_host(coarse.positives)
    filled = np.flatnonzero(rows)
    if not len(filled):
        return Const(np.zeros(1, np.int64))
    rows, least = rows[filled], arrays.to_host(coarse.least)[filled]
    share = rows * (bins / int(rows.sum()))
    heavy = share >= 1
    begins = np.append(True, np.diff(np.floor(np.cumsum(share))) > 0) | heavy
    begins[1:] |= heavy[:-1]
    # Modulo 2^64: a bin may hold numbers of both signs, and be wider than int64.
    span = (arrays.to_host(coarse.greatest)[filled] - least).view(np.uint64) + np.uint64(1)
    parts = np.minimum(span, np.maximum(1, np.ceil(share)).astype(np.uint64))[begins]
    step, rest = np.divmod(span[begins], parts)
    each = parts.astype(np.int64)
    number = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
    number = number.view(np.uint64)
    step, rest = np.repeat(step, each), np.repeat(rest, each)
    offset = step * number + np.minimum(number, rest)
    return Const(np.repeat(least[begins], each) + offset.view(np.int64))
