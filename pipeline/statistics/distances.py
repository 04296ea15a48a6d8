"""How far apart true and predicted classes are: all that a weighted kappa adds to the margins."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.statistics.checked import Checked, checked_nbytes, checked_tiles
from pipeline.views import Every, Truth, View


@value
class Distances(Checked):
    """Elements by how far apart their true and predicted classes are, |i - j|: (k,) int64.

    Any weight of such distances, and its sum of any size, is computed from them at the end, where
    it cannot overflow. With ``weights``, a view () of floats, sums of the weights of rows: (k,)
    float64. Raises :class:`DataError` for a class that counts outside 0 to k-1.
    """

    of: View
    by: View = Truth()
    where: View = Every()
    ignore: tuple[int, ...] = ()
    weights: View | None = None
    version: ClassVar[int] = 1

    def empty(self, schema: Schema) -> Array:
        return np.zeros(schema.classes, np.int64 if self.weights is None else np.float64)

    def absorb(self, state: Array, chunk: Chunk) -> Array:
        k = chunk.schema.classes
        for truth, predicted, counts, weights in checked_tiles(self, chunk, k):
            xp = arrays.namespace(truth)
            nowhere = counts & ((predicted < 0) | (predicted >= k))
            if bool(xp.any(nowhere)):
                values = np.unique(arrays.to_host(predicted)[arrays.to_host(nowhere)]).tolist()
                raise DataError(
                    f"{chunk.split}: {', '.join(map(str, values))} is predicted where labels count "
                    f"in rows {chunk.start}-{chunk.stop - 1}: a miss, but at no distance from a "
                    "class; take kappa without a weighting, or predict a class there"
                )
            apart = xp.abs(truth - predicted)[counts]
            if self.weights is None:
                found = arrays.bincount(apart, k)
            else:
                w = xp.reshape(weights, (-1, *(1,) * (truth.ndim - 1)))
                w = xp.broadcast_to(w, truth.shape)[counts]
                found = arrays.sum_in_bins(apart, w, k)
            state = arrays.add_into(state, found)
        return state

    def state_nbytes(self, schema: Schema) -> int:
        return 8 * schema.classes

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return 24 * schema.classes + checked_nbytes(self, schema, rows)
