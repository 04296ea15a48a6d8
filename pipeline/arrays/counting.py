"""True against predicted classes, counted in int64: narrow ids are never widened as a whole.

Ids of any integer or bool dtype and any shape, of the same shape on both sides. What counts, what
is ignored and what is outside the classes is told in the pass that counts; a fault costs another
one, which finds its elements.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import numpy as np

from pipeline.arrays.kernels import Kernel
from pipeline.arrays.libraries import Array, device_of, namespace, to_host
from pipeline.arrays.sums import bincount
from pipeline.arrays.tiles import tiles

CACHED_ELEMENTS = 2**16
"""Elements of a tile on the host: int64 copies of them stay in the cache of one core."""
TILE_ELEMENTS = 2**17
"""Elements of a tile elsewhere."""
LARGEST_CODE = 2**16
LANES = 4
"""Tables that neighbours are counted in by turns: adding to one number again must wait."""
THREAD_ELEMENTS = 2**21
"""Elements that are worth a thread."""
MOST_THREADS = 8
"""Threads that are not asked for: memory feeds no more."""
SHOWN = 5

THREADS: ContextVar[int] = ContextVar("threads", default=1)
"""Threads that counting on the host may use, the one that asks included."""

Ids = np.ndarray[tuple[int], np.dtype[np.integer]]
Counts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class OutsideClassError(ValueError):
    """Elements that count, and whose class is none of 0 to k - 1.

    A caller who knows what the elements are names them instead.
    """

    def __init__(self, side: str, count: int, first: int, values: tuple[int, ...]) -> None:
        shown = ", ".join(map(str, values))
        super().__init__(f"{side}: {count} elements such as {first} hold classes {shown}")
        self.side = side
        """``truth`` or ``predicted``."""
        self.count = count
        self.first = first
        """Index of the first of them in the flattened array."""
        self.values = values
        """The smallest of their distinct values, at most five."""


def counting_threads() -> int:
    """Return how many threads :func:`several_threads` lets counting use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() else min(os.cpu_count() or 1, MOST_THREADS)


@contextmanager
def several_threads() -> Iterator[None]:
    """Let counting in this thread use other cores, as many as ``OMP_NUM_THREADS`` says if it does.

    Not for what runs on workers: these are as many as there are cores already.
    """
    token = THREADS.set(counting_threads())
    try:
        yield
    finally:
        THREADS.reset(token)


@Kernel
def count_pairs(truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]) -> Array:
    """Return how often each true class (rows) was predicted as each (columns): int64.

    (k, k), or (k, k + 1) where some value of ``ignore`` lies outside 0 to k - 1: elements that are
    predicted as such a value are in the last column. Elements whose truth is one of ``ignore`` do
    not count, whatever was predicted. Raises :class:`OutsideClassError` for an element that counts
    and whose true class is none of 0 to k - 1, or whose predicted one is neither that nor ignored,
    TypeError for floats, ValueError for different shapes.
    """
    xp = namespace(truth, predicted)
    width = pair_width(classes, ignore)
    total = xp.zeros((classes * width,), dtype=xp.int64, device=device_of(truth))
    for t, p in _counted(truth, predicted, classes, ignore, classes * width):
        outside = _outside(p, classes)
        if bool(xp.any(outside)):
            _check(truth, predicted, classes, ignore, ignore)
            p = xp.where(outside, xp.full_like(p, classes), p)
        t *= width
        t += p
        total += bincount(t, classes * width)
    return xp.reshape(total, (classes, width))


def pair_width(classes: int, ignore: tuple[int, ...]) -> int:
    """Return the columns of :func:`count_pairs`."""
    return classes + any(not 0 <= one < classes for one in ignore)


@count_pairs.fast("numpy")
def _count_pairs_numpy(
    truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]
) -> Counts:
    if (classes + 1) ** 2 > LARGEST_CODE:
        counts: Counts = count_pairs.portable(truth, predicted, classes, ignore)
        return counts
    table = _pair_table(truth, predicted, classes, ignore)
    if table[:, classes].any():
        _check(truth, predicted, classes, ignore, ignore)
    return np.ascontiguousarray(table[:, : pair_width(classes, ignore)])


