"""Scores of a chunk, split into those of positive and of other elements."""

from __future__ import annotations

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.errors import ConfigError, DataError
from pipeline.statistics.base import refuse_nan
from pipeline.views import Every, View

WHOLE_LIMIT = 2**53
"""Whole numbers up to it are float64 numbers."""


def check_shapes(of: View, positive: View, schema: Schema) -> None:
    """Raise :class:`ConfigError` where it is not said of every score whether it is positive."""
    scores, found = tuple(of.shape(schema)), tuple(positive.shape(schema))
    if found != scores:
        raise ConfigError(
            f"{schema.split}: rows have scores of shape {scores}, classes of shape {found}; ranks "
            f"need one score per row, or of every element that has a class: {of} has others"
        )


def both_sides(chunk: Chunk, where: View, of: View, positive: View) -> tuple[Array, Array]:
    """Return the scores (m,) of negative and of positive elements, of those that ``where`` keeps.

    A row may have any number of scores, of which ``positive`` says the class each, and ``where``
    whether it counts, or whether the row does. Scores are float32 where that holds them, else
    float64; zeros of both signs become 0.0. Raises :class:`DataError` for NaN, and for whole
    numbers that float64 does not hold.
    """
    x, found, counts = of(chunk), positive(chunk), where(chunk)
    xp = arrays.namespace(x)
    found = xp.astype(found, xp.bool, copy=False)
    if bool(xp.all(counts)):
        x, found = xp.reshape(x, (-1,)), xp.reshape(found, (-1,))
    else:
        counts = _spread(counts, x)
        x, found = x[counts], found[counts]
    x = _as_floats(chunk, of, x)
    with np.errstate(over="ignore", invalid="ignore"):
        total = xp.sum(x)
    if bool(xp.isnan(total)):  # of infinities it may be, too
        _refuse_nan(chunk, where, of)
    x = x + 0.0
    return taken(x, ~found), taken(x, found)


def taken(x: Array, mask: Array) -> Array:
    """Return the entries of ``x`` (n,) that a mask says; by their places, a fifth of the time."""
    xp = arrays.namespace(x)
    return xp.take(x, xp.nonzero(mask)[0])


def _spread(mask: Array, x: Array) -> Array:
    """Return a mask (n,), or of the shape of ``x`` (n, ...), for each entry of ``x``."""
    if mask.ndim == x.ndim:
        return mask
    xp = arrays.namespace(mask)
    return xp.broadcast_to(xp.reshape(mask, (-1, *(1,) * (x.ndim - 1))), x.shape)


def _as_floats(chunk: Chunk, of: View, x: Array) -> Array:
    xp = arrays.namespace(x)
    width = arrays.itemsize(x.dtype)
    if width < 4:
        return xp.astype(x, xp.float32)
    if xp.isdtype(x.dtype, "real floating"):
        return x
    if width > 4 and bool(xp.any((x > WHOLE_LIMIT) | (x < -WHOLE_LIMIT))):
        raise DataError(
            f"{chunk.split}: {of} holds whole numbers beyond 2^53 in rows {chunk.start}-"
            f"{chunk.stop - 1}; as float64 some would tie: store scores as floats"
        )
    return xp.astype(x, xp.float64)


def _refuse_nan(chunk: Chunk, where: View, of: View) -> None:
    """Raise :class:`DataError` for rows with NaN among the scores that count."""
    x = of(chunk)
    xp = arrays.namespace(x)
    missing = xp.isnan(x) & _spread(where(chunk), x)
    rows = xp.any(xp.reshape(missing, (chunk.rows, -1)), axis=1)
    numbers = xp.zeros_like(rows, dtype=xp.float64)
    refuse_nan(chunk, Every(), xp.where(rows, xp.full_like(numbers, xp.nan), numbers))
