"""Few bins in place of many: neighbours together, about as many rows in each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pipeline.metrics.tallies import Totals
from pipeline.statistics import Bins

__all__ = ["Pieces", "grouped"]

Pieces = Callable[[], Iterable[Bins]]
"""Gives the bins in ascending order, as often as it is called."""


def grouped(totals: Totals, pieces: Pieces, most: int) -> tuple[Bins, bool]:
    """Return all bins where there are at most so many, else groups of them; and whether it is all.

    What is known below the least key of a bin, or of a group, is known exactly.
    """
    none = np.zeros(0, np.int64)
    if sum(len(bins.least) for bins in pieces()) <= most:
        return Bins(*map(np.concatenate, zip((none,) * 4, *pieces(), strict=True))), True
    counts: Any = np.zeros((2, most), np.int64)
    least, greatest = np.zeros((2, most), np.int64)
    done, size = 0, (totals.negatives + totals.positives) // most + 1
    for bins in pieces():
        rows = bins.negatives + bins.positives
        upto = done + np.cumsum(rows)
        group = (upto - rows) // size
        for side, column in zip(counts, bins[:2], strict=True):
            np.add.at(side, group, column)
        least[group[::-1]], greatest[group] = bins.least[::-1], bins.greatest
        done = int(upto[-1]) if len(upto) else done
    filled = counts.sum(axis=0) > 0
    negatives, positives = counts[:, filled]
    return Bins(negatives, positives, least[filled], greatest[filled]), False
