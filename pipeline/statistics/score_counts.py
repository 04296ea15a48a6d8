"""Scores counted between edges that are declared: states of fixed shape, merged by adding."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.statistics.base import fields_of
from pipeline.statistics.bins import Bins, ends_of, in_bins
from pipeline.statistics.scored import both_sides, check_shapes
from pipeline.statistics.sides import Pending, most_waiting_nbytes, waiting_nbytes
from pipeline.views import Every, IsOOD, View

BIN_NBYTES = 16


class EdgeCounts(NamedTuple):
    """State: scores of either class in each bin, twice (b,) int64.

    Some wait to be counted while a block is open.
    """

    negatives: Array
    positives: Array
    pending: Pending = Pending()


@value
class ScoreCounts:
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

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.positive, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def _bins(self) -> int:
        return int(self.edges.shape[0]) + 1

    def empty(self, schema: Schema) -> EdgeCounts:
        check_shapes(self.of, self.positive, schema)
        return EdgeCounts(np.zeros(self._bins, np.int64), np.zeros(self._bins, np.int64))

    def absorb(self, state: EdgeCounts, chunk: Chunk) -> EdgeCounts:
        pending = state.pending.plus(*both_sides(chunk, self.where, self.of, self.positive))
        state = state._replace(pending=pending)
        full = pending.nbytes >= most_waiting_nbytes(BIN_NBYTES * self._bins)
        return self._settled(state) if full else state

    def close(self, state: EdgeCounts) -> EdgeCounts:
        return self._settled(state)

    def merge(self, a: EdgeCounts, b: EdgeCounts) -> EdgeCounts:
        return EdgeCounts(a.negatives + b.negatives, a.positives + b.positives)

    def finalize(self, state: EdgeCounts) -> Bins:
        negatives, positives = (arrays.to_host(x) for x in (state.negatives, state.positives))
        return Bins(negatives, positives, *ends_of(self.edges))

    def state_nbytes(self, schema: Schema) -> int:
        return BIN_NBYTES * self._bins + self._waiting_nbytes(schema)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        each = int(np.prod(self.of.shape(schema), dtype=np.int64))
        return 60 * each * rows + 6 * self._waiting_nbytes(schema) + 48 * self._bins

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results

    def _waiting_nbytes(self, schema: Schema) -> int:
        each = int(np.prod(self.of.shape(schema), dtype=np.int64))
        return waiting_nbytes(BIN_NBYTES * self._bins, each * schema.rows)

    def _settled(self, state: EdgeCounts) -> EdgeCounts:
        pairs = zip((state.negatives, state.positives), state.pending, strict=True)
        return EdgeCounts(*(self._with(counts, waiting) for counts, waiting in pairs))

    def _with(self, counts: Array, waiting: tuple[Array, ...]) -> Array:
        if not waiting:
            return counts
        _, first, stop = in_bins(arrays.namespace(*waiting).concat(waiting), self.edges)
        return arrays.add_into(counts, stop - first)
