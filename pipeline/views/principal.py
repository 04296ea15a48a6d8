"""Views of principal spaces: what projecting onto some directions leaves of a row."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import DataError
from pipeline.linalg import squared_norms
from pipeline.views.base import View, floats_nbytes, memoised


@value
class SquaredLength:
    """Squared length () of a vector view, (t,) of tokens."""

    of: View

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)[:-1]

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = floats_nbytes(self.of.shape(schema)[-1:], 2 * arrays.TILE_ROWS)
        return floats_nbytes(self.shape(schema), 2 * rows) + tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return squared_norms(self.of(chunk))


@value
class ReconstructionError:
    """Squared length () of (x - origin) less its projection on the axes, (t,) of tokens.

    It is the length of a difference, never a difference of lengths: where a row lies nearly in the
    principal space, what is left of it keeps its digits.
    """

    of: View
    axes: Const
    """(d, q), orthonormal columns."""
    origin: Const
    """(d,)."""

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        shape = self.of.shape(schema)
        if shape[-1:] != self.origin.shape:
            raise DataError(
                f"{schema.split}: principal axes over {self.origin.shape} features do not fit "
                f"features of shape {shape}"
            )
        return shape[:-1]

    def nbytes(self, schema: Schema, rows: int) -> int:
        d, q = self.axes.shape
        tile = floats_nbytes((4 * d + q,), arrays.TILE_ROWS)
        return floats_nbytes(self.shape(schema), 2 * rows) + arrays.products_nbytes(d, q) + tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        xp = arrays.namespace(x)
        axes, origin = self.axes.like(x), self.origin.like(x)
        back = xp.matrix_transpose(axes)

        def left(rows: Array) -> Array:
            rest = xp.astype(rows, xp.float64) - origin
            rest -= arrays.row_products(arrays.row_products(rest, axes), back)
            return xp.sum(rest * rest, axis=1)

        flat = xp.reshape(x, (-1, x.shape[-1]))
        return xp.reshape(arrays.by_tiles(left, flat), x.shape[:-1])
