"""Class counts with a weight for each row: float64 sums in place of whole numbers."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics.checked import Checked, checked_nbytes, checked_tiles
from pipeline.views import Labelled, Stored, Truth, View


class ClassSums(NamedTuple):
    """Weights of elements per class: (k,) float64 each; the result, and the state.

    They are sums over sets that do not overlap, so that nothing is ever subtracted, and no digit
    cancelled: the elements of a class are ``true_positive + missed``, its predictions
    ``true_positive + raised``. Each sum rounds as float64 sums do.
    """

    true_positive: Array
    """Elements of the class that were predicted as such."""
    missed: Array
    """Elements of the class that were predicted as another."""
    raised: Array
    """Elements of another class that were predicted as this one."""
    undecided: Array
    """Elements that were predicted as no class, but as a value that is ignored: (1,)."""


@value
class WeightedMarginals(Checked):
    """The sums of weights of what :class:`~pipeline.statistics.Marginals` counts.

    ``weights`` is a view () of floats, one for each row and all its elements. Result:
    :class:`ClassSums`. Raises :class:`DataError` as ``Marginals``, and for a weight that is below 0
    or not finite.
    """

    of: View
    by: View = Truth()
    where: View = Labelled()
    ignore: tuple[int, ...] = ()
    weights: View = Stored("weights")
    version: ClassVar[int] = 1

    def empty(self, schema: Schema) -> ClassSums:
        return ClassSums(*(np.zeros(size) for size in (*(schema.classes,) * 3, 1)))

    def absorb(self, state: ClassSums, chunk: Chunk) -> ClassSums:
        classes = chunk.schema.classes
        for truth, predicted, counts, weights in checked_tiles(self, chunk, classes):
            xp = arrays.namespace(truth)
            w = xp.reshape(weights, (-1, *(1,) * (truth.ndim - 1)))
            w = xp.broadcast_to(w, truth.shape)[counts]
            t, p = truth[counts], predicted[counts]
            right, inside = t == p, (p >= 0) & (p < classes)
            sets = ((right, t), (~right, t), (~right & inside, p), (~inside, p * 0))
            state = ClassSums(
                *(
                    arrays.add_into(total, arrays.sum_in_bins(ids[among], w[among], total.shape[0]))
                    for total, (among, ids) in zip(state, sets, strict=True)
                )
            )
        return state

    def state_nbytes(self, schema: Schema) -> int:
        return 24 * schema.classes + 8

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return 48 * schema.classes + checked_nbytes(self, schema, rows)
