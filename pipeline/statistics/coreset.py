"""A composable coreset: the k-center of every block, and of what these have chosen together."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of
from pipeline.statistics.k_center import PROJECTED, k_center, projected, reaches
from pipeline.statistics.sample import Sample, Sampled
from pipeline.views import Valid, View


class Centres(NamedTuple):
    """Keys (m,) int64 in ascending order, entries (m, d), reach (m,) float64; also the state."""

    keys: Array
    entries: Array
    reach: Array
    """No entry that a centre stands for is farther from it."""
    offered: Array
    """(1,) int64: how many entries the centres stand for."""


@value
class Coreset:
    """At most ``most`` entries of a view (d,) or (t, d) that lie near to all others.

    A block offers the ``offered`` entries with the smallest ``keys``, random numbers as those of
    :class:`Sample`, which do not depend on its chunks. Greedy k-center chooses ``most`` of them,
    and ``most`` of the union of what two blocks, or two groups of blocks, have chosen; it compares
    distances in 128 random directions where there are more. An entry that begins with NaN, as that
    of a masked token, is left out. Result: :class:`Centres`; up to ``most`` entries are all kept.

    Merging does not depend on who comes first, but on who is merged with whom: blocks of other
    sizes, or merged by another tree, make another coreset. How near it is, is bounded all the same:
    with L merges on the longest way, all that was offered lies within 2 (L + 1) times the distance
    of the best ``most`` centres, 4 for one union, in the directions that are compared; see
    :mod:`pipeline.statistics.k_center`. ``reach`` is a bound in the whole space.

    Reference: Indyk, Mahabadi, Mahdian and Mirrokni 2014, "Composable core-sets for diversity and
    coverage maximization"; Malkomes, Kusner, Chen, Weinberger and Moseley 2015, "Fast distributed
    k-center clustering with outliers on massive data".
    """

    of: View
    keys: View
    most: int
    offered: int
    seed: int = 0
    where: View = Valid()
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 1 <= self.most <= self.offered:
            raise ConfigError(f"most: {self.most}; expected 1 to offered, {self.offered}")

    @property
    def views(self) -> tuple[View, ...]:
        return self._sample.views

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def _sample(self) -> Sample:
        return Sample(self.of, self.keys, self.offered, self.where)

    def empty(self, schema: Schema) -> Centres:
        return _alone(self._sample.empty(schema))

    def absorb(self, state: Centres, chunk: Chunk) -> Centres:
        return _alone(self._sample.absorb(Sampled(state.keys, state.entries), chunk))

    def close(self, state: Centres) -> Centres:
        return self._chosen(state)

    def merge(self, a: Centres, b: Centres) -> Centres:
        xp = arrays.namespace(a.keys, b.keys)
        keys = xp.concat((a.keys, b.keys))
        order = xp.argsort(keys, stable=True)
        entries = xp.take(xp.concat((a.entries, b.entries)), order, axis=0)
        reach = xp.take(xp.concat((a.reach, b.reach)), order)
        return self._chosen(Centres(xp.take(keys, order), entries, reach, a.offered + b.offered))

    def _chosen(self, state: Centres) -> Centres:
        if state.keys.shape[0] <= self.most:
            return state
        points = projected(state.entries, self.seed)
        chosen, owner = k_center(points, self.most, self.seed, state.reach)
        reach = reaches(state.entries, state.reach, chosen, owner)
        xp = arrays.namespace(chosen)
        order = xp.argsort(chosen)
        chosen = xp.take(chosen, order)
        entries = xp.take(state.entries, chosen, axis=0)
        return Centres(xp.take(state.keys, chosen), entries, xp.take(reach, order), state.offered)

    def finalize(self, state: Centres) -> Centres:
        return Centres(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return self._sample.state_nbytes(schema) + 8 * self._kept(schema) + 8

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        if rows:
            return self._sample.work_nbytes(schema, rows)
        width = self.of.shape(schema)[-1]
        union = max(self._kept(schema), 2 * min(self.most, self._kept(schema)))
        compared = min(width, PROJECTED)
        points = union * compared * (3 if width > PROJECTED else 2)
        directions = 2 * PROJECTED * width if width > PROJECTED else 0
        tiles = arrays.products_nbytes(width, compared)
        return 8 * (2 * union * width + points + directions + 16 * union) + tiles

    def _kept(self, schema: Schema) -> int:
        """Return how many entries the state of a block holds at most before it is closed."""
        tokens = self.of.shape(schema)[:-1]
        return min(self.offered, schema.rows * (tokens[0] if tokens else 1))

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def _alone(sampled: Sampled) -> Centres:
    """Return entries that stand for nothing but themselves."""
    xp, device = arrays.namespace(sampled.keys), arrays.device_of(sampled.keys)
    count = sampled.keys.shape[0]
    reach = xp.zeros((count,), dtype=xp.float64, device=device)
    return Centres(*sampled, reach, xp.full((1,), count, dtype=xp.int64, device=device))
