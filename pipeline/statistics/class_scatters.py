"""Count, mean and scatter of every class by itself: one covariance per class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pipeline import arrays
from pipeline.chunk import Chunk, Schema
from pipeline.content import replaced, value
from pipeline.statistics import scatters
from pipeline.statistics.base import class_ids, fields_of, kept
from pipeline.statistics.scatters import Scatters, State, Stripe
from pipeline.views import Labels, Pooled, Valid, View


@value
class ClassScatters:
    """Count, mean (d,) and scatter (d, d) of a vector view in each class.

    Rows are centred about the mean of the first rows of their class in the block before they are
    multiplied, in float64; blocks merge by the pairwise update of Chan, Golub and LeVeque (1983).
    The state is k x d x d; ``stripes`` cuts it into ranges of classes, which give the same bits.
    Result: :class:`Scatters`, of the classes in ``stripe`` if one is given. Raises
    :class:`DataError` for a kept row whose class is not one of 0 to k-1.
    """

    of: View = Pooled()
    by: View = Labels()
    where: View = Valid()
    stripe: Stripe = ()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> State:
        return scatters.no_rows(len(self._classes(schema)), self._features(schema))

    def absorb(self, state: State, chunk: Chunk) -> State:
        assert isinstance(state, scatters.OpenScatters)
        x, y = kept(chunk, self.where, self.of, self.by)
        xp = arrays.namespace(x)
        y = class_ids(chunk, self.where, y)
        order = xp.argsort(y, stable=True)
        counts = arrays.to_host(arrays.bincount(y, chunk.schema.classes))
        ends = counts.cumsum()
        classes = self._classes(chunk.schema)
        for c in classes:
            rows = order[int(ends[c] - counts[c]) : int(ends[c])]
            for piece in arrays.tiles(rows.shape[0], scatters.PIECE_ROWS):
                part = xp.take(x, rows[piece], axis=0)
                scatters.add_rows(state, c - classes.start, part, xp.float64)
        return state

    def close(self, state: State) -> State:
        return scatters.closed(state)

    def merge(self, a: State, b: State) -> State:
        return scatters.merged(a, b)

    def finalize(self, state: State) -> Scatters:
        return scatters.on_host(state)

    def state_nbytes(self, schema: Schema) -> int:
        return scatters.state_nbytes(len(self._classes(schema)), self._features(schema))

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        d = self._features(schema)
        closing = scatters.merge_nbytes(len(self._classes(schema)), d)
        return max(closing, scatters.absorb_nbytes(rows, d, 8 * d) + 24 * schema.classes)

    def stripes(self, schema: Schema, n: int) -> Sequence[ClassScatters]:
        return [replaced(self, stripe=s) for s in scatters.cut(self._classes(schema), n)]

    def join(self, results: Sequence[Scatters]) -> Scatters:
        return scatters.joined(results)

    def _classes(self, schema: Schema) -> range:
        return scatters.stripe_of(schema.classes, self.stripe, "classes")

    def _features(self, schema: Schema) -> int:
        return scatters.vector_width(self.of.shape(schema), schema)
