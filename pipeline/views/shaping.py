"""Shaped activations: features cut, pruned or scaled before a head reads them again."""

from __future__ import annotations

import math

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.views.base import View, floats_nbytes, memoised

LARGEST_RATIO = 500.0
"""Share of the kept sum that is the most an exponential takes: its features stay finite."""
SHAPES = ("p", "b", "s", "scale")


@value
class Clipped:
    """A vector view (d,) between bounds; with ``zero`` what is below the lower one is 0.

    Bounds are (1,), or (d,) for each entry. What zero would exceed, an upper bound below it, cuts
    that too.
    """

    of: View
    low: Const
    high: Const
    zero: bool = False

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        shape = self.shape(schema)
        return floats_nbytes(shape, rows) + 3 * floats_nbytes(shape, min(rows, arrays.TILE_ROWS))

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        xp = arrays.namespace(x)
        low, high = self.low.like(x), self.high.like(x)

        def clipped(x: Array) -> Array:
            least = xp.zeros_like(x) if self.zero else low
            return xp.minimum(xp.where(x < low, least, x), high)

        return arrays.by_tiles(clipped, x)


@value
class Pruned:
    """A vector view (d,) reshaped about its largest entries, row by row.

    The ``kept`` largest are K; of equal ones the first are. With r = sum z / sum of z over K,
    ``how`` is "p": z on K, else 0; "b": the mean (sum z) / |K| on K, else 0; "s": e^r z on K, else
    0; "scale": e^r z everywhere. Where the sum over K is not positive r is 1, as if nothing were
    pruned: with features of both signs it would say nothing. r is at most d / |K| otherwise, and
    taken as 500 above.
    """

    of: View
    kept: int
    how: str

    def __post_init__(self) -> None:
        if self.how not in SHAPES:
            raise ConfigError(f"how: {self.how!r} is unknown; choose {', '.join(SHAPES)}")

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        shape = self.shape(schema)
        return floats_nbytes(shape, rows) + 5 * floats_nbytes(shape, min(rows, arrays.TILE_ROWS))

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._shaped, self.of(chunk))

    def _shaped(self, x: Array) -> Array:
        xp = arrays.namespace(x)
        kept = largest(x, self.kept)
        pruned = xp.where(kept, x, xp.zeros_like(x))
        if self.how == "p":
            return pruned
        if self.how == "b":
            mean = xp.sum(x, axis=1, keepdims=True) / self.kept
            return xp.where(kept, mean, xp.zeros_like(x))
        return (x if self.how == "scale" else pruned) * xp.exp(ratios(x, pruned))[:, None]


@value
class ActivationRatio:
    """Sum of the positive entries of a vector view over that of the ``kept`` largest: ().

    At least 1, and 1 where no entry is positive.
    """

    of: View
    kept: int

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = floats_nbytes(self.of.shape(schema), min(rows, arrays.TILE_ROWS))
        return 8 * rows + 5 * tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._ratio, self.of(chunk))

    def _ratio(self, x: Array) -> Array:
        xp = arrays.namespace(x)
        positive = xp.where(x > 0, x, xp.zeros_like(x))
        kept = largest(positive, self.kept)
        return ratios(positive, xp.where(kept, positive, xp.zeros_like(x)))


@value
class OfPredicted:
    """What each entry of a vector view contributes to the logit of the predicted class: (d,)."""

    of: View
    weight: Const
    """W (k, d)."""
    predicted: View

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | self.predicted.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.predicted.shape(schema)
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        shape = self.shape(schema)
        return floats_nbytes(shape, rows) + 2 * floats_nbytes(shape, min(rows, arrays.TILE_ROWS))

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        xp = arrays.namespace(x)
        weight = self.weight.like(x)

        def contributions(x: Array, predicted: Array) -> Array:
            return x * xp.take(weight, predicted, axis=0)

        return arrays.by_tiles(contributions, x, self.predicted(chunk))


def kept_of(features: int, percentile: float) -> int:
    """Return how many of ``features`` entries are left when a percentage is pruned; at least 1."""
    return max(1, features - round(features * percentile / 100))


def check_percentile(name: str, percentile: float, most: float = 100.0) -> None:
    """Raise :class:`ConfigError` for a percentage outside 0 to ``most``."""
    if not 0 <= percentile <= most or math.isnan(percentile):
        raise ConfigError(
            f"{name}: {percentile!r}; expected a percentage from 0 to {most:g}, such as 90"
        )


def largest(x: Array, k: int) -> Array:
    """Tell which entries (n, d) are the k largest of their row; of equal ones, the first."""
    xp = arrays.namespace(x)
    least = arrays.top_k(x, k)[:, -1:]
    above = x > least
    tied = x == least
    left = k - xp.sum(xp.astype(above, xp.int64), axis=1, keepdims=True)
    return above | (tied & (xp.cumulative_sum(xp.astype(tied, xp.int64), axis=1) <= left))


def ratios(x: Array, pruned: Array) -> Array:
    """Return the sum (n,) of rows over that of their largest entries, without overflow."""
    xp = arrays.namespace(x)
    whole, part = xp.sum(x, axis=1), xp.sum(pruned, axis=1)
    one, most = xp.ones_like(whole), xp.full_like(whole, LARGEST_RATIO)
    within = (part > 0) & (whole < LARGEST_RATIO * part) & (whole > -LARGEST_RATIO * part)
    beyond = xp.where(whole > 0, most, -most)
    ratio = xp.where(within, whole / xp.where(within, part, one), beyond)
    return xp.where(part > 0, ratio, one)
