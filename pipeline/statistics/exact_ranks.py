"""Distinct scores with how many negatives and positives share each: exact rank metrics."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError, DataError
from pipeline.statistics.base import fields_of
from pipeline.statistics.scored import both_sides, check_shapes
from pipeline.statistics.sides import (
    Pending,
    Sides,
    distinct,
    merged,
    most_waiting_nbytes,
    nothing,
    pieces,
    settled,
    waiting_nbytes,
)
from pipeline.views import Every, IsOOD, View

DISTINCT_NBYTES = 16


class Ranks(NamedTuple):
    """m distinct scores in ascending order, with their rows; ties are told from neighbours."""

    values: Array
    """Scores (m,) float64; -0.0 counts as 0.0."""
    negatives: Array
    """Negative rows with this score: (m,) int64."""
    positives: Array
    """Positive rows with this score: (m,) int64."""


class Run(NamedTuple):
    """State: the scores of both classes; some wait to be sorted while a block is open."""

    sides: Sides
    pending: Pending = Pending()


@value
class ExactRanks:
    """Counts of negatives and positives at every distinct score of a view () or (...).

    The state grows with the rows: 4 bytes each for float32 scores, 8 for float64, and up to 16 for
    each distinct score of a class where that is less. Infinite scores have their place. Raises
    :class:`DataError` for a NaN score, and where classes have more than ``max_rows`` distinct
    scores together. Result: :class:`Ranks`.
    """

    of: View
    positive: View = IsOOD()
    where: View = Every()
    max_rows: int = 2**20
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise ConfigError(f"max_rows: {self.max_rows}; expected at least 1")

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.positive, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> Run:
        check_shapes(self.of, self.positive, schema)
        return Run(nothing())

    def absorb(self, state: Run, chunk: Chunk) -> Run:
        pending = state.pending.plus(*both_sides(chunk, self.where, self.of, self.positive))
        if pending.nbytes < most_waiting_nbytes(DISTINCT_NBYTES * self.max_rows):
            return Run(state.sides, pending)
        return Run(self._checked(settled(state.sides, pending)))

    def close(self, state: Run) -> Run:
        return Run(self._checked(settled(*state)))

    def merge(self, a: Run, b: Run) -> Run:
        return Run(self._checked(merged(a.sides, b.sides)))

    def finalize(self, state: Run) -> Ranks:
        sides = arrays.map_arrays(arrays.to_host, state.sides)
        found = [np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64)]
        columns = zip(found, *pieces(sides), strict=True)
        return Ranks(*(np.concatenate(parts, dtype=parts[0].dtype) for parts in columns))

    def state_nbytes(self, schema: Schema) -> int:
        scores = schema.rows * int(np.prod(self.of.shape(schema), dtype=np.int64))
        kept = DISTINCT_NBYTES * self.max_rows
        return kept + waiting_nbytes(kept, scores)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        each = int(np.prod(self.of.shape(schema), dtype=np.int64))
        return 112 * self.max_rows + 6 * self.state_nbytes(schema) // 2 + 60 * each * rows

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results

    def _checked(self, sides: Sides) -> Sides:
        entries = sum(int(side.scores.shape[0]) for side in sides)
        if entries <= self.max_rows:
            return sides
        once = sum(int(distinct(side)[0].shape[0]) for side in sides)
        if once > self.max_rows:
            raise DataError(
                f"{once} distinct scores, but max_rows declares at most {self.max_rows}; raise "
                "max_rows to the number of rows"
            )
        return sides
