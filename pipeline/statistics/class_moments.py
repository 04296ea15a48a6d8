"""Count, mean and within-class scatter: the statistic that four detectors and a head share."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import class_ids, fields_of, kept
from pipeline.views import (
    Labels,
    Pooled,
    TokenCounts,
    Valid,
    View,
    token_means,
    tokens_of,
)

PRECISIONS = ("auto", "float64", "float32")
NEGLIGIBLE = 2.0**-32
"""Share of a variance below which what was rounded need not be taken off it."""


class Moments(NamedTuple):
    """Moments of k classes over d features: the result, and the state of closed blocks."""

    count: Array
    """Rows (tokens, for token features) per class: (k,) int64."""
    mean: Array
    """Class means (k, d); zero for a class without rows."""
    scatter: Array
    """Sum over rows of (x - mean of its class)(x - mean of its class)': (d, d)."""

    @property
    def rows(self) -> int:
        """Rows of all classes."""
        return int(self.count.sum())

    @property
    def covariance(self) -> Array:
        """Within-class covariance, scatter / rows: (d, d)."""
        return self.scatter / self.rows

    @property
    def overall_mean(self) -> Array:
        """Mean of all rows: (d,)."""
        return self.count @ self.mean / self.rows

    @property
    def overall_covariance(self) -> Array:
        """Covariance of all rows about their mean, exactly from the same state: (d, d)."""
        spread = np.sqrt(self.count)[:, None] * (self.mean - self.overall_mean)
        return (self.scatter + spread.T @ spread) / self.rows


class OpenMoments(NamedTuple):
    """State inside a block: sums about a centre per class, fixed when the class first appears."""

    count: Array
    centre: Array
    total: Array
    """Sum of (x - centre) per class: (k, d)."""
    scatter: Array
    """Sum of (x - centre)(x - centre)' over all classes: (d, d)."""


State = Moments | OpenMoments


