"""Counts of labels that a row may have several of, each right or wrong by itself."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.statistics.checked import Checked, checked_nbytes, checked_tiles
from pipeline.views import Every, Truth, View


class LabelCounts(NamedTuple):
    """Entries per label: four times (k,), int64, or float64 where they are weighted.

    They are counts of sets that do not overlap: the result, and the state.
    """

    true_positive: Array
    """Entries that are 1, and predicted as 1."""
    missed: Array
    """Entries that are 1, and predicted as 0."""
    raised: Array
    """Entries that are 0, and predicted as 1."""
    true_negative: Array
    """Entries that are 0, and predicted as 0."""

    @property
    def truth(self) -> Array:
        """Entries that are 1: (k,)."""
        return self.true_positive + self.missed

    @property
    def predicted(self) -> Array:
        """Entries that are predicted as 1: (k,)."""
        return self.true_positive + self.raised

    @property
    def rows(self) -> Array:
        """Entries that count: (k,)."""
        return self.truth + self.raised + self.true_negative


@value
class LabelMarginals(Checked):
    """Right and wrong entries of each label of rows (k, ...), which are 0 or 1.

    An entry whose true value is one of ``ignore`` does not count. With ``weights``, a view () of
    floats, sums of the weights of rows. Result: :class:`LabelCounts`. Raises :class:`DataError` for
    an entry that counts and is neither 0 nor 1.
    """

    of: View
    by: View = Truth()
    where: View = Every()
    ignore: tuple[int, ...] = ()
    weights: View | None = None
    version: ClassVar[int] = 1

    def empty(self, schema: Schema) -> LabelCounts:
        shape = self.by.shape(schema)
        if shape[:1] != (schema.classes,):
            raise DataError(
                f"{schema.split}: labels have rows of shape {shape}; expected ({schema.classes}, "
                "...), 0 or 1 for each label that a row may have"
            )
        dtype = np.int64 if self.weights is None else np.float64
        return LabelCounts(*(np.zeros(schema.classes, dtype) for _ in range(4)))

    def absorb(self, state: LabelCounts, chunk: Chunk) -> LabelCounts:
        for truth, predicted, counts, weights in checked_tiles(self, chunk, 2):
            xp = arrays.namespace(truth)
            is_one, guessed = truth == 1, predicted == 1
            sets = (
                is_one & guessed & counts,
                is_one & ~guessed & counts,
                ~is_one & guessed & counts,
                ~is_one & ~guessed & counts,
            )
            flat = (xp.reshape(entries, (*truth.shape[:2], -1)) for entries in sets)
            of_rows = [xp.count_nonzero(entries, axis=2) for entries in flat]
            if self.weights is None:
                found = [xp.sum(xp.astype(rows, xp.int64), axis=0) for rows in of_rows]
            else:
                found = [
                    xp.sum(xp.astype(rows, xp.float64) * weights[:, None], axis=0)
                    for rows in of_rows
                ]
            state = LabelCounts(
                *(arrays.add_into(total, x) for total, x in zip(state, found, strict=True))
            )
        return state

    def state_nbytes(self, schema: Schema) -> int:
        return 32 * schema.classes

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return 64 * schema.classes + checked_nbytes(self, schema, rows)
