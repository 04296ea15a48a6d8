"""The mask of tokens as a view, for statistics that look at every token by itself."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.views.base import memoised, valid_tokens
from pipeline.views.features import Tokens


@value
class TokenMask:
    """Which tokens are valid: (t,) bool; all of them in a split without ``mask``."""

    field: str = "features"

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return Tokens(self.field).shape(schema)[:1]

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows * self.shape(schema)[0]

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        if "mask" in chunk.arrays:
            return valid_tokens(chunk)
        x = chunk[self.field]
        xp = arrays.namespace(x)
        return xp.ones(x.shape[:2], dtype=xp.bool, device=arrays.device_of(x))
