"""Arrays of any library: which namespace they belong to, and the few functions the standard lacks.

Code below asks an array for its namespace (``xp = namespace(x)``) and never asks for a device.
This is the only module that knows cupy. Every :class:`Kernel` has a portable body, written in the
array API standard alone, and faster bodies for single libraries.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace as _array_namespace
from array_api_compat import device as _device
from array_api_compat import is_array_api_obj
from array_api_compat import size as size_of

Array = Any  # an array of numpy, cupy, torch or any library of the array API standard


def namespace(*arrays: Array) -> Any:
    """Return the array namespace the given arrays share; mixing libraries is an error."""
    return _array_namespace(*arrays)


def library(x: Array) -> str:
    """Return the name of the library an array belongs to, e.g. ``"numpy"``."""
    return type(x).__module__.partition(".")[0]


def device_of(x: Array) -> Any:
    """Return the device of an array."""
    return _device(x)


def is_array(x: object) -> bool:
    """Tell whether ``x`` is an array of a supported library."""
    return bool(is_array_api_obj(x))


def like(host: np.ndarray[Any, Any], x: Array) -> Array:
    """Return ``host`` as an array of the library and device of ``x``."""
    if library(x) == "numpy":
        return np.asarray(host)
    # Some libraries refuse to wrap read-only memory.
    writeable = host if host.flags.writeable else host.copy()
    return namespace(x).asarray(writeable, device=device_of(x))


@dataclass(frozen=True)
class Place:
    """Where the arrays of a worker live: a library and one of its devices.

    :meth:`put` is the one place where data moves to a device.
    """

    library: str = "numpy"
    device: str = ""

    def put(self, host: np.ndarray[Any, Any]) -> Array:
        """Return ``host`` as an array of this place."""
        if self.library == "numpy":
            return host
        xp = importlib.import_module(_NAMESPACES.get(self.library, self.library))
        device = xp.Device(self.device) if hasattr(xp, "Device") else (self.device or None)
        # Some libraries refuse to wrap read-only memory.
        return xp.asarray(host if host.flags.writeable else host.copy(), device=device)


HOST = Place()
_NAMESPACES = {"torch": "array_api_compat.torch"}


def to_host(x: Array) -> np.ndarray[Any, Any]:
    """Return ``x`` as a numpy array, copying from its device if it has one."""
    if isinstance(x, np.ndarray):
        return x
    if library(x) == "cupy":
        return x.get()  # type: ignore[no-any-return]
    if library(x) == "torch":
        return x.detach().cpu().numpy()  # type: ignore[no-any-return]
    if is_array_api_obj(x):
        home = namespace(x).__array_namespace_info__().default_device()
        return np.asarray(x.to_device(home))
    return np.asarray(x)


def nbytes(tree: object) -> int:
    """Return the bytes of all arrays in a tree of tuples, lists and mappings."""
    if isinstance(tree, dict):
        return sum(nbytes(value) for value in tree.values())
    if isinstance(tree, (tuple, list)):
        return sum(nbytes(value) for value in tree)
    if is_array(tree):
        return int(size_of(tree) or 0) * itemsize(tree.dtype)  # type: ignore[attr-defined]
    return 0


def itemsize(dtype: Any) -> int:
    """Return the bytes of one element of a dtype of any library."""
    size = getattr(dtype, "itemsize", None)
    return int(size) if size is not None else np.dtype(str(dtype).rpartition(".")[2]).itemsize


def map_arrays(function: Callable[[Array], Array], tree: Any) -> Any:
    """Apply ``function`` to every array of a tree of (named) tuples, lists and mappings."""
    if isinstance(tree, dict):
        return {key: map_arrays(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_arrays(function, value) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_arrays(function, value) for value in tree)
    return function(tree) if is_array(tree) else tree


def cap_pools(limit_nbytes: int) -> None:
    """Cap the device memory pools of the array libraries that are already loaded."""
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().set_limit(size=limit_nbytes)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit_nbytes / total))


def versions(
    names: Iterable[str] = ("numpy", "array_api_compat", "cupy", "torch"),
) -> dict[str, str]:
    """Return the versions of the array libraries that are loaded; never imports one."""
    loaded = {name: sys.modules.get(name) for name in names}
    return {name: str(module.__version__) for name, module in loaded.items() if module is not None}


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


def _one_hot(ids: Array, classes: int, dtype: Any) -> Array:
    xp = namespace(ids)
    steps = xp.arange(classes, dtype=ids.dtype, device=device_of(ids))
    return xp.astype(ids[:, None] == steps[None, :], dtype)


@Kernel
def segment_sum(x: Array, ids: Array, classes: int) -> Array:
    """Return float64 sums (classes, ...) of the rows of ``x`` (n, ...) per id 0..classes-1."""
    xp = namespace(x, ids)
    width = int(np.prod(x.shape[1:], dtype=np.int64))
    sums = xp.zeros((classes, width), dtype=xp.float64, device=device_of(x))
    step = max(1, ONE_HOT_LIMIT // max(1, classes))
    for start in range(0, x.shape[0], step):
        stop = min(start + step, x.shape[0])
        hot = _one_hot(ids[start:stop], classes, xp.float64)
        part = xp.astype(x[start:stop, ...], xp.float64)
        flat = xp.reshape(part, (stop - start, width))
        sums = sums + xp.matmul(xp.matrix_transpose(hot), flat)
    return xp.reshape(sums, (classes, *x.shape[1:]))


@segment_sum.fast("numpy")
def _segment_sum_numpy(x: Array, ids: Array, classes: int) -> Array:
    # Gather and reduce per present class: 6 to 12 times faster than add.reduceat along rows.
    sums = np.zeros((classes, *x.shape[1:]))
    if not len(ids):
        return sums
    order = np.argsort(ids, kind="stable")
    present, starts = np.unique(ids[order], return_index=True)
    for label, rows in zip(present, np.split(order, starts[1:]), strict=True):
        sums[label] = x[rows].sum(axis=0, dtype=np.float64)
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
def subtract_into(out: Array, x: Array, y: Array) -> Array:
    """Return x - y, in the memory of ``out`` where the library can write there."""
    return x - y


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
