"""The few functions that the array API standard lacks.

Every :class:`Kernel` has a portable body, written in the standard alone, and faster bodies for
single libraries.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.arrays.libraries import Array, device_of, library, namespace, to_host
from pipeline.arrays.tiles import tiles


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


ENTRIES = 2**17
"""Entries of temporaries that portable bodies make at a time."""


def module_of(x: Array) -> Any:
    """Return the library of an array itself, for what it has beyond the standard."""
    return sys.modules[library(x)]


@Kernel
def top_k(x: Array, k: int) -> Array:
    """Return the ``k`` largest values along the last axis, largest first: (..., k)."""
    xp = namespace(x)
    return xp.sort(x, axis=-1, descending=True)[..., :k]


@top_k.fast("cupy")
@top_k.fast("numpy")
def _top_k_numpy(x: Array, k: int) -> Array:
    np_ = module_of(x)
    return -np_.sort(np_.partition(-x, k - 1, axis=-1)[..., :k], axis=-1)


@top_k.fast("torch")
def _top_k_torch(x: Array, k: int) -> Array:
    return x.topk(k, dim=-1).values


@Kernel
def syrk_into(total: Array, x: Array) -> Array:
    """Add x'x of ``x`` (n, d), formed in the dtype of ``x``, to ``total`` (d, d); return the total.

    ``total`` is float64 and may be changed in place. numpy hands ``x.T @ x`` to SYRK, half the work
    of a general product.
    """
    xp = namespace(total, x)
    total += xp.matmul(xp.matrix_transpose(x), x)
    return total


def torch_rounds() -> bool:
    """Tell whether torch was told to round factors of float32 to the ten bits of TF32."""
    matmul = sys.modules["torch"].backends.cuda.matmul
    # Where the newer of two names was set, torch refuses to be asked by the older one.
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32 if precision is None else precision == "tf32")


@syrk_into.fast("torch")
def _syrk_into_torch(total: Array, x: Array) -> Array:
    if x.is_cuda and torch_rounds():
        x = x.double()
    if x.dtype == total.dtype:
        return total.addmm_(x.T, x)
    return total.add_(x.T @ x)


@syrk_into.fast("cupy")
def _syrk_into_cupy(total: Array, x: Array) -> Array:
    if os.environ.get("CUPY_TF32", "0") != "0":
        x = x.astype(total.dtype, copy=False)
    total += x.T @ x
    return total


@syrk_into.fast("numpy")
def _syrk_into_numpy(total: Array, x: Array) -> Array:
    total += x.T @ x
    return total


@Kernel
def add_into(total: Array, x: Array) -> Array:
    """Add ``x`` to ``total`` of the same shape, in place where possible; return the total."""
    total += namespace(total, x).astype(x, total.dtype, copy=False)
    return total


@add_into.fast("torch")
@add_into.fast("cupy")
@add_into.fast("numpy")
def _add_into_numpy(total: Array, x: Array) -> Array:
    total += x
    return total


@Kernel
def add_rows_into(total: Array, ids: Array, rows: Array) -> Array:
    """Add ``rows[i]`` to row ``ids[i]`` of ``total`` (k, ...), in place; return the total.

    ``ids`` are distinct.
    """
    for row, place in enumerate(to_host(ids).tolist()):
        total[place, ...] += rows[row, ...]
    return total


@add_rows_into.fast("torch")
@add_rows_into.fast("cupy")
@add_rows_into.fast("numpy")
def _add_rows_into_numpy(total: Array, ids: Array, rows: Array) -> Array:
    total[ids] += rows
    return total


@Kernel
def subtract_into(out: Array, x: Array, y: Array) -> Array:
    """Write x - y into the memory of ``out``, in its dtype; return ``out``."""
    xp = namespace(out, x, y)
    y = xp.broadcast_to(y, x.shape)
    for part in tiles(x.shape[0], max(1, ENTRIES // max(1, math.prod(x.shape[1:])))):
        out[part, ...] = xp.astype(x[part, ...] - y[part, ...], out.dtype, copy=False)
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
    """Replace row ``ids[i]`` of ``out`` (k, ...) by ``rows[i]``, in place; return ``out``.

    ``ids`` are distinct.
    """
    for row, place in enumerate(to_host(ids).tolist()):
        out[place, ...] = rows[row, ...]
    return out


@scatter_rows.fast("torch")
@scatter_rows.fast("cupy")
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


@clear_at.fast("torch")
@clear_at.fast("cupy")
@clear_at.fast("numpy")
def _clear_at_numpy(x: Array, ids: Array) -> Array:
    x[namespace(x).arange(x.shape[0], device=device_of(x)), ids] = 0
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


@sort_keys.fast("cupy")
@sort_keys.fast("numpy")
def _sort_keys_numpy(x: Array) -> Array:
    np_ = module_of(x)
    bits = np_.ascontiguousarray(x, dtype=np.float64).view(np.int64)
    return np_.where(bits < 0, -(bits & 0x7FFFFFFFFFFFFFFF), bits)


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


@solve_lower.fast("cupy")
def _solve_lower_cupy(factor: Array, x: Array) -> Array:
    linalg = importlib.import_module("cupyx.scipy.linalg")
    return linalg.solve_triangular(factor, x, lower=True)
