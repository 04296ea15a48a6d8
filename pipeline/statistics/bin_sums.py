"""Sums of a view's entries by the bin that the entries of another view fall into."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of, kept
from pipeline.views import Valid, View


class BinTotals(NamedTuple):
    """State and result: rows (1,) int64 that counted, and float64 sums (bins,)."""

    rows: Array
    totals: Array


@value
class BinSums:
    """Float64 sum, over all rows and entries, of ``of`` (d,) where ``by`` (d,) is in each bin.

    Bin b holds what is at least edge b and below edge b + 1; entries outside all ``edges``
    (bins + 1,), which ascend, are left out. Result: :class:`BinTotals`.
    """

    of: View
    by: View
    edges: Const
    where: View = Valid()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def _bins(self) -> int:
        return int(self.edges.shape[0]) - 1

    def empty(self, schema: Schema) -> BinTotals:
        if self.of.shape(schema) != self.by.shape(schema):
            raise ConfigError(f"sums of {self.of} cannot go by {self.by}: their shapes differ")
        return BinTotals(np.zeros(1, np.int64), np.zeros(self._bins))

    def absorb(self, state: BinTotals, chunk: Chunk) -> BinTotals:
        x, by = kept(chunk, self.where, self.of, self.by)
        xp = arrays.namespace(x)
        edges, totals = self.edges.like(x), state.totals
        for tile in arrays.tiles(x.shape[0]):
            ids = xp.reshape(bins_between(edges, by[tile, ...]) + 1, (-1,))
            sums = arrays.sum_in_bins(ids, xp.reshape(x[tile, ...], (-1,)), self._bins + 2)
            totals = arrays.add_into(totals, sums[1:-1])
        return BinTotals(state.rows + x.shape[0], totals)

    def close(self, state: BinTotals) -> BinTotals:
        return state

    def merge(self, a: BinTotals, b: BinTotals) -> BinTotals:
        return BinTotals(a.rows + b.rows, a.totals + b.totals)

    def finalize(self, state: BinTotals) -> BinTotals:
        return BinTotals(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return 8 + 8 * self._bins

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        row_nbytes = 8 * math.prod(self.of.shape(schema))
        tile = 6 * min(rows, arrays.TILE_ROWS) * row_nbytes
        return 2 * rows * row_nbytes + tile + 32 * self._bins

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def bins_between(edges: Array, x: Array) -> Array:
    """Return the bin of every entry: -1 below the first edge, the number of bins from the last."""
    xp = arrays.namespace(edges, x)
    found = xp.searchsorted(edges, xp.reshape(x, (-1,)), side="right")
    return xp.reshape(xp.astype(found, xp.int64) - 1, x.shape)
