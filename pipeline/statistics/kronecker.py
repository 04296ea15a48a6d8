"""The two sums of a flip-flop: scatter over tokens given that over features, and the reverse."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.statistics.base import fields_of, kept
from pipeline.statistics.tied_moments import piece_images
from pipeline.views import TokenMask, Tokens, Valid, View
from pipeline.views.positions import position_residuals, whitened_images


class PairSums(NamedTuple):
    """Sums over images, and over how many of them: the state and the result."""

    count: Array
    """Images, or tokens, that counted: (t, t) or (1,) int64."""
    scatter: Array
    """(t, t) or (d, d)."""


@value
class TokenScatter:
    """Sum over images of R W W' R' (t, t), R (t, d) the residuals of the tokens, W ``basis``.

    Masked tokens have residual 0; ``count`` (t, t) is how many images had both tokens. Result:
    :class:`PairSums`.
    """

    of: Tokens
    means: Const
    """Means of the positions (t, d)."""
    basis: Const
    """W (d, r)."""
    where: View = Valid()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, TokenMask(self.of.field), self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> PairSums:
        t, _ = self.of.shape(schema)
        return PairSums(np.zeros((t, t), np.int64), np.zeros((t, t)))

    def absorb(self, state: PairSums, chunk: Chunk) -> PairSums:
        x, valid = kept(chunk, self.where, self.of, TokenMask(self.of.field))
        xp = arrays.namespace(x)
        means, basis = self.means.like(x), self.basis.like(x)
        count, scatter = state
        for piece in arrays.tiles(x.shape[0], piece_images(x.shape[1])):
            there = valid[piece, ...]
            residual = position_residuals(x[piece, ...], there, means, basis)
            wide = xp.reshape(xp.permute_dims(residual, (0, 2, 1)), (-1, x.shape[1]))
            scatter = arrays.syrk_into(scatter, wide)
            present = xp.astype(there, xp.float64)
            pairs = xp.matmul(xp.matrix_transpose(present), present)
            count = count + xp.astype(pairs, xp.int64)
        return PairSums(count, scatter)

    def close(self, state: PairSums) -> PairSums:
        return state

    def merge(self, a: PairSums, b: PairSums) -> PairSums:
        return PairSums(a.count + b.count, a.scatter + b.scatter)

    def finalize(self, state: PairSums) -> PairSums:
        return PairSums(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return 16 * self.of.shape(schema)[0] ** 2

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        width = max(self.basis.shape)
        return _absorb_nbytes(self.of, schema, rows, width) + 32 * self.of.shape(schema)[0] ** 2

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


@value
class FeatureScatter:
    """Sum over images of R' U^-1 R (d, d), R (t, d) the residuals of the valid tokens.

    ``tokens`` is U (t, t), of which an image uses the rows and columns of its valid tokens;
    ``count`` (1,) is the number of tokens. Result: :class:`PairSums`.
    """

    of: Tokens
    means: Const
    """Means of the positions (t, d)."""
    tokens: Const
    """U (t, t), positive definite."""
    where: View = Valid()
    version: ClassVar[int] = 1

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, TokenMask(self.of.field), self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> PairSums:
        _, d = self.of.shape(schema)
        return PairSums(np.zeros(1, np.int64), np.zeros((d, d)))

    def absorb(self, state: PairSums, chunk: Chunk) -> PairSums:
        x, valid = kept(chunk, self.where, self.of, TokenMask(self.of.field))
        xp = arrays.namespace(x)
        means, tokens = self.means.like(x), self.tokens.like(x)
        count, scatter = state
        for piece in arrays.tiles(x.shape[0], piece_images(x.shape[1])):
            there = valid[piece, ...]
            residual = xp.astype(x[piece, ...], xp.float64) - means
            residual = xp.where(there[:, :, None], residual, xp.zeros_like(residual))
            white = whitened_images(residual, there, tokens)
            scatter = arrays.syrk_into(scatter, xp.reshape(white, (-1, x.shape[2])))
            count = count + xp.count_nonzero(there)
        return PairSums(count, scatter)

    def close(self, state: PairSums) -> PairSums:
        return state

    def merge(self, a: PairSums, b: PairSums) -> PairSums:
        return PairSums(a.count + b.count, a.scatter + b.scatter)

    def finalize(self, state: PairSums) -> PairSums:
        return PairSums(*(arrays.to_host(x) for x in state))

    def state_nbytes(self, schema: Schema) -> int:
        return 8 * (1 + self.of.shape(schema)[1] ** 2)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        t, d = self.of.shape(schema)
        factors = 3 * 8 * min(rows, piece_images(t)) * t * t
        return _absorb_nbytes(self.of, schema, rows, d) + factors + 8 * d * d

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def _absorb_nbytes(of: Tokens, schema: Schema, rows: int, width: int) -> int:
    """Bytes of the tokens that are kept, of a piece of them and its residuals, and of products."""
    t, d = of.shape(schema)
    itemsize = max(4, schema.spec(of.field).memory_dtype.itemsize)
    piece = 8 * min(rows, piece_images(t)) * t * (d + 3 * width)
    return rows * (t * (d * itemsize + 1) + 64) + piece + arrays.products_nbytes(d, width)