@count_pairs.fast("torch")
def _count_pairs_torch(
    truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]
) -> Array:
    if truth.device.type != "cpu":
        return count_pairs.portable(truth, predicted, classes, ignore)
    counts = count_pairs(to_host(truth), to_host(predicted), classes, ignore)
    return namespace(truth).asarray(counts)


@Kernel
def count_margins(
    truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Return three times (k,) int64: right, true and predicted elements of each class.

    As :func:`count_pairs`, without its k x k integers: to predict a value of ``ignore`` outside 0
    to k - 1 is a miss for the true class of the element.
    """
    xp = namespace(truth, predicted)
    right, true, found = (
        xp.zeros((classes,), dtype=xp.int64, device=device_of(truth)) for _ in range(3)
    )
    for t, p in _counted(truth, predicted, classes, ignore, classes):
        outside = _outside(p, classes)
        if bool(xp.any(outside)):
            _check(truth, predicted, classes, ignore, ignore)
        right += bincount(t[t == p], classes)
        true += bincount(t, classes)
        found += bincount(p[~outside], classes)
    return right, true, found


@count_margins.fast("numpy")
def _count_margins_numpy(
    truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]
) -> tuple[Counts, Counts, Counts]:
    if (classes + 1) ** 2 > LARGEST_CODE:
        margins: tuple[Counts, Counts, Counts] = count_margins.portable(
            truth, predicted, classes, ignore
        )
        return margins
    table = _pair_table(truth, predicted, classes, ignore)
    if table[:, classes].any():
        _check(truth, predicted, classes, ignore, ignore)
    return table.diagonal().copy(), table.sum(axis=1), table[:, :classes].sum(axis=0)


@count_margins.fast("torch")
def _count_margins_torch(
    truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    if truth.device.type != "cpu":
        portable: tuple[Array, Array, Array] = count_margins.portable(
            truth, predicted, classes, ignore
        )
        return portable
    xp = namespace(truth)
    a, b, c = count_margins(to_host(truth), to_host(predicted), classes, ignore)
    return xp.asarray(a), xp.asarray(b), xp.asarray(c)


def _pair_table(truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]) -> Counts:
    """Return the pairs of numpy ids (k, k + 1); predictions outside the classes come last."""
    flat = _flat(truth, predicted)
    width = classes + 1

    def counted(part: slice) -> Counts:
        t, p = (ids[part] for ids in flat)
        try:
            return _tile_by_tile(t, p, classes, ignore)
        except OutsideClassError:
            _check(truth, predicted, classes, ignore)  # names the elements of the whole
            raise

    parts = np.stack(each_part(counted, flat[0].shape[0]))
    table: Counts = parts.reshape(-1, width, width).sum(axis=0)[:classes]
    table[[one for one in ignore if 0 <= one < classes]] = 0
    return table


def each_part(counted: Callable[[slice], Counts], elements: int) -> list[Counts]:
    """Return the counts of as many parts as this thread may use others, one on each."""
    parts = max(1, min(THREADS.get(), elements // THREAD_ELEMENTS))
    size = -(-elements // parts)
    slices = [slice(start, start + size) for start in range(0, max(elements, 1), max(size, 1))]
    if len(slices) == 1:
        return [counted(slices[0])]
    with ThreadPoolExecutor(len(slices)) as pool:
        return list(pool.map(counted, slices))


def _tile_by_tile(truth: Ids, predicted: Ids, classes: int, ignore: tuple[int, ...]) -> Counts:
    """Return the pairs, flat, in some tables beside each other.

    A pair is one uint16. Neighbours are counted in turns in different tables: runs of one pair,
    which masks are full of, would wait for each other.
    """
    width = classes + 1
    lanes = LANES if LANES * width**2 <= LARGEST_CODE else 1
    step = max(CACHED_ELEMENTS, 2 * lanes * width**2)
    lane = _lane(step, lanes, width**2)
    total = np.zeros(lanes * width**2, np.int64)
    for tile in tiles(len(truth), step):
        t, p = _unsigned(truth[tile]), _unsigned(predicted[tile])
        if t.max() >= classes:
            if not _all_ignored(truth[tile], classes, ignore):
                raise OutsideClassError("truth", 0, tile.start, ())
            t = np.minimum(t, np.full_like(t, classes))
        if p.max() >= classes:
            p = np.minimum(p, np.full_like(p, classes))
        codes = t.astype(np.uint16)
        codes *= np.uint16(width)
        codes += p.astype(np.uint16, copy=False)
        codes += lane[: len(codes)]
        total += np.bincount(codes, minlength=len(total))
    return total


@lru_cache(maxsize=8)
def _lane(step: int, lanes: int, size: int) -> Ids:
    """Return where the table of each element of a tile begins, (step,) uint16."""
    return (np.arange(step) % lanes * size).astype(np.uint16)


def _unsigned(ids: Ids) -> Ids:
    """Return the same memory as unsigned integers: what was negative is very large."""
    kind = "u1" if ids.dtype == np.bool_ else ids.dtype.str.replace("i", "u")
    return ids.view(kind)


def _all_ignored(truth: Ids, classes: int, ignore: tuple[int, ...]) -> bool:
    """Tell whether all true classes that are outside are ignored."""
    outside = np.count_nonzero(_unsigned(truth) >= classes)
    ignored = (np.count_nonzero(truth == one) for one in set(ignore) if not 0 <= one < classes)
    return bool(outside == sum(ignored))


def _counted(
    truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...], width: int
) -> Iterator[tuple[Array, Array]]:
    """Yield tiles (m,) int64 of the true, all of 0 to k - 1, and predicted classes that count.

    They are no smaller than the ``width`` of what they are counted in.
    """
    xp = namespace(truth, predicted)
    least = CACHED_ELEMENTS if isinstance(truth, np.ndarray) else TILE_ELEMENTS
    for _, t, p in _tiles(truth, predicted, max(least, width)):
        if ignore:
            counts = ~among(t, ignore)
            t, p = t[counts], p[counts]
        if bool(xp.any(_outside(t, classes))):
            _check(truth, predicted, classes, ignore)
        yield t, p


def _flat(truth: Array, predicted: Array) -> tuple[Array, Array]:
    """Return both (n,), or say why they cannot be compared."""
    xp = namespace(truth, predicted)
    for ids in (truth, predicted):
        if not xp.isdtype(ids.dtype, ("integral", "bool")):
            raise TypeError(f"classes have dtype {ids.dtype}; expected integers")
    if truth.shape != predicted.shape:
        raise ValueError(
            f"true classes have shape {truth.shape}, predicted ones {predicted.shape}; "
            "expected the same"
        )
    return xp.reshape(truth, (-1,)), xp.reshape(predicted, (-1,))


def _tiles(truth: Array, predicted: Array, step: int) -> Iterator[tuple[int, Array, Array]]:
    """Yield tiles of both as int64, with the index of their first element."""
    xp = namespace(truth, predicted)
    flat = _flat(truth, predicted)
    for tile in tiles(flat[0].shape[0], step):
        # Without names: they must not outlive what the caller makes of them.
        yield tile.start, xp.astype(flat[0][tile], xp.int64), xp.astype(flat[1][tile], xp.int64)


def _outside(ids: Array, classes: int) -> Array:
    return (ids < 0) | (ids >= classes)


def among(ids: Array, values: tuple[int, ...]) -> Array:
    """Return which ids are one of ``values``: bool, of their shape."""
    xp = namespace(ids)
    found = xp.zeros(ids.shape, dtype=xp.bool, device=device_of(ids))
    for one in values:
        found = found | (ids == one)
    return found


def _check(
    truth: Array,
    predicted: Array,
    classes: int,
    ignore: tuple[int, ...],
    allowed: tuple[int, ...] = (),
) -> None:
    """Raise the error of elements that count and are outside, true classes first.

    Predictions may also be among ``allowed``.
    """
    for side, accepted in (("truth", ()), ("predicted", allowed)):
        count, first, values = 0, -1, list[int]()
        for start, t, p in _tiles(truth, predicted, TILE_ELEMENTS):
            ids = t if side == "truth" else p
            bad = _outside(ids, classes) & ~among(t, ignore) & ~among(ids, accepted)
            found = np.flatnonzero(to_host(bad))
            if len(found):
                first = first if count else start + int(found[0])
                count += len(found)
                values = sorted({*values, *np.unique(to_host(ids)[found]).tolist()})[:SHOWN]
        if count:
            raise OutsideClassError(side, count, first, tuple(values))
