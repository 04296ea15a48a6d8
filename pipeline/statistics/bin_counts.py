"""How many rows fall into each bin of each feature: histograms over the same edges."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.statistics.base import fields_of, kept
from pipeline.views import Valid, View
from pipeline.views.base import floats_nbytes


class BinRows(NamedTuple):
    """State and result: rows (d, e + 1) int64 of each bin of each feature."""

    rows: Array


@value
class BinCounts:
    """Rows per feature and bin of a view (d,), over the rows that ``where`` keeps.

    Bin b holds the values from edge b - 1 to below edge b; ``edges`` (e,) ascend, float64. Result:
    :class:`BinRows` on the host.
    """

    of: View
    edges: Const
    where: View = Valid()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> BinRows:
        return BinRows(np.zeros((*self.of.shape(schema), self.edges.shape[0] + 1), np.int64))

    def absorb(self, state: BinRows, chunk: Chunk) -> BinRows:
        (x,) = kept(chunk, self.where, self.of)
        xp = arrays.namespace(x)
        edges, rows = self.edges.like(x), state.rows
        for tile in arrays.tiles(x.shape[0]):
            found = xp.reshape(bins_of(x[tile, ...], edges), (-1,))
            counts = arrays.bincount(found, rows.shape[0] * rows.shape[1])
            rows = arrays.add_into(rows, xp.reshape(counts, rows.shape))
        return BinRows(rows)

    def close(self, state: BinRows) -> BinRows:
        return state

    def merge(self, a: BinRows, b: BinRows) -> BinRows:
        return BinRows(a.rows + b.rows)

    def finalize(self, state: BinRows) -> BinRows:
        return BinRows(arrays.to_host(state.rows))

    def state_nbytes(self, schema: Schema) -> int:
        return floats_nbytes(self.of.shape(schema), self.edges.shape[0] + 1)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        tile = 4 * floats_nbytes(self.of.shape(schema), min(rows, arrays.TILE_ROWS))
        return floats_nbytes(self.of.shape(schema), rows) + tile + self.state_nbytes(schema)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def bins_of(x: Array, edges: Array) -> Array:
    """Return the place (n, d) of each entry's bin in a table (d, e + 1) that is read row by row."""
    xp = arrays.namespace(x, edges)
    found = xp.searchsorted(edges, xp.reshape(x, (-1,)), side="right")
    bins = edges.shape[0] + 1
    first = xp.arange(x.shape[1], dtype=xp.int64, device=arrays.device_of(x)) * bins
    return xp.reshape(xp.astype(found, xp.int64, copy=False), x.shape) + first[None, :]
