"""Elements by their confidence in bins: how many there are, how many right, and how sure."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of
from pipeline.statistics.elements import elements_of
from pipeline.statistics.exact_sums import (
    TILE_ELEMENTS,
    Limbs,
    added,
    adding_nbytes,
    among_rows,
    carried,
    merged,
    no_sums,
    refuse_without_sum,
    sums_nbytes,
    whole_numbers,
)
from pipeline.views import Every, Valid, View


class ConfidenceBins(NamedTuple):
    """What each bin holds: three times (b,), or (k, b) of each class; whole numbers."""

    rows: np.ndarray[Any, Any]
    """Elements, int64."""
    hits: np.ndarray[Any, Any]
    """Elements that are right, int64."""
    units: np.ndarray[Any, Any]
    """Sum of confidences in units of 2^-1074 (:data:`~pipeline.statistics.exact_sums.UNITS`), as
    Python integers: nothing is rounded."""


class BinLimbs(NamedTuple):
    """State: elements that are right (b,) int64, and the sums of all confidences."""

    hits: Array
    confidence: Limbs


@value
class CalibrationBins:
    """Elements per bin of a view of confidences, right ones among them, sum of confidences.

    ``edges`` (b - 1,) are ascending int64 keys (``sort_keys``) of float64 numbers: a bin holds
    what is at least its edge and below the next, the first all below, the last all above. Keys
    are whole numbers, which libraries and devices compare alike. ``hit`` says what is right: 0 or
    1. ``where`` keeps rows, ``among`` entries of rows.

    With ``by_class`` the views are (k, ...), each class has bins of its own, and ``edges`` may be
    (k, b - 1). Result: :class:`ConfidenceBins`.
    """

    of: View
    hit: View
    edges: Const
    by_class: bool = False
    where: View = Valid()
    among: View = Every()
    version: ClassVar[int] = 1
    additive: ClassVar[bool] = True

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.hit, self.where, self.among)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def _bins(self) -> int:
        return int(self.edges.shape[-1]) + 1

    def _groups(self, schema: Schema) -> int:
        return schema.classes if self.by_class else 1

    def empty(self, schema: Schema) -> BinLimbs:
        if self.of.shape(schema) != self.hit.shape(schema):
            raise ConfigError(f"{self.of} and {self.hit} have rows of different shapes")
        bins = self._groups(schema) * self._bins
        return BinLimbs(np.zeros(bins, np.int64), no_sums(bins))

    def absorb(self, state: BinLimbs, chunk: Chunk) -> BinLimbs:
        refuse_without_sum(chunk, self.of, self.where, self.among)
        rows, among, x, hit = (v(chunk) for v in (self.where, self.among, self.of, self.hit))
        edges = self.edges.like(x)
        if not self.by_class:
            return self._absorbed(state, edges, *among_rows(rows, among, x, hit))
        for c in range(chunk.schema.classes):
            counts = among[:, c, ...] if among.ndim == x.ndim else among
            bins = slice(c * self._bins, (c + 1) * self._bins)
            part = BinLimbs(state.hits[bins], Limbs(*(x[bins, ...] for x in state.confidence)))
            own = edges if edges.ndim == 1 else edges[c, :]
            found = among_rows(rows, counts, x[:, c, ...], hit[:, c, ...])
            found = self._absorbed(part, own, *found)
            state.hits[bins] = found.hits
            for whole, one in zip(state.confidence, found.confidence, strict=True):
                whole[bins, ...] = one
        return state

    def _absorbed(self, state: BinLimbs, edges: Array, x: Array, hit: Array) -> BinLimbs:
        xp = arrays.namespace(x)
        hits, sums = state
        for tile in arrays.tiles(x.shape[0], TILE_ELEMENTS):
            part = xp.astype(x[tile], xp.float64, copy=False)
            keys = arrays.sort_keys(part)
            ids = xp.astype(xp.searchsorted(edges, keys, side="right"), xp.int64)
            right = xp.astype(hit[tile], xp.int64)
            hits = hits + arrays.sum_integers_in_bins(ids, right, self._bins)
            sums = added(sums, part, ids)
        return BinLimbs(hits, carried(sums))

    def close(self, state: BinLimbs) -> BinLimbs:
        return state

    def merge(self, a: BinLimbs, b: BinLimbs) -> BinLimbs:
        return BinLimbs(a.hits + b.hits, merged(a.confidence, b.confidence))

    def finalize(self, state: BinLimbs) -> ConfidenceBins:
        hits, sums = arrays.map_arrays(arrays.to_host, state)
        units = np.empty(len(hits), object)
        units[:] = whole_numbers(sums.limbs)
        shape = (-1, self._bins) if self.by_class else (-1,)
        return ConfidenceBins(*(x.reshape(shape) for x in (sums.numbers, hits, units)))

    def state_nbytes(self, schema: Schema) -> int:
        bins = self._groups(schema) * self._bins
        return 8 * bins + sums_nbytes(bins)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        entries = rows * elements_of(self.of, schema)
        groups = self._groups(schema)
        return 4 * entries + adding_nbytes(entries // groups, groups * self._bins)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results
