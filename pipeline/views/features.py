"""Views of features: tokens, pooled vectors, linear heads and projections."""

from __future__ import annotations

from math import prod

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import BudgetError, ConfigError, DataError
from pipeline.views.base import View, floats_nbytes, memoised, valid_tokens
from pipeline.views.pooling import REDUCTIONS, pooled, tile_nbytes

POOLS = ("mean", "cls", *REDUCTIONS)
"""Ways to make one vector of the tokens of an image."""
FLATTEN, FORCED = "flatten", "force_flatten"


def row_shape(schema: Schema, field: str) -> tuple[int, ...]:
    """Return the shape of a row of features; :class:`DataError` where tokens are not first."""
    spec = schema.spec(field)
    if "T" in spec.layout[1:]:
        raise DataError(
            f"{schema.split}: {field} is laid out {spec.layout}, rows of {spec.shape}; tokens come "
            "first: store it as TD"
        )
    return spec.shape


@value
class Stored:
    """An array as it is stored."""

    field: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return schema.spec(self.field).shape

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 0

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return chunk[self.field]


@value
class Tokens:
    """Token features (t, d), at least float32.

    Where the split has a ``mask``, tokens that are not valid hold the mean of the row's valid
    ones: they then change neither the mean of the row nor the scatter about it.
    """

    field: str = "features"

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        shape = row_shape(schema, self.field)
        if len(shape) != 2:
            raise DataError(
                f"{schema.split}: {self.field} has rows of shape {shape}, tokens need (t, d); "
                "features that are pooled already suit detectors with pool: mean"
            )
        return shape

    def nbytes(self, schema: Schema, rows: int) -> int:
        stored = schema.spec(self.field).memory_dtype.itemsize
        tokens, d = self.shape(schema)
        widened = tokens if stored < 4 else 0
        nbytes = floats_nbytes((widened, d), rows, 4)
        if "mask" not in schema.arrays:
            return nbytes
        mean = Pooled("mean", self.field).nbytes(schema, rows)
        return nbytes + mean + floats_nbytes((tokens + 1, d), rows, max(4, stored))

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = chunk[self.field]
        xp = arrays.namespace(x)
        if arrays.itemsize(x.dtype) < 4:
            x = xp.astype(x, xp.float32)
        if "mask" not in chunk.arrays:
            return x
        mean = xp.astype(Pooled("mean", self.field)(chunk), x.dtype)
        return xp.where(valid_tokens(chunk)[:, :, None], x, mean[:, None, :])


@value
class TokenCounts:
    """Valid tokens of each row, () int64: t without a mask, 1 for features without tokens."""

    field: str = "features"

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows * 8

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = chunk[self.field]
        xp = arrays.namespace(x)
        if x.ndim == 3 and "mask" in chunk.arrays:
            return xp.astype(xp.count_nonzero(valid_tokens(chunk), axis=1), xp.int64)
        tokens = x.shape[1] if x.ndim == 3 else 1
        return xp.full((chunk.rows,), tokens, dtype=xp.int64, device=arrays.device_of(x))


