"""Tokens by their position: some of their channels, and residuals about a mean per position."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.views.base import floats_nbytes, memoised
from pipeline.views.features import Tokens


@value
class Channels:
    """Some of the features of every token: (t, q)."""

    of: Tokens
    index: Const
    """Which features: (q,) int64."""

    @property
    def field(self) -> str:
        return self.of.field

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return (self.of.shape(schema)[0], *self.index.shape)

    def nbytes(self, schema: Schema, rows: int) -> int:
        itemsize = max(4, schema.spec(self.field).memory_dtype.itemsize)
        return floats_nbytes(self.shape(schema), rows, itemsize)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        return arrays.namespace(x).take(x, self.index.like(x), axis=2)


def position_residuals(x: Array, valid: Array, means: Array, basis: Array) -> Array:
    """Return (x_i - mean_i) basis of tokens ``x`` (n, t, d), float64 (n, t, q); 0 where masked.

    ``means`` (t, d) are those of the positions, ``basis`` (d, q) is one for all of them.
    """
    xp = arrays.namespace(x, means)
    residual = arrays.row_products(xp.astype(x, xp.float64) - means, basis)
    return xp.where(valid[:, :, None], residual, xp.zeros_like(residual))


def whitened_images(residual: Array, valid: Array, covariance: Array) -> Array:
    """Return L^-1 R of residuals (n, t, q), L the Cholesky factor of a covariance (t, t) of tokens.

    Each image uses the rows and columns of its valid tokens; the residuals of the others are 0 and
    stay so. The squared length of the result is that of R under the covariance.
    """
    xp = arrays.namespace(residual)
    both = valid[:, :, None] & valid[:, None, :]
    alone = xp.eye(valid.shape[1], dtype=xp.float64, device=arrays.device_of(residual))
    own = xp.where(both, covariance, alone)
    return arrays.solve_lower(xp.linalg.cholesky(own), residual)


def tile_images(tokens: int) -> int:
    """Return the rows of a tile of images: whole tiles of products are mostly filled by tokens."""
    return max(1, 2 * arrays.TILE_ROWS // tokens)
