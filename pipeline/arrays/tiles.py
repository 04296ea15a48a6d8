"""Rows computed a tile at a time: temporaries that do not grow with them, and bits per row.

What a row becomes never depends on how many rows come with it: a memory limit, which makes chunks
shorter, changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.arrays.libraries import Array, device_of, namespace

TILE_ROWS = 96
"""Rows of a tile: temporaries of 1,000 float64 a row then fit the cache of one core.

A multiple of 48, since kernels of products take up to 48 rows at a time: those that are left over
would be summed in another order.
"""


TILE_IMAGES = 16
"""Rows of a tile where each holds many tokens."""


def tiles(rows: int, tile_rows: int = TILE_ROWS) -> Iterator[slice]:
    """Yield the slices that cut ``rows`` rows into tiles; the last may be shorter."""
    for start in range(0, rows, tile_rows):
        yield slice(start, min(start + tile_rows, rows))


def by_tiles(
    compute: Callable[..., Array], x: Array, *more: Array, tile_rows: int = TILE_ROWS
) -> Array:
    """Return ``compute`` of the rows of arrays (n, ...), called with one tile of them at a time.

    ``compute`` gives one output row per row, and each must depend on its own row alone.
    """
    if x.shape[0] <= tile_rows:
        return compute(x, *more)
    out = None
    for tile in tiles(x.shape[0], tile_rows):
        part = compute(*(rows[tile, ...] for rows in (x, *more)))
        if out is None:
            shape = (x.shape[0], *part.shape[1:])
            out = namespace(part).empty(shape, dtype=part.dtype, device=device_of(part))
        out[tile, ...] = part
    return out


def row_products(x: Array, w: Array, origin: Array | None = None) -> Array:
    """Return (x - origin) w of ``x`` (n, d) or (n, t, d) and ``w`` (d, q), formed in float64.

    Libraries choose the kernel of a product, and with it the order of its sums, by the number of
    rows. Every product here has a tile of the same shape, filled up with zeros, so that the bits of
    a row do not depend on the rows beside it. In float32 they still would, on some processors.
    """
    xp = namespace(x, w)
    d, q = w.shape
    w = xp.astype(w, xp.float64, copy=False)
    flat = xp.reshape(x, (-1, d))
    out = xp.empty((flat.shape[0], q), dtype=xp.float64, device=device_of(x))
    for tile in tiles(flat.shape[0]):
        rows = xp.astype(flat[tile, ...], xp.float64, copy=False)
        if origin is not None:
            rows = rows - origin
        out[tile, ...] = _product(rows, w)
    return xp.reshape(out, (*x.shape[:-1], q))


def _product(rows: Array, w: Array) -> Array:
    """Return the product of at most a tile of rows, whatever their number."""
    n, d = rows.shape
    xp = namespace(rows)
    if n == TILE_ROWS:
        return xp.matmul(rows, w)
    full = xp.zeros((TILE_ROWS, d), dtype=rows.dtype, device=device_of(rows))
    full[:n, ...] = rows
    return xp.matmul(full, w)[:n, ...]


def products_nbytes(d: int, q: int) -> int:
    """Return the bytes of temporaries of :func:`row_products`, whatever the number of rows."""
    return 8 * TILE_ROWS * (3 * d + q)
