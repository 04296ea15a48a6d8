"""Sums and counts of what has the same id: the same bits every time, on every device.

Floats are never added by several threads at once, in whatever order these come: the sums of an id
would differ from run to run.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from pipeline.arrays.kernels import ENTRIES, Kernel, module_of
from pipeline.arrays.libraries import Array, device_of, namespace, to_host
from pipeline.arrays.tiles import tiles

GATHER_ROWS = 64
"""Rows that are gathered at a time to be summed on the host."""
SORTED_ROWS = 1024
"""Most rows that are gathered at a time elsewhere: a product with a table of them by their ids."""
BINS = 2**16
"""Bins whose edges are looked for at a time."""


@Kernel
def sum_by_id(x: Array, ids: Array) -> tuple[Array, Array]:
    """Return the distinct ``ids`` (n,) in ascending order, (p,), and float64 sums (p, ...) of rows.

    The sum of an id is over the rows of ``x`` (n, ...) that have it. In the order of their ids a
    few rows have few ids: their sums are a product with a small table of zeros and ones.
    """
    xp = namespace(x, ids)
    present = xp.sort(xp.unique_values(ids))
    order = xp.argsort(ids)
    places = xp.searchsorted(present, xp.take(ids, order))
    width = math.prod(x.shape[1:])
    flat = xp.reshape(x, (x.shape[0], width))
    sums = xp.zeros((present.shape[0], width), dtype=xp.float64, device=device_of(x))
    step = max(GATHER_ROWS, min(SORTED_ROWS, ENTRIES // max(1, width)))
    edges = [*to_host(places[::step]).tolist(), present.shape[0] - 1]
    for tile, (first, last) in zip(tiles(x.shape[0], step), pairwise(edges), strict=True):
        some = xp.arange(first, last + 1, dtype=places.dtype, device=device_of(places))
        table = xp.astype(some[:, None] == places[None, tile], xp.float64)
        rows = xp.astype(xp.take(flat, order[tile], axis=0), xp.float64, copy=False)
        sums[first : last + 1, ...] += xp.matmul(table, rows)
    return present, xp.reshape(sums, (present.shape[0], *x.shape[1:]))


@sum_by_id.fast("numpy")
def _sum_by_id_numpy(x: Array, ids: Array) -> tuple[Array, Array]:
    # Gather and reduce per id: 6 to 12 times faster than add.reduceat along rows.
    order = np.argsort(ids, kind="stable")
    present, starts = np.unique(ids[order], return_index=True)
    sums = np.empty((len(present), *x.shape[1:]))
    for i, (start, end) in enumerate(pairwise([*starts.tolist(), len(ids)])):
        rows = order[start:end]
        if end - start == 1:
            sums[i] = x[rows[0]]
        elif end - start <= GATHER_ROWS:
            np.add.reduce(x[rows], axis=0, dtype=np.float64, out=sums[i, ...])
        else:
            sums[i] = _sum_of_rows(x, rows)
    return present, sums


def _sum_of_rows(x: Array, rows: Array) -> Array:
    """Return the float64 sum of some rows, gathering so few at a time that they stay in cache."""
    total = np.zeros(x.shape[1:])
    for start in range(0, len(rows), GATHER_ROWS):
        total += x[rows[start : start + GATHER_ROWS]].sum(axis=0, dtype=np.float64)
    return total


@Kernel
def sum_tokens(x: Array) -> Array:
    """Return the float64 sums (n, d) over the tokens of ``x`` (n, t, d)."""
    xp = namespace(x)
    return xp.sum(x, axis=1, dtype=xp.float64)


@sum_tokens.fast("numpy")
def _sum_tokens_numpy(x: Array) -> Array:
    # Image by image, widened where it stays in cache: numpy's own casts take a third longer.
    sums = np.empty((x.shape[0], x.shape[2]))
    wide = np.empty(x.shape[1:])
    for tokens, total in zip(x, sums, strict=True):
        np.copyto(wide, tokens)
        np.add.reduce(wide, axis=0, out=total)
    return sums


@Kernel
def bincount(ids: Array, classes: int) -> Array:
    """Return how often each of 0..classes-1 occurs in ``ids`` (n,): (classes,) int64."""
    xp = namespace(ids)
    counts = xp.empty((classes,), dtype=xp.int64, device=device_of(ids))
    ids = xp.sort(xp.astype(ids, xp.int64, copy=False))
    for bins in tiles(classes, BINS):
        edges = xp.arange(bins.start, bins.stop + 1, dtype=xp.int64, device=device_of(ids))
        below = xp.searchsorted(ids, edges)
        counts[bins] = xp.astype(below[1:] - below[:-1], xp.int64)
    return counts


@bincount.fast("cupy")
@bincount.fast("numpy")
def _bincount_numpy(ids: Array, classes: int) -> Array:
    return module_of(ids).bincount(ids, minlength=classes).astype(np.int64, copy=False)


@bincount.fast("torch")
def _bincount_torch(ids: Array, classes: int) -> Array:
    return ids.bincount(minlength=classes)


@Kernel
def sum_in_bins(ids: Array, x: Array, bins: int) -> Array:
    """Return the float64 sums of ``x`` (n,) over the entries of each id 0..bins-1: (bins,)."""
    xp, device = namespace(ids, x), device_of(x)
    present, sums = sum_by_id(x, ids)
    if not present.shape[0]:
        return xp.zeros((bins,), dtype=xp.float64, device=device)
    steps = xp.arange(bins, dtype=present.dtype, device=device)
    places = xp.searchsorted(present, steps)
    places = xp.where(places < present.shape[0], places, xp.zeros_like(places))
    found = xp.take(present, places) == steps
    return xp.where(found, xp.take(sums, places), xp.zeros_like(sums[:1]))


@sum_in_bins.fast("numpy")
def _sum_in_bins_numpy(ids: Array, x: Array, bins: int) -> Array:
    return np.bincount(ids, weights=x, minlength=bins)


@Kernel
def sum_integers_in_bins(ids: Array, x: Array, bins: int) -> Array:
    """Return the int64 sums of int64 ``x`` (n,) over the entries of each id 0..bins-1: (bins,).

    Exact where the sizes of all x together are at most 2^53.
    """
    return namespace(ids, x).astype(sum_in_bins(ids, x, bins), namespace(x).int64)


@sum_integers_in_bins.fast("numpy")
def _sum_integers_in_bins_numpy(ids: Array, x: Array, bins: int) -> Array:
    return np.bincount(ids, weights=x, minlength=bins).astype(np.int64)


@sum_integers_in_bins.fast("cupy")
def _sum_integers_in_bins_cupy(ids: Array, x: Array, bins: int) -> Array:
    # Integers may be added in any order. cupy adds unsigned ones alone, which wrap to the same.
    np_ = module_of(x)
    total = np_.zeros(bins, np.uint64)
    np_.add.at(total, ids, x.astype(np.int64, copy=False).view(np.uint64))
    return total.view(np.int64)


@sum_integers_in_bins.fast("torch")
def _sum_integers_in_bins_torch(ids: Array, x: Array, bins: int) -> Array:
    return x.new_zeros(bins).scatter_add_(0, ids, x)
