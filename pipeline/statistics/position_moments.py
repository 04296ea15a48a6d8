"""Count, mean and scatter of the tokens at every position: one covariance per position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pipeline import arrays
from pipeline.chunk import Chunk, Schema
from pipeline.content import replaced, value
from pipeline.errors import ConfigError
from pipeline.statistics import scatters
from pipeline.statistics.base import fields_of, kept
from pipeline.statistics.class_moments import PRECISIONS
from pipeline.statistics.scatters import Scatters, State, Stripe
from pipeline.views import TokenMask, Tokens, Valid, View
from pipeline.views.positions import Channels


@value
class PositionMoments:
    """Count, mean (d,) and scatter (d, d) of the valid tokens at each of t positions.

    Tokens are centred about the mean of the first ones at their position in the block before they
    are multiplied, in ``precision``: ``auto`` is the dtype of the tokens, at least float32; sums
    are float64 always. Blocks merge by the pairwise update of Chan, Golub and LeVeque (1983). The
    state is t x d x d; ``stripes`` cuts it into ranges of positions, which give the same bits.
    Result: :class:`Scatters`, of the positions in ``stripe`` if one is given.
    """

    of: Tokens | Channels = Tokens()
    where: View = Valid()
    precision: str = "auto"
    stripe: Stripe = ()
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision: {self.precision!r}; choose {', '.join(PRECISIONS)}")

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, TokenMask(self.of.field), self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> State:
        return scatters.no_rows(len(self._positions(schema)), self.of.shape(schema)[-1])

    def absorb(self, state: State, chunk: Chunk) -> State:
        assert isinstance(state, scatters.OpenScatters)
        x, valid = kept(chunk, self.where, self.of, TokenMask(self.of.field))
        xp = arrays.namespace(x)
        products = x.dtype if self.precision == "auto" else getattr(xp, self.precision)
        positions = self._positions(chunk.schema)
        for position in positions:
            for piece in arrays.tiles(x.shape[0], scatters.PIECE_ROWS):
                rows, there = x[piece, position, :], valid[piece, position]
                if not bool(xp.all(there)):
                    rows = rows[there]
                scatters.add_rows(state, position - positions.start, rows, products)
        return state

    def close(self, state: State) -> State:
        return scatters.closed(state)

    def merge(self, a: State, b: State) -> State:
        return scatters.merged(a, b)

    def finalize(self, state: State) -> Scatters:
        return scatters.on_host(state)

    def state_nbytes(self, schema: Schema) -> int:
        return scatters.state_nbytes(len(self._positions(schema)), self.of.shape(schema)[-1])

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        t, d = self.of.shape(schema)
        closing = scatters.merge_nbytes(len(self._positions(schema)), d)
        width = max(4, schema.spec(self.of.field).memory_dtype.itemsize)
        return max(closing, scatters.absorb_nbytes(rows, d, t * (d * width + 1)))

    def stripes(self, schema: Schema, n: int) -> Sequence[PositionMoments]:
        return [replaced(self, stripe=s) for s in scatters.cut(self._positions(schema), n)]

    def join(self, results: Sequence[Scatters]) -> Scatters:
        return scatters.joined(results)

    def _positions(self, schema: Schema) -> range:
        t, _ = self.of.shape(schema)
        return scatters.stripe_of(t, self.stripe, "positions")
