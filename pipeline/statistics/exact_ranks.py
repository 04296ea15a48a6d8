"""Distinct scores with how many negatives and positives share each: exact rank metrics."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError, DataError
from pipeline.statistics.base import fields_of, kept, refuse_nan
from pipeline.views import Every, IsOOD, View


class Ranks(NamedTuple):
    """m distinct scores in ascending order, with their rows; ties are told from neighbours."""

    values: Array
    """Scores (m,) float64; -0.0 counts as 0.0."""
    negatives: Array
    """Negative rows with this score: (m,) int64."""
    positives: Array
    """Positive rows with this score: (m,) int64."""


class Run(NamedTuple):
    """State: distinct keys in ascending order, with their counts; each (m,) int64."""

    keys: Array
    negatives: Array
    positives: Array


@value
class ExactRanks:
    """Counts of negatives and positives at every distinct score of a view () of floats.

    The state grows with the number of distinct scores, up to the declared ``max_rows``: 24 bytes
    each. Infinite scores have their place. Raises :class:`DataError` for a NaN score, and where
    there are more than ``max_rows`` distinct scores. Result: :class:`Ranks`.
    """

    of: View
    positive: View = IsOOD()
    where: View = Every()
    max_rows: int = 2**20
    version: ClassVar[int] = 1

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
        if self.of.shape(schema) != ():
            raise ConfigError(f"ranks need one score per row, {self.of} has more")
        return Run(*(np.zeros(0, np.int64) for _ in range(3)))

    def absorb(self, state: Run, chunk: Chunk) -> Run:
        scores, positive = kept(chunk, self.where, self.of, self.positive)
        xp = arrays.namespace(scores)
        refuse_nan(chunk, self.where, scores)
        ones = xp.astype(positive, xp.int64)
        return self._merged(state, _collapsed(Run(arrays.sort_keys(scores), 1 - ones, ones)))

    def close(self, state: Run) -> Run:
        return state

    def merge(self, a: Run, b: Run) -> Run:
        return self._merged(a, b)

    def finalize(self, state: Run) -> Ranks:
        keys, negatives, positives = (arrays.to_host(x) for x in state)
        size = np.abs(keys).view(np.float64)
        return Ranks(np.where(keys < 0, -size, size), negatives, positives)

    def state_nbytes(self, schema: Schema) -> int:
        return 24 * self.max_rows

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return 105 * (2 * self.max_rows + rows)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results

    def _merged(self, a: Run, b: Run) -> Run:
        xp = arrays.namespace(a.keys, b.keys)
        if 0 in (a.keys.shape[0], b.keys.shape[0]):
            merged = Run(*(xp.asarray(x, copy=True) for x in (a if b.keys.shape[0] == 0 else b)))
        else:
            merged = _collapsed(Run(*(xp.concat(pair) for pair in zip(a, b, strict=True))))
        if merged.keys.shape[0] > self.max_rows:
            raise DataError(
                f"{merged.keys.shape[0]} distinct scores, but max_rows declares at most "
                f"{self.max_rows}; raise max_rows to the number of rows"
            )
        return merged


def _collapsed(run: Run) -> Run:
    """Return the keys of a run in ascending order, each once, with the sums of its counts."""
    xp = arrays.namespace(run.keys)
    if run.keys.shape[0] == 0:
        return run
    order = xp.argsort(run.keys, stable=True)  # linear time where runs are sorted already
    keys, *counts = (xp.take(x, order) for x in run)
    last = xp.concat((keys[1:] != keys[:-1], xp.ones_like(keys[:1], dtype=xp.bool)))
    return Run(keys[last], *(_differences(xp.cumulative_sum(x)[last]) for x in counts))


def _differences(x: Array) -> Array:
    """Return the steps of a cumulative sum (m,), the first from zero."""
    return arrays.namespace(x).concat((x[:1], x[1:] - x[:-1]))
