"""Scores counted between edges that are declared: states of fixed shape, merged by adding."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.statistics.between_edges import BetweenEdges
from pipeline.statistics.bins import Bins, ends_of, in_bins
from pipeline.statistics.scored import check_shapes
from pipeline.statistics.sides import Pending
from pipeline.views import Every, IsOOD, View


class EdgeCounts(NamedTuple):
    """State: scores of either class in each bin, twice (b,) int64.

    Some wait to be counted while a block is open.
    """

    negatives: Array
    positives: Array
    pending: Pending = Pending()


@value
class ScoreCounts(BetweenEdges):
    """Counts of negatives and positives between ``edges``, for the scores of a view () or (...).

    As :class:`~pipeline.statistics.RankHistogram`, but of a bin no more is known than its edges:
    the sum of two states is their merge, so that processes share them in one all-reduce. Result:
    :class:`Bins`, with the keys that each bin may hold.
    """

    of: View
    edges: Const
    positive: View = IsOOD()
    where: View = Every()
    version: ClassVar[int] = 1
    additive: ClassVar[bool] = True
    bin_nbytes: ClassVar[int] = 16
    counting_nbytes: ClassVar[int] = 48

    def empty(self, schema: Schema) -> EdgeCounts:
        check_shapes(self.of, self.positive, schema)
        return EdgeCounts(np.zeros(self.bins, np.int64), np.zeros(self.bins, np.int64))

    def merge(self, a: EdgeCounts, b: EdgeCounts) -> EdgeCounts:
        return EdgeCounts(a.negatives + b.negatives, a.positives + b.positives)

    def finalize(self, state: EdgeCounts) -> Bins:
        negatives, positives = (arrays.to_host(x) for x in (state.negatives, state.positives))
        return Bins(negatives, positives, *ends_of(self.edges))

    def settled(self, state: EdgeCounts) -> EdgeCounts:
        pairs = zip((state.negatives, state.positives), state.pending, strict=True)
        return EdgeCounts(*(self._with(counts, waiting) for counts, waiting in pairs))

    def _with(self, counts: Array, waiting: tuple[Array, ...]) -> Array:
        if not waiting:
            return counts
        _, first, stop = in_bins(arrays.namespace(*waiting).concat(waiting), self.edges)
        return arrays.add_into(counts, stop - first)
