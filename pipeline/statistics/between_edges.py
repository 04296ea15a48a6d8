"""What statistics of scores between declared edges share: scores wait until many are there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from pipeline.chunk import Chunk, Schema
from pipeline.content import Const
from pipeline.statistics.base import fields_of
from pipeline.statistics.scored import both_sides
from pipeline.statistics.sides import most_waiting_nbytes, waiting_nbytes
from pipeline.views import View


class BetweenEdges(ABC):
    """A statistic of bins, whose state has scores that wait to be counted (``pending``)."""

    of: View
    edges: Const
    positive: View
    where: View
    bin_nbytes: ClassVar[int]
    """Bytes of the counts of a bin."""
    counting_nbytes: ClassVar[int]
    """Temporaries for each bin, while scores are counted."""

    @abstractmethod
    def settled(self, state: Any) -> Any:
        """Return a state in which no scores wait."""

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.positive, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def bins(self) -> int:
        """Number of bins."""
        return int(self.edges.shape[0]) + 1

    def absorb(self, state: Any, chunk: Chunk) -> Any:
        pending = state.pending.plus(*both_sides(chunk, self.where, self.of, self.positive))
        state = state._replace(pending=pending)
        full = pending.nbytes >= most_waiting_nbytes(self.bin_nbytes * self.bins)
        return self.settled(state) if full else state

    def close(self, state: Any) -> Any:
        return self.settled(state)

    def state_nbytes(self, schema: Schema) -> int:
        return self.bin_nbytes * self.bins + self._waiting_nbytes(schema)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        counting = self.counting_nbytes * self.bins
        return 60 * self._scores(schema) * rows + 6 * self._waiting_nbytes(schema) + counting

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results

    def _scores(self, schema: Schema) -> int:
        """Return the scores of a row."""
        return int(np.prod(self.of.shape(schema), dtype=np.int64))

    def _waiting_nbytes(self, schema: Schema) -> int:
        return waiting_nbytes(self.bin_nbytes * self.bins, self._scores(schema) * schema.rows)
