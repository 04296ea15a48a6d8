"""The mean of the tokens of an image, without the rank-one part of their matrix."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.views.base import floats_nbytes, memoised
from pipeline.views.features import Tokens
from pipeline.views.token_mask import TokenMask


@value
class WithoutRankOne:
    """Mean (d,) of the rows of X - s u v', s the largest singular value of the tokens X (t, d).

    u and v come from the eigenvectors of the smaller of X X' and X' X, float64. Masked tokens are
    no rows of X; a row without a valid one is NaN.
    """

    of: Tokens = Tokens()

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)[1:]

    def nbytes(self, schema: Schema, rows: int) -> int:
        t, d = self.of.shape(schema)
        tile = min(rows, arrays.TILE_IMAGES) * (3 * t * d + 3 * min(t, d) ** 2 + 6 * d)
        return floats_nbytes((d,), rows) + 8 * tile + rows * t

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x, valid = self.of(chunk), TokenMask(self.of.field)(chunk)
        return arrays.by_tiles(_mean_of_rest, x, valid, tile_rows=arrays.TILE_IMAGES)


def _mean_of_rest(x: Array, valid: Array) -> Array:
    xp = arrays.namespace(x)
    x = xp.astype(x, xp.float64)
    usable = valid[:, :, None] & xp.isfinite(x)  # eigenvectors of anything else fail for all rows
    known = xp.where(usable, x, xp.zeros_like(x))
    count = xp.astype(xp.count_nonzero(valid, axis=1), xp.float64)
    bad = (count == 0) | xp.any(valid[:, :, None] & ~usable, axis=(1, 2))
    count = xp.where(bad, xp.full_like(count, xp.nan), count)[:, None]
    flipped = xp.matrix_transpose(known)
    if x.shape[1] <= x.shape[2]:
        u = _leading(xp.matmul(known, flipped))
        share = xp.sum(u, axis=1)[:, None]
        removed = share * xp.matmul(flipped, u[:, :, None])[:, :, 0]
    else:
        v = _leading(xp.matmul(flipped, known))
        share = xp.sum(xp.matmul(known, v[:, :, None])[:, :, 0], axis=1)[:, None]
        removed = share * v
    return (xp.sum(known, axis=1) - removed) / count


def _leading(gram: Array) -> Array:
    """Return the eigenvector (n, m) of the largest eigenvalue of each matrix (n, m, m)."""
    xp = arrays.namespace(gram)
    scale = xp.max(xp.abs(gram), axis=(1, 2))[:, None, None]
    gram = gram / xp.where(scale > 0, scale, xp.ones_like(scale))
    return xp.linalg.eigh(gram)[1][:, :, gram.shape[1] - 1]
