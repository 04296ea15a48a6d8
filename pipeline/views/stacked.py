"""Several scalar views as one vector."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.views.base import View, floats_nbytes, memoised


@value
class Stacked:
    """Views () side by side: (m,) float64."""

    of: tuple[View, ...]

    @property
    def fields(self) -> frozenset[str]:
        return frozenset[str]().union(*(view.fields for view in self.of))

    def shape(self, schema: Schema) -> tuple[int, ...]:
        for view in self.of:
            if view.shape(schema) != ():
                raise ConfigError(f"only views of one number per row can be stacked, not {view}")
        return (len(self.of),)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows) + sum(
            view.nbytes(schema, rows) for view in self.of
        )

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        columns = [view(chunk) for view in self.of]
        xp = arrays.namespace(*columns)
        return xp.stack([xp.astype(column, xp.float64) for column in columns], axis=1)


@value
class AllFinite:
    """Whether every entry of a row of a view is finite: () bool."""

    of: View

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows + floats_nbytes(self.of.shape(schema), rows, 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        xp = arrays.namespace(x)
        finite = xp.isfinite(x)
        return finite if x.ndim == 1 else xp.all(finite, axis=tuple(range(1, x.ndim)))
