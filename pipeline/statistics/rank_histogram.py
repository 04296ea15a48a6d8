"""Scores counted in bins: rank metrics with bounds, in memory that no number of rows changes."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.statistics.between_edges import BetweenEdges
from pipeline.statistics.bins import Bins, in_bins
from pipeline.statistics.scored import check_shapes
from pipeline.statistics.sides import Pending
from pipeline.views import Every, IsOOD, View

_NONE = np.iinfo(np.int64).max
"""Least key of an empty bin; its greatest is the negative of that."""


class OpenBins(NamedTuple):
    """State: bins, and scores that wait to be counted while a block is open."""

    bins: Bins
    pending: Pending = Pending()


@value
class RankHistogram(BetweenEdges):
    """Counts of negatives and positives between ``edges``, for the scores of a view () or (...).

    Edges (b - 1,) are ascending int64 keys of float64 numbers; see :mod:`pipeline.statistics.bins`.
    Least and greatest key are those that occur. Raises :class:`DataError` for a NaN score. Result:
    :class:`Bins`.
    """

    of: View
    edges: Const
    positive: View = IsOOD()
    where: View = Every()
    version: ClassVar[int] = 2
    bin_nbytes: ClassVar[int] = 32
    counting_nbytes: ClassVar[int] = 200

    def empty(self, schema: Schema) -> OpenBins:
        check_shapes(self.of, self.positive, schema)
        negatives, positives = (np.zeros(self.bins, np.int64) for _ in range(2))
        least, greatest = np.full(self.bins, _NONE), np.full(self.bins, -_NONE)
        return OpenBins(Bins(negatives, positives, least, greatest))

    def merge(self, a: OpenBins, b: OpenBins) -> OpenBins:
        return OpenBins(_added(a.bins, b.bins))

    def finalize(self, state: OpenBins) -> Bins:
        return Bins(*(arrays.to_host(x) for x in state.bins))

    def settled(self, state: OpenBins) -> OpenBins:
        bins = state.bins
        for positive, several in enumerate(state.pending):
            if several:
                scores = arrays.namespace(*several).concat(several)
                bins = _added(bins, self._counted(scores, bool(positive)))
        return OpenBins(bins)

    def _counted(self, scores: Array, positive: bool) -> Bins:
        ordered, first, stop = in_bins(scores, self.edges)
        xp = arrays.namespace(ordered)
        rows = stop - first
        nothing, none = xp.zeros_like(rows), xp.full_like(rows, _NONE)
        least, greatest = none, -none
        if ordered.shape[0]:
            filled = rows > 0
            least = xp.where(filled, _keys_at(ordered, xp.where(filled, first, nothing)), least)
            last = xp.where(filled, stop - 1, nothing)
            greatest = xp.where(filled, _keys_at(ordered, last), greatest)
        counts = (nothing, rows) if positive else (rows, nothing)
        return Bins(*counts, least, greatest)


def _keys_at(ordered: Array, places: Array) -> Array:
    return arrays.sort_keys(arrays.namespace(ordered).take(ordered, places))


def _added(a: Bins, b: Bins) -> Bins:
    xp = arrays.namespace(a.least, b.least)
    return Bins(
        a.negatives + b.negatives,
        a.positives + b.positives,
        xp.minimum(a.least, b.least),
        xp.maximum(a.greatest, b.greatest),
    )
