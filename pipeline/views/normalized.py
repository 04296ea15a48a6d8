"""Features scaled towards the unit sphere, each row or token by itself."""

from __future__ import annotations

import math

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.views.base import View, floats_nbytes, memoised, valid_tokens
from pipeline.views.features import Pooled, Tokens, mean_of_valid

LOG_LARGEST = 700.0
"""Logarithm of the largest factor: what is scaled stays finite."""


@value
class Normalized:
    """Vectors (d,), or tokens (t, d), divided by a power of their length: z / |z|^beta.

    Directions are kept; beta = 1 gives unit vectors, beta = 0 changes nothing. A zero vector stays
    zero. Tokens keep their dtype; where the split has a ``mask``, tokens that are not valid hold
    the mean of the row's valid ones once these are scaled, as in :class:`Tokens`.
    """

    of: View
    beta: float = 1.0

    def __post_init__(self) -> None:
        check_normalize(self.beta)

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        shape = self.shape(schema)
        itemsize = _itemsize(self.of, schema)
        tile = min(rows * math.prod(shape[:-1]), arrays.TILE_ROWS)
        scaled = floats_nbytes(shape, rows, itemsize) + floats_nbytes(shape[-1:], tile, 48)
        if len(shape) < 2 or "mask" not in schema.arrays:
            return scaled
        means = floats_nbytes(shape[1:], rows, 8 + itemsize)
        return scaled + means + floats_nbytes((shape[0] + 1, *shape[1:]), rows, itemsize)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        xp = arrays.namespace(x)
        flat = xp.reshape(x, (-1, x.shape[-1]))
        y = xp.reshape(arrays.by_tiles(lambda rows: _scaled(rows, self.beta), flat), x.shape)
        if x.ndim < 3 or "mask" not in chunk.arrays:
            return y
        mean = xp.astype(_mean_of_valid(y, chunk, self), y.dtype)
        return xp.where(valid_tokens(chunk)[:, :, None], y, mean[:, None, :])


@value
class TokenMeans:
    """Mean (d,) float64 of the valid tokens of a token view; NaN without a valid one."""

    of: View

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)[-1:]

    def nbytes(self, schema: Schema, rows: int) -> int:
        shape = self.of.shape(schema)
        images = 2 * min(rows, arrays.TILE_IMAGES) if "mask" in schema.arrays else 0
        masked = floats_nbytes(shape, images, _itemsize(self.of, schema))
        return masked + floats_nbytes(shape, 1) + floats_nbytes(shape[1:], rows) + 48 * rows

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return _mean_of_valid(self.of(chunk), chunk, self.of)


def normalized(of: View, beta: float) -> View:
    """Return z / |z|^beta of a view: the view itself where ``beta`` is 0, so that it is shared."""
    check_normalize(beta)
    return Normalized(of, beta) if beta else of


def check_normalize(beta: float) -> None:
    """Raise :class:`ConfigError` for an exponent that is not finite."""
    if not math.isfinite(beta):
        raise ConfigError(f"normalize: {beta!r}; expected a finite exponent, such as 0 or 1")


def tokens_of(view: View) -> Tokens | None:
    """Return the tokens that a view gives, as they are or normalised; None of other views."""
    of = view.of if isinstance(view, Normalized) else view
    return of if isinstance(of, Tokens) else None


def token_means(view: View) -> View:
    """Return the view of the means of the valid tokens of a token view."""
    return Pooled("mean", view.field) if isinstance(view, Tokens) else TokenMeans(view)


def _itemsize(of: View, schema: Schema) -> int:
    tokens = tokens_of(of)
    return 8 if tokens is None else max(4, schema.spec(tokens.field).memory_dtype.itemsize)


def _scaled(x: Array, beta: float) -> Array:
    """Return vectors (..., d) over a power of their length, without overflow on the way."""
    xp = arrays.namespace(x)
    y = xp.astype(x, xp.float64)
    unit = xp.ones_like(y[..., :1])
    if arrays.itemsize(x.dtype) == 8:  # squares of narrower floats neither overflow nor vanish
        unit = _or_one(xp.max(xp.abs(y), axis=-1, keepdims=True))
        y /= unit
    length = _or_one(xp.sqrt(xp.sum(y * y, axis=-1, keepdims=True)))
    log_factor = (1.0 - beta) * (xp.log(unit) + xp.log(length))
    bounded = xp.where(log_factor > LOG_LARGEST, xp.full_like(log_factor, LOG_LARGEST), log_factor)
    y *= xp.exp(bounded) / length
    return xp.astype(y, x.dtype, copy=False)


def _or_one(lengths: Array) -> Array:
    """Return lengths with 1 in place of 0."""
    xp = arrays.namespace(lengths)
    return xp.where(lengths == 0, xp.ones_like(lengths), lengths)


def _mean_of_valid(y: Array, chunk: Chunk, of: View) -> Array:
    tokens = tokens_of(of)
    assert tokens is not None  # no other view has tokens
    return mean_of_valid(y, chunk, tokens.field)
