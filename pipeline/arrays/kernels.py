"""The few functions that the array API standard lacks.

Every :class:`Kernel` has a portable body, written in the standard alone, and faster bodies for
single libraries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.arrays.libraries import Array, device_of, library, namespace


class Kernel:
    """A function the array standard lacks: a portable body and faster ones per library.

    The library of the first argument chooses the body.
    """

    def __init__(self, portable: Callable[..., Any]) -> None:
        self.portable = portable
        self.bodies: dict[str, Callable[..., Any]] = {}
        self.__doc__ = portable.__doc__
        self.__name__ = portable.__name__

    def fast(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a faster body for the arrays of library ``name``."""

        def register(body: Callable[..., Any]) -> Callable[..., Any]:
            self.bodies[name] = body
            return body

        return register

    def __call__(self, x: Array, *args: Any) -> Any:
        return self.bodies.get(library(x), self.portable)(x, *args)


ONE_HOT_LIMIT = 2**20
"""Entries of a (rows, classes) table that portable bodies make at a time."""
GATHER_ROWS = 64
"""Rows that are gathered at a time to be summed."""


def _one_hot(ids: Array, classes: int, dtype: Any) -> Array:
    xp = namespace(ids)
    steps = xp.arange(classes, dtype=ids.dtype, device=device_of(ids))
    return xp.astype(ids[:, None] == steps[None, :], dtype)


