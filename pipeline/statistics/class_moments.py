"""Count, mean and within-class scatter: the statistic that four detectors and a head share."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import class_ids, fields_of, kept
from pipeline.views import Labels, Pooled, TokenCounts, Tokens, Valid, View

PRECISIONS = ("auto", "float64", "float32")


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
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError(f"precision: {self.precision!r}; choose {', '.join(PRECISIONS)}")

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.by, *self._image_views, self.where)

    @property
    def _image_views(self) -> tuple[View, ...]:
        """Mean and number of the valid tokens of each image, where the rows are tokens."""
        if not isinstance(self.of, Tokens):
            return ()
        return (Pooled("mean", self.of.field), TokenCounts(self.of.field))

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    @property
    def products(self) -> str:
        """Narrowest dtype in which products may be formed: bounds what the scatter resolves."""
        narrow = self.precision == "auto" and isinstance(self.of, Tokens)
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
        if not images:
            return self._about_centres(state, x, y, None)
        mean, weight = images
        scatter = self._about_images(state.scatter, x, mean, weight, chunk)
        return self._about_centres(state._replace(scatter=scatter), mean, y, weight)

    def _about_images(
        self, scatter: Array, x: Array, mean: Array, weight: Array, chunk: Chunk
    ) -> Array:
        """Add the scatter of tokens (n, t, d) about the mean (n, d) of their image."""
        xp = arrays.namespace(x)
        n, t, d = x.shape
        dtype = xp.float64 if self.precision == "float64" else x.dtype
        centre = xp.astype(mean, dtype)
        residual = chunk.scratch("residual", (n, t, d), dtype)
        residual = arrays.subtract_into(residual, x, centre[:, None, :])
        if self.precision == "float32":
            residual = xp.astype(residual, xp.float32, copy=False)
        scatter = arrays.syrk_into(scatter, xp.reshape(residual, (n * t, d)))
        if dtype == xp.float64:
            return scatter
        # The centre is the mean rounded to the dtype of the tokens: what that adds is taken off.
        rounding = (mean - xp.astype(centre, xp.float64)) * _root(weight)[:, None]
        return scatter - xp.matmul(xp.matrix_transpose(rounding), rounding)

    def _about_centres(
        self, state: OpenMoments, x: Array, y: Array, weight: Array | None
    ) -> OpenMoments:
        """Add vectors ``x`` (n, d) of classes ``y``, each counted ``weight`` times."""
        xp = arrays.namespace(x)
        k = state.count.shape[0]
        if weight is None:
            added = arrays.bincount(y, k)
        else:
            added = xp.astype(arrays.segment_sum(weight, y, k), xp.int64)
        centre = state.centre
        new = (state.count == 0) & (added > 0)
        if bool(xp.any(new)):
            mean = arrays.segment_sum(_times(x, weight), y, k) / _at_least_one(added)[:, None]
            centre = xp.where(new[:, None], mean, centre)
        deviation = x - xp.take(centre, y, axis=0)
        total = arrays.add_into(state.total, arrays.segment_sum(_times(deviation, weight), y, k))
        if weight is not None:
            deviation = deviation * _root(weight)[:, None]
        if self.precision == "float32":
            deviation = xp.astype(deviation, xp.float32)
        scatter = arrays.syrk_into(state.scatter, deviation)
        return OpenMoments(state.count + added, centre, total, scatter)

    def close(self, state: State) -> State:
        assert isinstance(state, OpenMoments)
        xp = arrays.namespace(state.count)
        size = _at_least_one(state.count)[:, None]
        offset = state.total / xp.sqrt(size)
        scatter = state.scatter - xp.matmul(xp.matrix_transpose(offset), offset)
        return Moments(state.count, state.centre + state.total / size, scatter)

    def merge(self, a: State, b: State) -> State:
        assert isinstance(a, Moments)
        assert isinstance(b, Moments)
        xp = arrays.namespace(a.count)
        count = a.count + b.count
        size = _at_least_one(count)
        share_a, share_b = (xp.astype(s.count, xp.float64) / size for s in (a, b))
        delta = b.mean - a.mean
        # One rounding of a mean far from zero; exact where one side has no rows and mean zero.
        mean = a.mean + share_b[:, None] * delta
        between = delta * xp.sqrt(share_a * share_b * size)[:, None]
        scatter = a.scatter + b.scatter + xp.matmul(xp.matrix_transpose(between), between)
        return Moments(count, mean, scatter)

    def finalize(self, state: State) -> Moments:
        assert isinstance(state, Moments)
        return state

    def state_nbytes(self, schema: Schema) -> int:
        k, d = schema.classes, self.of.shape(schema)[-1]
        return 8 * (k + 2 * k * d + d * d)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        k, shape = schema.classes, self.of.shape(schema)
        d = shape[-1]
        vectors = 8 * (4 * rows * d + 6 * rows + 4 * k * d + 2 * d * d + 4 * k)
        if not isinstance(self.of, Tokens):
            return vectors
        stored = max(4, schema.spec(self.of.field).memory_dtype.itemsize)
        residual = 8 if self.precision == "float64" else stored
        product = 4 if self.precision == "float32" and stored > 4 else 0
        return vectors + rows * shape[0] * d * (stored + residual + product)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: object) -> object:
        return results


def _times(x: Array, weight: Array | None) -> Array:
    return x if weight is None else x * arrays.namespace(x).astype(weight, x.dtype)[:, None]


def _root(weight: Array) -> Array:
    xp = arrays.namespace(weight)
    return xp.sqrt(xp.astype(weight, xp.float64))


def _at_least_one(count: Array) -> Array:
    """Return counts as float64 that may divide; classes without rows count one."""
    xp = arrays.namespace(count)
    return xp.astype(xp.where(count > 0, count, xp.ones_like(count)), xp.float64)