@value
class ClassMoments:
    """Count, mean and pooled within-class scatter of a vector or token view, per class.

    Rows are centred before they are multiplied, about the mean of their class in the first chunk
    of the block that holds it; blocks merge by the pairwise update of Chan, Golub and LeVeque
    (1983, "Algorithms for computing the sample variance"). Token features (t, d) count every
    valid token as a row with the label of its image: each token is centred about the mean of its
    image, and the image means, weighted by their number of tokens, about the class.

    ``precision`` is the dtype of the products of centred rows: ``auto`` is float64 for vectors and
    the dtype of the tokens, at least float32, for tokens; sums are float64 always. Result:
    :class:`Moments`.
    """

    of: View = Pooled()
    by: View = Labels()
    where: View = Valid()
    precision: str = "auto"
    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision: {self.precision!r}; choose {', '.join(PRECISIONS)}")
        if self.precision == "auto" and tokens_of(self.of) is None:
            object.__setattr__(self, "precision", "float64")  # one computation, one name

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, *self._image_views, self.where)

    @property
    def _image_views(self) -> tuple[View, ...]:
        """Mean and number of the valid tokens of each image, where the rows are tokens."""
        tokens = tokens_of(self.of)
        return () if tokens is None else (token_means(self.of), TokenCounts(tokens.field))

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def products(self) -> str:
        """Narrowest dtype in which products may be formed: bounds what the scatter resolves."""
        narrow = self.precision == "auto" and tokens_of(self.of) is not None
        return "float32" if narrow or self.precision == "float32" else "float64"

    def empty(self, schema: Schema) -> State:
        k, d = schema.classes, self.of.shape(schema)[-1]
        zeros = np.zeros((k, d))
        return OpenMoments(np.zeros(k, np.int64), zeros, zeros.copy(), np.zeros((d, d)))

    def absorb(self, state: State, chunk: Chunk) -> State:
        assert isinstance(state, OpenMoments)  # the engine never absorbs into a closed state
        x, y, *images = kept(chunk, self.where, self.of, self.by, *self._image_views)
        if x.shape[0] == 0:
            return state
        y = class_ids(chunk, self.where, y)
        mean, weight = images or (x, None)
        count, centre = self._seen(state, mean, y, weight)
        deviation = _about_classes(chunk, mean, y, centre)
        present, sums = arrays.sum_by_id(_times(deviation, weight), y)
        total = arrays.add_rows_into(state.total, present, sums)
        if weight is None:
            scatter = arrays.syrk_into(state.scatter, self._factors(chunk, deviation))
        else:
            scatter = self._tokens(state.scatter, x, mean, weight, deviation, chunk)
        return OpenMoments(count, centre, total, scatter)

    def _seen(
        self, state: OpenMoments, x: Array, y: Array, weight: Array | None
    ) -> tuple[Array, Array]:
        """Return counts and centres once rows ``x`` (n, d) of classes ``y`` have been seen."""
        xp = arrays.namespace(x)
        k = state.count.shape[0]
        if weight is None:
            added = arrays.bincount(y, k)
        else:
            present, sums = arrays.sum_by_id(weight, y)
            added = arrays.add_rows_into(xp.zeros_like(state.total[:, 0]), present, sums)
            added = xp.astype(added, xp.int64)
        rows = xp.take((state.count == 0) & (added > 0), y)
        centre = state.centre
        if bool(xp.any(rows)):
            ids, sums = arrays.sum_by_id(_times(x, weight)[rows], y[rows])
            means = sums / xp.astype(xp.take(added, ids), xp.float64)[:, None]
            centre = arrays.scatter_rows(centre, ids, means)
        return state.count + added, centre

    def _factors(self, chunk: Chunk, deviation: Array) -> Array:
        """Return vectors (n, d) in the dtype of the products."""
        xp = arrays.namespace(deviation)
        if self.products == "float64":
            return deviation
        factors = chunk.scratch("factors", deviation.shape, xp.float32)
        for rows in arrays.tiles(deviation.shape[0]):
            factors[rows, ...] = xp.astype(deviation[rows, ...], xp.float32)
        return factors

    def _tokens(
        self, scatter: Array, x: Array, mean: Array, weight: Array, deviation: Array, chunk: Chunk
    ) -> Array:
        """Add the scatter of tokens (n, t, d) about their image, and of that about its class.

        One product does both: the deviations of the means, times the root of their number of
        tokens, are further rows of it.
        """
        xp = arrays.namespace(x)
        n, t, d = x.shape
        centred = xp.float64 if self.precision == "float64" else x.dtype
        products = xp.float32 if self.precision == "float32" else centred
        factors = chunk.scratch("factors", ((t + 1) * n, d), products)
        excess = xp.zeros_like(mean[0, ...])
        for part in arrays.tiles(n, arrays.TILE_IMAGES):
            root = _root(weight[part])[:, None]
            centre = xp.astype(mean[part, ...], centred)
            residual = factors[part.start * t : part.stop * t, ...]
            residual = xp.reshape(residual, (-1, t, d))  # the same memory
            arrays.subtract_into(residual, x[part, ...], centre[:, None, :])
            between = xp.astype(deviation[part, ...] * root, products)
            factors[n * t + part.start : n * t + part.stop, ...] = between
            excess += xp.sum(_rounded_off(mean[part, ...], centred, root) ** 2, axis=0)
        before = xp.linalg.diagonal(scatter) + 0.0
        scatter = arrays.syrk_into(scatter, factors)
        # What rounding the centres to the dtype of the tokens added is taken off, where it is more
        # than the products round.
        if bool(xp.any(excess > NEGLIGIBLE * (xp.linalg.diagonal(scatter) - before))):
            for part in arrays.tiles(n):
                off = _rounded_off(mean[part, ...], centred, _root(weight[part])[:, None])
                scatter -= xp.matmul(xp.matrix_transpose(off), off)
        return scatter

    def close(self, state: State) -> State:
        assert isinstance(state, OpenMoments)
        xp = arrays.namespace(state.count)
        size = at_least_one(state.count)[:, None]
        offset = state.total / xp.sqrt(size)
        scatter = state.scatter - xp.matmul(xp.matrix_transpose(offset), offset)
        del offset
        return Moments(state.count, state.centre + state.total / size, scatter)

    def merge(self, a: State, b: State) -> State:
        assert isinstance(a, Moments)
        assert isinstance(b, Moments)
        xp = arrays.namespace(a.count)
        count = a.count + b.count
        size = at_least_one(count)
        share_a, share_b = (xp.astype(s.count, xp.float64) / size for s in (a, b))
        delta = b.mean - a.mean
        # One rounding of a mean far from zero; exact where one side has no rows and mean zero.
        mean = share_b[:, None] * delta
        mean += a.mean
        # Classes that only one side has add nothing.
        both = (a.count > 0) & (b.count > 0)
        delta = delta[both]
        delta *= xp.sqrt(share_a * share_b * size)[both][:, None]
        scatter = arrays.syrk_into(a.scatter + b.scatter, delta)
        return Moments(count, mean, scatter)

    def finalize(self, state: State) -> Moments:
        assert isinstance(state, Moments)
        return state

    def state_nbytes(self, schema: Schema) -> int:
        k, d = schema.classes, self.of.shape(schema)[-1]
        return 8 * (k + 2 * k * d + d * d)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        k, d = schema.classes, self.of.shape(schema)[-1]
        closing = 8 * (k * d + d * d + 8 * k)
        sums = 8 * min(rows, k) * d
        tokens = tokens_of(self.of)
        if tokens is not None:
            largest = self._tokens_nbytes(tokens.field, schema, rows)
        else:
            factors = 4 * rows * d if self.precision == "float32" else 0
            largest = factors + 8 * d * d
        tile = 16 * min(rows, arrays.TILE_ROWS) * d
        absorbing = rows * 16 * d + sums + max(sums + tile, largest)
        return max(closing, absorbing + 64 * rows + 32 * k)

    def _tokens_nbytes(self, field: str, schema: Schema, rows: int) -> int:
        """Bytes of tokens that are kept, of factors and their product, beside those of means."""
        t, d = self.of.shape(schema)
        stored = max(4, schema.spec(field).memory_dtype.itemsize)
        centred = 8 if self.precision == "float64" else stored
        products = 4 if self.precision == "float32" else centred
        tile = min(rows, arrays.TILE_IMAGES) * (t + 3) * (centred + products)
        product = 8 * d * (d + 3 * min(rows, arrays.TILE_ROWS))
        return d * (rows * (t * stored + (t + 1) * products + 8) + tile) + product

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def _about_classes(chunk: Chunk, x: Array, y: Array, centre: Array) -> Array:
    """Return rows ``x`` (n, d) less the centre of their class, in scratch memory."""
    xp = arrays.namespace(x)
    deviation = chunk.scratch("deviation", x.shape, xp.float64)
    for rows in arrays.tiles(x.shape[0]):
        deviation[rows, ...] = x[rows, ...] - xp.take(centre, y[rows], axis=0)
    return deviation


def _rounded_off(mean: Array, dtype: Any, root: Array) -> Array:
    """Return what means (n, d) lose as ``dtype``, times the root of their number of tokens."""
    xp = arrays.namespace(mean)
    return (mean - xp.astype(xp.astype(mean, dtype), xp.float64)) * root


def _times(x: Array, weight: Array | None) -> Array:
    return x if weight is None else x * arrays.namespace(x).astype(weight, x.dtype)[:, None]


def _root(weight: Array) -> Array:
    xp = arrays.namespace(weight)
    return xp.sqrt(xp.astype(weight, xp.float64))


def at_least_one(count: Array) -> Array:
    """Return counts as float64 that may divide; classes without rows count one."""
    xp = arrays.namespace(count)
    return xp.astype(xp.where(count > 0, count, xp.ones_like(count)), xp.float64)
