"""The largest values of a scalar view per class: what extreme-value fits look at."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import class_ids, fields_of, kept
from pipeline.views import Labels, Valid, View


class Tails(NamedTuple):
    """State and result: the largest values of each of k classes."""

    count: Array
    """Rows per class: (k,) int64."""
    largest: Array
    """Values (k, size) float64, largest first; -inf where a class has fewer rows."""


@value
class ClassTails:
    """The ``size`` largest values of a view () per class, over the rows that ``where`` keeps.

    Result: :class:`Tails`, the same whatever the order of the rows. Raises :class:`DataError` for
    a kept row whose class is not one of 0 to k-1.
    """

    of: View
    by: View = Labels()
    where: View = Valid()
    size: int = 64
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size: {self.size}; expected at least 1")

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> Tails:
        if self.of.shape(schema) != ():
            raise ConfigError(f"tails need one value per row, {self.of} has more")
        k = schema.classes
        return Tails(np.zeros(k, np.int64), np.full((k, self.size), -np.inf))

    def absorb(self, state: Tails, chunk: Chunk) -> Tails:
        x, y = kept(chunk, self.where, self.of, self.by)
        y = class_ids(chunk, self.where, y)
        if x.shape[0] == 0:
            return state
        counted = arrays.bincount(y, state.count.shape[0])
        return self.merge(state, Tails(counted, _by_class(x, y, counted, self.size)))

    def close(self, state: Tails) -> Tails:
        return state

    def merge(self, a: Tails, b: Tails) -> Tails:
        xp = arrays.namespace(a.largest, b.largest)
        both = xp.concat((a.largest, b.largest), axis=1)
        return Tails(a.count + b.count, arrays.top_k(both, self.size))

    def finalize(self, state: Tails) -> Tails:
        return Tails(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return 8 * schema.classes * (1 + self.size)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        # Tables of the chunk and of both, which a partial sort copies twice.
        return 80 * rows + 8 * schema.classes * (4 + 7 * self.size)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results


def _by_class(x: Array, y: Array, count: Array, size: int) -> Array:
    """Return the largest values (k, m) of rows ``x`` (n,) by class ``y``, m at most ``size``."""
    xp = arrays.namespace(x, y)
    x = xp.astype(x, xp.float64)
    order = xp.argsort(x, descending=True, stable=True)
    order = xp.take(order, xp.argsort(xp.take(y, order), stable=True))
    ranked = xp.take(x, order)
    ends = xp.cumulative_sum(count)
    most = min(size, int(xp.max(count)))
    steps = xp.arange(most, dtype=xp.int64, device=arrays.device_of(x))
    places = (ends - count)[:, None] + steps[None, :]
    there = steps[None, :] < count[:, None]
    flat = xp.reshape(xp.where(there, places, xp.zeros_like(places)), (-1,))
    table = xp.reshape(xp.take(ranked, flat), places.shape)
    return xp.where(there, table, xp.full_like(table, -xp.inf))