@value
class Pooled:
    """One float64 feature vector (d,) per row, from its valid tokens.

    ``mean`` of the tokens; ``cls``, the class token, stored as an array of that name; ``max``, the
    largest value of each feature; ``gem``, its generalised mean (mean of x^3)^(1/3), in which
    values below 1e-6 count as 1e-6 (Radenovic, Tolias and Chum 2018, "Fine-tuning CNN image
    retrieval with no human annotation", arXiv 1711.02512, and its code); ``topk``, the mean of the
    largest 10 % of the values of each feature, at least one (Durand, Thome and Cord 2016,
    "WELDON", CVPR, without its lowest regions). Features without a token axis pass through. A row
    without a valid token, or with a value that is not finite, is not finite.

    ``flatten`` is refused with what it would cost, since a covariance of t x d features is
    singular and does not fit. ``force_flatten`` does it: (t x d,), with the mean of the row's
    valid tokens in place of masked ones.

    Raises :class:`ConfigError` for another ``how``, or for a class token of another ``field``, and
    :class:`BudgetError` for ``flatten``.
    """

    how: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.how not in (*POOLS, FLATTEN, FORCED):
            raise ConfigError(
                f"pool: {self.how!r} is not known here; choose {', '.join(POOLS)} (or tokens, for "
                "detectors that score tokens)"
            )
        if self.how == "cls" and self.field != "features":
            raise ConfigError(
                f"pool: cls is the stored array cls, not part of {self.field}; store the class "
                "tokens of that tap as an array (n, d) and name it as the field"
            )

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({"cls" if self.how == "cls" else self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        (field,) = self.fields
        shape = row_shape(schema, field)
        if len(shape) not in (1, 2):
            raise DataError(
                f"{schema.split}: {field} has rows of shape {shape}; expected (d,) or (t, d)"
            )
        if self.how == FLATTEN and len(shape) == 2:
            raise BudgetError(_cost_of_flattening(schema, field))
        return (prod(shape),) if self.how == FORCED else shape[-1:]

    def nbytes(self, schema: Schema, rows: int) -> int:
        (field,) = self.fields
        spec = schema.spec(field)
        itemsize = spec.memory_dtype.itemsize
        own = floats_nbytes(self.shape(schema), rows)
        if self.how in (FLATTEN, FORCED):
            return own + (Tokens(field).nbytes(schema, rows) if len(spec.shape) == 2 else 0)
        images = 2 * min(rows, arrays.TILE_IMAGES) if "mask" in schema.arrays else 0
        masked = floats_nbytes(spec.shape, images, itemsize)
        widened = floats_nbytes(spec.shape, 1) if len(spec.shape) == 2 else 0
        if self.how in REDUCTIONS and len(spec.shape) == 2:
            tile = tile_nbytes(self.how, spec.shape, itemsize, masked="mask" in schema.arrays)
            mean = Pooled("mean", field).nbytes(schema, rows)
            return own + mean + min(rows, arrays.TILE_IMAGES) * tile
        return masked + widened + own + 48 * rows

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        (field,) = self.fields
        x = chunk[field]
        xp = arrays.namespace(x)
        if x.ndim == 2:
            return xp.astype(x, xp.float64)
        if self.how in REDUCTIONS:
            valid = valid_tokens(chunk) if "mask" in chunk.arrays else None
            return pooled(self.how, x, Pooled("mean", field)(chunk), valid)
        if self.how == FORCED:
            tokens = xp.astype(Tokens(field)(chunk), xp.float64)
            return xp.reshape(tokens, (x.shape[0], prod(x.shape[1:])))
        return mean_of_valid(x, chunk, field)


def _cost_of_flattening(schema: Schema, field: str) -> str:
    """Say what a covariance of flattened tokens would take, and what to do instead."""
    t, d = schema.spec(field).shape
    n, k, width = schema.rows, schema.classes, t * d
    rank = max(0, min(n - k, width))
    flop = 2 * n * width**2 + width**3 / 3
    return (
        f"{schema.split}: pool: flatten makes {width:,} features of {t} x {d} tokens; their "
        f"covariance takes {8 * width**2 / 1e9:,.3g} GB and {flop / 1e12:,.3g} TFLOP to form and "
        f"to factor, and has rank {rank:,} at most from {n:,} rows of {k:,} classes. Choose pool: "
        "mean, or the detector matrix_normal, whose covariance is that of tokens times that of "
        "features; pool: force_flatten does it all the same"
    )


def mean_of_valid(x: Array, chunk: Chunk, field: str) -> Array:
    """Return the mean (n, d) float64 of the valid ones of tokens ``x`` (n, t, d); NaN of none."""
    xp = arrays.namespace(x)
    count = xp.astype(TokenCounts(field)(chunk), xp.float64)
    if "mask" in chunk.arrays:
        valid = valid_tokens(chunk)
        total = arrays.by_tiles(_sum_of_valid, x, valid, tile_rows=arrays.TILE_IMAGES)
    else:
        total = arrays.sum_tokens(x)
    total /= xp.where(count > 0, count, xp.full_like(count, xp.nan))[:, None]
    return total


def _sum_of_valid(x: Array, valid: Array) -> Array:
    xp = arrays.namespace(x)
    return xp.sum(xp.where(valid[:, :, None], x, xp.zeros_like(x)), axis=1, dtype=xp.float64)


@value
class Linear:
    """Logits (k,) of a linear head: W x + b."""

    of: View
    weight: Const
    """W (k, d)."""
    bias: Const
    """b (k,)."""

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        classes, features = self.weight.shape
        if self.of.shape(schema) != (features,) or classes != schema.classes:
            raise DataError(
                f"{schema.split}: a head of shape {self.weight.shape} does not fit features "
                f"{self.of.shape(schema)} and {schema.classes} classes"
            )
        return (classes,)

    def nbytes(self, schema: Schema, rows: int) -> int:
        products = arrays.products_nbytes(*reversed(self.weight.shape))
        return floats_nbytes(self.shape(schema), rows) + products

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        weight = self.weight.like(x)
        logits = arrays.row_products(x, arrays.namespace(x).matrix_transpose(weight))
        logits += self.bias.like(x)
        return logits


@value
class Projected:
    """Coordinates (q,) of a vector view, (t, q) of tokens, in a basis: (x - origin) basis."""

    of: View
    basis: Const
    """(d, q), orthonormal columns or a whitening matrix."""
    origin: Const
    """(d,)."""

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        shape = self.of.shape(schema)
        if shape[-1:] != self.origin.shape:
            raise DataError(
                f"{schema.split}: a basis over {self.origin.shape} features does not fit features "
                f"of shape {shape}"
            )
        return (*shape[:-1], self.basis.shape[1])

    def nbytes(self, schema: Schema, rows: int) -> int:
        products = arrays.products_nbytes(*self.basis.shape)
        return floats_nbytes(self.shape(schema), rows) + products

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        return arrays.row_products(x, self.basis.like(x), self.origin.like(x))


def features(pool: str, field: str = "features") -> View:
    """Return the view that the ``pool`` of a detector names: every token, or a pooled vector."""
    return Tokens(field) if pool == "tokens" else Pooled(pool, field)