@Kernel
def sum_by_id(x: Array, ids: Array) -> tuple[Array, Array]:
    """Return the distinct ``ids`` (n,) in ascending order, (p,), and float64 sums (p, ...) of rows.

    The sum of an id is over the rows of ``x`` (n, ...) that have it.
    """
    xp = namespace(x, ids)
    present = xp.sort(xp.unique_values(ids))
    places = xp.searchsorted(present, ids)
    count, width = present.shape[0], int(np.prod(x.shape[1:], dtype=np.int64))
    sums = xp.zeros((count, width), dtype=xp.float64, device=device_of(x))
    step = max(1, ONE_HOT_LIMIT // max(1, count))
    for start in range(0, x.shape[0], step):
        stop = min(start + step, x.shape[0])
        hot = _one_hot(places[start:stop], count, xp.float64)
        part = xp.astype(x[start:stop, ...], xp.float64)
        flat = xp.reshape(part, (stop - start, width))
        sums = sums + xp.matmul(xp.matrix_transpose(hot), flat)
    return present, xp.reshape(sums, (count, *x.shape[1:]))


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
    edges = xp.arange(classes + 1, dtype=xp.int64, device=device_of(ids))
    below = xp.searchsorted(xp.sort(xp.astype(ids, xp.int64)), edges)
    return xp.astype(below[1:] - below[:-1], xp.int64)


@bincount.fast("numpy")
def _bincount_numpy(ids: Array, classes: int) -> Array:
    return np.bincount(ids, minlength=classes).astype(np.int64, copy=False)


@bincount.fast("torch")
def _bincount_torch(ids: Array, classes: int) -> Array:
    return ids.bincount(minlength=classes)


@Kernel
def sum_in_bins(ids: Array, x: Array, bins: int) -> Array:
    """Return the float64 sums of ``x`` (n,) over the entries of each id 0..bins-1: (bins,)."""
    xp = namespace(ids, x)
    total = xp.zeros((bins,), dtype=xp.float64, device=device_of(x))
    step = max(1, ONE_HOT_LIMIT // max(1, bins))
    for start in range(0, x.shape[0], step):
        stop = min(start + step, x.shape[0])
        hot = _one_hot(ids[start:stop], bins, xp.float64)
        total = total + xp.matmul(xp.astype(x[start:stop], xp.float64), hot)
    return total


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


@sum_integers_in_bins.fast("torch")
def _sum_integers_in_bins_torch(ids: Array, x: Array, bins: int) -> Array:
    return x.new_zeros(bins).scatter_add_(0, ids, x)


@Kernel
def top_k(x: Array, k: int) -> Array:
    """Return the ``k`` largest values along the last axis, largest first: (..., k)."""
    xp = namespace(x)
    return xp.sort(x, axis=-1, descending=True)[..., :k]


@top_k.fast("numpy")
def _top_k_numpy(x: Array, k: int) -> Array:
    return -np.sort(np.partition(-x, k - 1, axis=-1)[..., :k], axis=-1)


@Kernel
def syrk_into(total: Array, x: Array) -> Array:
    """Add x'x of ``x`` (n, d), formed in the dtype of ``x``, to ``total`` (d, d); return the total.

    ``total`` is float64 and may be changed in place. numpy hands ``x.T @ x`` to SYRK, half the work
    of a general product.
    """
    xp = namespace(total, x)
    return total + xp.astype(xp.matmul(xp.matrix_transpose(x), x), total.dtype)


@syrk_into.fast("torch")
def _syrk_into_torch(total: Array, x: Array) -> Array:
    if x.dtype == total.dtype:
        return total.addmm_(x.T, x)
    return total.add_(x.T @ x)


@syrk_into.fast("cupy")
@syrk_into.fast("numpy")
def _syrk_into_numpy(total: Array, x: Array) -> Array:
    total += x.T @ x
    return total


@Kernel
def add_into(total: Array, x: Array) -> Array:
    """Add ``x`` to ``total`` of the same shape, in place where possible; return the total."""
    return total + namespace(total, x).astype(x, total.dtype)


@add_into.fast("torch")
def _add_into_torch(total: Array, x: Array) -> Array:
    return total.add_(x)


@add_into.fast("cupy")
@add_into.fast("numpy")
def _add_into_numpy(total: Array, x: Array) -> Array:
    total += x
    return total


@Kernel
def add_rows_into(total: Array, ids: Array, rows: Array) -> Array:
    """Add ``rows[i]`` to row ``ids[i]`` of ``total`` (k, ...), in place where possible.

    ``ids`` are distinct. Returns the total.
    """
    sums = namespace(total, ids, rows).take(total, ids, axis=0) + rows
    return scatter_rows(total, ids, sums)


@add_rows_into.fast("numpy")
def _add_rows_into_numpy(total: Array, ids: Array, rows: Array) -> Array:
    total[ids] += rows
    return total


@Kernel
def subtract_into(out: Array, x: Array, y: Array) -> Array:
    """Write x - y into the memory of ``out``, in its dtype; return ``out``."""
    out[...] = namespace(out, x, y).astype(x - y, out.dtype, copy=False)
    return out


@subtract_into.fast("torch")
def _subtract_into_torch(out: Array, x: Array, y: Array) -> Array:
    return sys.modules["torch"].subtract(x, y, out=out)


@subtract_into.fast("cupy")
@subtract_into.fast("numpy")
def _subtract_into_numpy(out: Array, x: Array, y: Array) -> Array:
    return np.subtract(x, y, out=out)


@Kernel
def scatter_rows(out: Array, ids: Array, rows: Array) -> Array:
    """Return ``out`` (k, d) with row ``ids[i]`` replaced by ``rows[i]``; ``ids`` are distinct."""
    xp = namespace(out, ids, rows)
    hot = _one_hot(ids, out.shape[0], out.dtype)
    hit = xp.sum(hot, axis=0) > 0
    placed = xp.matmul(xp.matrix_transpose(hot), rows)
    return xp.where(xp.reshape(hit, (-1, *(1,) * (out.ndim - 1))), placed, out)


@scatter_rows.fast("numpy")
def _scatter_rows_numpy(out: Array, ids: Array, rows: Array) -> Array:
    out[ids] = rows
    return out


@Kernel
def clear_at(x: Array, ids: Array) -> Array:
    """Return ``x`` (n, k) with entry ``ids[i]`` of row i set to 0, in place where possible."""
    xp = namespace(x, ids)
    steps = xp.arange(x.shape[1], dtype=ids.dtype, device=device_of(ids))
    return xp.where(steps[None, :] == ids[:, None], xp.zeros_like(x), x)


@clear_at.fast("numpy")
def _clear_at_numpy(x: Array, ids: Array) -> Array:
    x[np.arange(len(ids)), ids] = 0
    return x


@Kernel
def sort_in_place(x: Array) -> Array:
    """Return ``x`` (n,) in ascending order, in its own memory where possible."""
    return namespace(x).sort(x, stable=False)


@sort_in_place.fast("cupy")
@sort_in_place.fast("numpy")
def _sort_in_place_numpy(x: Array) -> Array:
    x.sort()
    return x


@Kernel
def sort_keys(x: Array) -> Array:
    """Return int64 keys (n,) in the order of the float values ``x`` (n,); -0.0 and 0.0 share one.

    The key is the bit pattern of |x| in float64, with the sign of x. Infinities keep their place;
    NaN has no place in an order and must be filtered before.
    """
    xp = namespace(x)
    size = xp.abs(xp.astype(x, xp.float64))
    finite = xp.isfinite(size)
    normal = finite & (size >= 2.0**-1022)
    safe = xp.where(normal, size, xp.ones_like(size))
    exponent = xp.floor(xp.log2(safe))
    # log2 may round across a power of two; one correction each way is exact.
    scaled = _times_power(safe, -exponent)
    exponent += xp.astype(scaled >= 2.0, xp.float64) - xp.astype(scaled < 1.0, xp.float64)
    mantissa = xp.astype((_times_power(safe, -exponent) - 1.0) * 2.0**52, xp.int64)
    keys = xp.astype(exponent + 1023.0, xp.int64) * 2**52 + mantissa
    tiny = xp.astype(
        xp.where(finite & ~normal, size, xp.zeros_like(size)) * 2.0**537 * 2.0**537, xp.int64
    )
    keys = xp.where(normal, keys, xp.where(finite, tiny, xp.full_like(keys, 2047 * 2**52)))
    return xp.where(x < 0, -keys, keys)


def _times_power(x: Array, exponent: Array) -> Array:
    """Return x * 2**exponent exactly, in two steps that do not overflow."""
    half = namespace(x).floor(exponent / 2)
    return x * 2.0**half * 2.0 ** (exponent - half)


@sort_keys.fast("numpy")
def _sort_keys_numpy(x: Array) -> Array:
    bits = np.ascontiguousarray(x, dtype=np.float64).view(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFFFFFFFFFF), bits)


@sort_keys.fast("torch")
def _sort_keys_torch(x: Array) -> Array:
    bits = x.double().contiguous().view(namespace(x).int64)
    return namespace(x).where(bits < 0, -(bits & 0x7FFFFFFFFFFFFFFF), bits)


@Kernel
def solve_lower(factor: Array, x: Array) -> Array:
    """Return L⁻¹x for a lower triangular L (d, d) and ``x`` (d, n)."""
    return namespace(factor, x).linalg.solve(factor, x)


@solve_lower.fast("torch")
def _solve_lower_torch(factor: Array, x: Array) -> Array:
    return namespace(factor).linalg.solve_triangular(factor, x, upper=False)
