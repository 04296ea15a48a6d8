"""A random sample of bounded size: the entries with the smallest keys, whatever their order."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of
from pipeline.views import Valid, View


class Sampled(NamedTuple):
    """Keys (m,) int64 in ascending order with their entries (m, d) float64; also the state."""

    keys: Array
    entries: Array


@value
class Sample:
    """The ``most`` entries of a view (d,) or (t, d) that have the smallest keys.

    ``keys`` () or (t,) are distinct random numbers of the entries, such as hashes of ids. An entry
    that begins with NaN, as that of a masked token, is left out. The state grows with the entries
    up to ``most`` of them. Result: :class:`Sampled`, in the order of the keys.
    """

    of: View
    keys: View
    most: int
    where: View = Valid()
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ConfigError(f"most: {self.most}; expected at least 1")

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.keys, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> Sampled:
        self.keys.shape(schema)
        width = self.of.shape(schema)[-1]
        return Sampled(np.zeros(0, np.int64), np.zeros((0, width)))

    def absorb(self, state: Sampled, chunk: Chunk) -> Sampled:
        x, keys, counted = self.of(chunk), self.keys(chunk), self.where(chunk)
        xp = arrays.namespace(x)
        if x.ndim == 3:
            counted = counted[:, None]
        counted = xp.reshape(counted & ~xp.isnan(x[..., 0]), (-1,))
        x, keys = xp.reshape(x, (-1, x.shape[-1])), xp.reshape(keys, (-1,))
        if state.keys.shape[0] == self.most:
            counted = counted & (keys < state.keys[-1])
        places = xp.nonzero(counted)[0]
        places = xp.take(places, self._smallest(xp.take(keys, places)))
        entries = xp.astype(xp.take(x, places, axis=0), xp.float64, copy=False)
        return self.merge(state, Sampled(xp.take(keys, places), entries))

    def close(self, state: Sampled) -> Sampled:
        return state

    def merge(self, a: Sampled, b: Sampled) -> Sampled:
        xp = arrays.namespace(a.keys, b.keys)
        keys = xp.concat((a.keys, b.keys))
        smallest = self._smallest(keys)
        entries = xp.concat((a.entries, b.entries))
        return Sampled(xp.take(keys, smallest), xp.take(entries, smallest, axis=0))

    def _smallest(self, keys: Array) -> Array:
        """Return where the smallest of the keys are, in their order."""
        order = arrays.namespace(keys).argsort(keys, stable=True)
        return order[: min(self.most, keys.shape[0])]

    def finalize(self, state: Sampled) -> Sampled:
        return Sampled(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return self._kept(schema) * self._entry_nbytes(schema)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        offered = self._offered(schema, rows)
        taken = min(self.most, offered) if rows else self._kept(schema)
        entries = 2 * (self._kept(schema) + taken)
        return entries * self._entry_nbytes(schema) + 40 * (offered + self._kept(schema))

    def _kept(self, schema: Schema) -> int:
        """Return how many entries a state has at most."""
        return min(self.most, self._offered(schema, schema.rows))

    def _offered(self, schema: Schema, rows: int) -> int:
        """Return how many entries rows have at most."""
        tokens = self.of.shape(schema)[:-1]
        return rows * (tokens[0] if tokens else 1)

    def _entry_nbytes(self, schema: Schema) -> int:
        return 8 + 8 * self.of.shape(schema)[-1]

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results
