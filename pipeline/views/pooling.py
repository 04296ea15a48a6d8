"""How the tokens of an image become one vector, beside their mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array

GEM_FLOOR = 1e-6
"""Values below it count as it in a generalised mean, (mean of x^3)^(1/3)."""
TOP_SHARE = 10
"""``topk`` is the mean of the largest one in so many values of a feature, at least one."""


def pooled(how: str, x: Array, mean: Array, valid: Array | None = None) -> Array:
    """Return float64 (n, d): how the valid tokens of ``x`` (n, t, d) are pooled.

    ``mean`` (n, d) is that of the valid tokens: where it is not finite, the result is NaN, since
    a maximum would hide a token of minus infinity.
    """
    reduce = REDUCTIONS[how]

    def of_images(x: Array, mean: Array, *valid: Array) -> Array:
        xp = arrays.namespace(x)
        found = xp.astype(reduce(x, *valid), xp.float64, copy=False)
        return xp.where(xp.isfinite(mean), found, xp.full_like(found, xp.nan))

    masks = () if valid is None else (valid,)
    with np.errstate(over="ignore", invalid="ignore"):  # of rows that are not finite
        return arrays.by_tiles(of_images, x, mean, *masks, tile_rows=arrays.TILE_IMAGES)


def _largest(x: Array, valid: Array | None = None) -> Array:
    xp = arrays.namespace(x)
    return xp.max(_or_else(x, valid, -xp.inf), axis=1)


def _generalised_mean(x: Array, valid: Array | None = None) -> Array:
    xp = arrays.namespace(x)
    x = xp.astype(x, xp.float64)
    x = xp.where(x < GEM_FLOOR, xp.full_like(x, GEM_FLOOR), x)
    cubes = _or_else(x * x * x, valid, 0.0)
    return (xp.sum(cubes, axis=1) / _counts(x, valid)) ** (1 / 3)


def _mean_of_largest(x: Array, valid: Array | None = None) -> Array:
    xp = arrays.namespace(x)
    ordered = xp.sort(_or_else(x, valid, -xp.inf), axis=1)
    most = -(-x.shape[1] // TOP_SHARE)
    top = xp.flip(ordered[:, x.shape[1] - most :, :], axis=1)
    count = xp.ceil(_counts(x, valid) / TOP_SHARE)
    if valid is not None:
        place = xp.arange(most, dtype=xp.float64, device=arrays.device_of(x))
        top = _or_else(top, place[None, :] < count, 0.0)
    return xp.sum(top, axis=1, dtype=xp.float64) / count


REDUCTIONS: Mapping[str, Callable[..., Array]] = {
    "max": _largest,
    "gem": _generalised_mean,
    "topk": _mean_of_largest,
}


def tile_nbytes(how: str, shape: tuple[int, ...], itemsize: int, *, masked: bool) -> int:
    """Return the bytes of temporaries of :func:`pooled` for each row of a tile."""
    t, d = shape
    copies = {"max": 0, "gem": 26, "topk": 2 * itemsize}[how]
    masking = {"max": 2 * itemsize, "gem": 8, "topk": 2 * itemsize}[how] if masked else 0
    return t * d * (copies + masking) + 48 * d


def _or_else(x: Array, taken: Array | None, other: float) -> Array:
    """Return ``x`` (n, t, d) with ``other`` for the tokens (n, t) that are not taken."""
    if taken is None:
        return x
    return arrays.namespace(x).where(taken[:, :, None], x, arrays.namespace(x).full_like(x, other))


def _counts(x: Array, valid: Array | None) -> Array:
    """Return the number of valid tokens of each row, (n, 1) float64, at least 1."""
    xp = arrays.namespace(x)
    if valid is None:
        shape = (x.shape[0], 1)
        return xp.full(shape, float(x.shape[1]), dtype=xp.float64, device=arrays.device_of(x))
    count = xp.astype(xp.count_nonzero(valid, axis=1), xp.float64)[:, None]
    return xp.where(count > 0, count, xp.ones_like(count))
