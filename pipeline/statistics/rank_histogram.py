"""Scores counted in bins: rank metrics with bounds, in memory that no number of rows changes."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of, kept, refuse_nan
from pipeline.views import Every, IsOOD, View

_NONE = np.iinfo(np.int64).max
"""Least key of an empty bin; its greatest is the negative of that."""
_COARSE_BITS = 48


class Bins(NamedTuple):
    """State and result: counts (b,) int64 of adjacent bins, in the order of their scores."""

    negatives: Array
    positives: Array
    least: Array
    """Key of the least score of each bin: equal to the greatest where all its scores are."""
    greatest: Array


def coarse_edges() -> Const:
    """Return edges for scores that nothing is known of: 16 bins for every power of two."""
    last = 0x7FF0  # infinity
    return Const(np.arange(-last, last + 1, dtype=np.int64) << _COARSE_BITS)


def refined_edges(coarse: Bins, bins: int) -> Const:
    """Return edges that cut coarse bins by the rows in them, into about ``bins`` altogether."""
    rows = coarse.negatives + coarse.positives
    total = max(1, int(rows.sum()))
    edges = []
    for index in np.flatnonzero(rows):
        least = int(coarse.least[index])
        span = int(coarse.greatest[index]) - least + 1
        parts = min(span, -(-bins * int(rows[index]) // total))
        step, rest = divmod(span, parts)
        number = np.arange(parts, dtype=np.int64)
        edges.append(least + step * number + np.minimum(number, rest))
    return Const(np.concatenate(edges) if edges else np.zeros(1, np.int64))


@value
class RankHistogram:
    """Counts of negatives and positives between ``edges``, for the scores of a view () of floats.

    Edges (b - 1,) are ascending int64 keys of float64 numbers, in their order, so that no range of
    scores is assumed; a bin holds the scores from its edge to below the next. Raises
    :class:`DataError` for a NaN score. Result: :class:`Bins`.
    """

    of: View
    edges: Const
    positive: View = IsOOD()
    where: View = Every()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.positive, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def _bins(self) -> int:
        return int(self.edges.shape[0]) + 1

    def empty(self, schema: Schema) -> Bins:
        if self.of.shape(schema) != ():
            raise ConfigError(f"ranks need one score per row, {self.of} has more")
        negatives, positives = (np.zeros(self._bins, np.int64) for _ in range(2))
        least, greatest = np.full(self._bins, _NONE), np.full(self._bins, -_NONE)
        return Bins(negatives, positives, least, greatest)

    def absorb(self, state: Bins, chunk: Chunk) -> Bins:
        scores, positive = kept(chunk, self.where, self.of, self.positive)
        refuse_nan(chunk, self.where, scores)
        if scores.shape[0] == 0:
            return state
        return self.merge(state, self._counted(arrays.sort_keys(scores), positive))

    def _counted(self, keys: Array, positive: Array) -> Bins:
        xp = arrays.namespace(keys)
        order = xp.argsort(keys, stable=True)
        keys, ones = xp.take(keys, order), xp.take(xp.astype(positive, xp.int64), order)
        cuts = xp.astype(xp.searchsorted(keys, self.edges.like(keys)), xp.int64)
        start, stop = xp.zeros_like(cuts[:1]), xp.full_like(cuts[:1], keys.shape[0])
        first, last = xp.concat((start, cuts)), xp.concat((cuts, stop))
        found = xp.concat((start, xp.cumulative_sum(ones)))
        positives = xp.take(found, last) - xp.take(found, first)
        rows = last - first
        none = xp.full_like(rows, _NONE)
        within = xp.where(rows > 0, first, xp.zeros_like(first))
        least = xp.where(rows > 0, xp.take(keys, within), none)
        greatest = xp.where(
            rows > 0, xp.take(keys, within + xp.where(rows > 0, rows - 1, 0)), -none
        )
        return Bins(rows - positives, positives, least, greatest)

    def close(self, state: Bins) -> Bins:
        return state

    def merge(self, a: Bins, b: Bins) -> Bins:
        xp = arrays.namespace(a.least, b.least)
        return Bins(
            a.negatives + b.negatives,
            a.positives + b.positives,
            xp.minimum(a.least, b.least),
            xp.maximum(a.greatest, b.greatest),
        )

    def finalize(self, state: Bins) -> Bins:
        return Bins(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return 32 * self._bins

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return 120 * rows + 160 * self._bins

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results
