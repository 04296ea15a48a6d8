"""ROC and precision-recall curves as metrics: few exact points, and a band where bins are open.

Whatever the number of scores, every point of these curves is one of the exact ones: at the edge of
a bin all is known. Between two edges the curve is somewhere in a box, and the boxes are the band.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY
from typing import NamedTuple, final

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.curves import (
    MARKED_TPR,
    Floats,
    PrecisionRecallCurve,
    ROCCurve,
    thinned,
)
from pipeline.metrics.grouping import grouped
from pipeline.metrics.of_scores import BINARY, OOD, OfScores
from pipeline.metrics.ranked import Binned, found_of
from pipeline.metrics.ranking import operating_point
from pipeline.metrics.tallies import Counts, Running, Totals, filled, known, precision
from pipeline.metrics.thresholds import decimal
from pipeline.procedure import Passes
from pipeline.statistics import Bins, Ordered

__all__ = ["ROC", "Band", "Drawn", "PrecisionRecall"]

LEAST_POINTS, MAX_POINTS = 3, 2000
VERTICES = 2**16
"""Points of a curve that others are left out of."""


Curve = ROCCurve | PrecisionRecallCurve


class Band(NamedTuple):
    """Least and greatest values of a curve at points across, ascending: (m,) each."""

    across: Floats
    lower: Floats
    upper: Floats


class Drawn(NamedTuple):
    """A curve, and what is known of it between its points."""

    curve: Curve
    band: Band | None
    """None where all scores were ranked: points are left out then, but nothing is open."""
    positives: int
    """Rows of the positive class."""
    negatives: int


class Vertices(NamedTuple):
    """Rows found and raised at thresholds, the surest first; (m,) int64 each."""

    found: Counts
    raised: Counts


@value
class CurveOfScores(OfScores):
    """A curve of scores: an abstract base. At most ``max_points``, a corner before a point between.

    Both ends and the first threshold that finds 95 % of the positive rows are always among them.
    """

    _: KW_ONLY
    max_points: int = MAX_POINTS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_points < LEAST_POINTS:
            raise ConfigError(f"max_points: {self.max_points}; a curve keeps at least 3")

    @property
    def tasks(self) -> tuple[str, ...]:
        return OOD, BINARY

    @abstractmethod
    def curve(
        self, at: Vertices, totals: Totals
    ) -> tuple[ROCCurve | PrecisionRecallCurve, Vertices]:
        """Return the curve through some of the vertices, and which."""

    @abstractmethod
    def band(self, at: Vertices, totals: Totals) -> Band:
        """Return between what the curve is, from one vertex to the next."""

    @final
    def passes(self, schema: Schema) -> Passes[Drawn]:
        """Ask for ranks; return the curve and its band."""
        found = yield from found_of(self.source(schema), schema)
        totals = self.totals(*found.rows)
        positives, negatives = totals.positives, totals.negatives
        if self.low:
            positives, negatives = negatives, positives
        own = Totals(negatives, positives, totals.lacks)
        at, exact = _vertices(totals, found, low=self.low)
        curve, kept = self.curve(at, own)
        band = None if exact or totals.lacks else self.band(kept, own)
        return Drawn(curve, band, positives, negatives)


@value
class ROC(CurveOfScores):
    """True against false positive rate: ``roc``, a :class:`Drawn`; see ``roc_curve``."""

    def curve(self, at: Vertices, totals: Totals) -> tuple[ROCCurve, Vertices]:
        if totals.lacks:
            return ROCCurve(np.zeros(0), np.zeros(0)), at
        tpr, fpr = at.found / totals.positives, at.raised / totals.negatives
        marked = operating_point(np.diff(at.found, prepend=0), MARKED_TPR)
        kept = thinned(fpr, tpr, marked, self.max_points)
        return ROCCurve(fpr[kept], tpr[kept]), Vertices(at.found[kept], at.raised[kept])

    def band(self, at: Vertices, totals: Totals) -> Band:
        fpr, tpr = at.raised / totals.negatives, at.found / totals.positives
        return Band(_pairs(fpr[:-1], fpr[1:]), _pairs(tpr[:-1], tpr[:-1]), _pairs(tpr[1:], tpr[1:]))


@value
class PrecisionRecall(CurveOfScores):
    """Precision by recall: ``precision_recall``, a :class:`Drawn`; see ``precision_recall_curve``.

    Between two vertices recall and the rows raised only grow, so precision at a recall is at most
    what it would be with the rows raised at the first, and at least with those at the second.
    """

    def curve(self, at: Vertices, totals: Totals) -> tuple[PrecisionRecallCurve, Vertices]:
        if totals.lacks:
            return PrecisionRecallCurve(np.zeros(0), np.zeros(0)), at
        found, raised = at.found[1:], at.raised[1:]
        recall, share = found / totals.positives, precision(found, raised)
        marked = operating_point(np.diff(at.found), MARKED_TPR)
        kept = thinned(recall, share, marked, self.max_points)
        own = Vertices(np.append(0, found[kept]), np.append(0, raised[kept]))
        return PrecisionRecallCurve(recall[kept], share[kept]), own

    def band(self, at: Vertices, totals: Totals) -> Band:
        first, last = at.found[:-1], at.found[1:]
        recall = _pairs(first, last) / totals.positives
        lower = _pairs(precision(first, at.raised[1:]), precision(last, at.raised[1:]))
        upper = _pairs(precision(first, at.raised[:-1]), precision(last, at.raised[:-1]))
        return Band(recall, lower, upper)


def _pairs(first: Floats | Counts, last: Floats | Counts) -> Floats:
    """Return the entries of two arrays (m,) in turn: (2 m,)."""
    turned: Floats = np.stack((first, last), axis=1).reshape(-1).astype(np.float64)
    return turned


def _vertices(totals: Totals, found: Ordered | Binned, *, low: bool) -> tuple[Vertices, bool]:
    """Return vertices, from none to all rows, and whether the scores between them are ranked."""
    bins, whole = grouped(totals, found.pieces, VERTICES)
    at = _ends(Running(totals), filled(bins), low=low)
    if found.exact and not whole:
        hits = totals.negatives if low else totals.positives
        at = _with(
            at, _first(totals, found.pieces(), math.ceil(decimal(MARKED_TPR) * hits), low=low)
        )
    return at, found.exact or (whole and bool(known(bins).all()))


def _ends(running: Running, bins: Bins, *, low: bool) -> Vertices:
    """Return the vertices at the ends of bins, and the one before all of them."""
    at = running.oriented(bins, low=low)
    order = slice(None) if low else slice(None, None, -1)
    found, raised = (at.found + at.hits)[order], (at.raised + at.misses)[order]
    before = (at.found[order][:1], at.raised[order][:1])
    return Vertices(np.append(before[0], found), np.append(before[1], raised))


def _first(totals: Totals, pieces: Iterable[Bins], needed: int, *, low: bool) -> Vertices:
    """Return the first vertex that finds so many rows."""
    running = Running(totals)
    best = Vertices(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for bins in pieces:
        at = _ends(running, bins, low=low)
        running.passed(bins)
        reached = np.flatnonzero(at.found >= needed)[:1]
        if len(reached) and (not len(best.found) or not low):
            best = Vertices(at.found[reached], at.raised[reached])
        if len(best.found) and low:
            break
    return best


def _with(at: Vertices, more: Vertices) -> Vertices:
    """Return vertices with another one in its place."""
    places = np.searchsorted(at.found + at.raised, more.found + more.raised)
    return Vertices(
        np.insert(at.found, places, more.found), np.insert(at.raised, places, more.raised)
    )
