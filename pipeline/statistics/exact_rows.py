"""How many rows have every element right: subset accuracy, which no table of classes tells."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.checked import Checked, checked_nbytes, checked_tiles
from pipeline.views import Every, Truth, View

WHOLES = ("row", "labels")


@value
class ExactRows(Checked):
    """Wholes that are right in all elements that count, and those with one that counts: (2,) int64.

    A whole is a ``row``, or the ``labels`` (first axis after the rows) at one place of a row, whose
    entries are 0 or 1. A whole none of whose elements counts has no part in either. With
    ``weights``, a view () of floats, sums of the weights of rows: (2,) float64.
    """

    of: View
    by: View = Truth()
    where: View = Every()
    ignore: tuple[int, ...] = ()
    weights: View | None = None
    whole: str = "row"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.whole not in WHOLES:
            raise ConfigError(f"whole: {self.whole!r} is unknown; choose {', '.join(WHOLES)}")

    def empty(self, schema: Schema) -> Array:
        return np.zeros(2, np.int64 if self.weights is None else np.float64)

    def absorb(self, state: Array, chunk: Chunk) -> Array:
        classes = chunk.schema.classes if self.whole == "row" else 2
        for truth, predicted, counts, weights in checked_tiles(self, chunk, classes):
            xp = arrays.namespace(truth)
            # (rows, elements of a whole, wholes of a row)
            last = 1 if self.whole == "row" else -1
            first = -1 if self.whole == "row" else truth.shape[1]
            shape = (truth.shape[0], first, last)
            if truth.shape[0] == 0:
                continue
            right = xp.reshape((truth == predicted) | ~counts, shape)
            some = xp.any(xp.reshape(counts, shape), axis=1)
            exact = xp.all(right, axis=1) & some
            found = [self._sum(wholes, weights) for wholes in (exact, some)]
            state = arrays.add_into(state, xp.stack(found))
        return state

    def _sum(self, wholes: Array, weights: Array) -> Array:
        xp = arrays.namespace(wholes)
        rows = xp.astype(xp.count_nonzero(wholes, axis=1), xp.int64)
        return (
            xp.sum(rows) if self.weights is None else xp.sum(xp.astype(rows, xp.float64) * weights)
        )

    def state_nbytes(self, schema: Schema) -> int:
        return 16

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return checked_nbytes(self, schema, rows)
