"""True against predicted classes, counted in int64: narrow ids are never widened as a whole.

Ids of any integer or bool dtype and any shape. What is ignored, what counts and what is outside
the classes is decided in the same pass; a fault costs a second one, which finds its elements.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.arrays.kernels import Kernel, bincount
from pipeline.arrays.libraries import Array, device_of, namespace, to_host
from pipeline.arrays.tiles import tiles

TILE_ELEMENTS = 2**15
"""Elements counted at a time: their int64 copies stay in the cache of one core."""
SHOWN = 5


class OutsideClassError(ValueError):
    """Elements that count, and whose class is none of 0 to k - 1.

    A caller who knows what the elements are puts their names in place of the numbers.
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


@Kernel
def count_pairs(truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]) -> Array:
    """Return how often each true class (rows) was predicted as each (columns): (k, k) int64.

    Elements whose truth is one of ``ignore`` do not count, whatever was predicted. Raises
    :class:`OutsideClassError` for a counted element whose true or predicted class is not one of 0 to
    k - 1, :class:`TypeError` for floats.
    """
    xp = namespace(truth, predicted)
    total = xp.zeros((classes * classes,), dtype=xp.int64, device=device_of(truth))
    for t, p in _counted(truth, predicted, classes, ignore):
        if bool(xp.any(_outside(p, classes))):
            _refuse(truth, predicted, classes, ignore, ())
        total = total + bincount(t * classes + p, classes * classes)
    return xp.reshape(total, (classes, classes))


@Kernel
def count_margins(
    truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Return three times (k,) int64: right, true and predicted elements of each class.

    As :func:`count_pairs`, without the k x k matrix, but for a value of ``ignore`` outside 0 to
    k - 1 that was predicted: the element is a miss for its true class.
    """
    xp = namespace(truth, predicted)
    totals = [xp.zeros((classes,), dtype=xp.int64, device=device_of(truth)) for _ in range(3)]
    for t, p in _counted(truth, predicted, classes, ignore):
        outside = _outside(p, classes)
        if bool(xp.any(outside)):
            if bool(xp.any(outside & ~_among(p, ignore))):
                _refuse(truth, predicted, classes, ignore, ignore)
            found = (t[t == p], t, p[~outside])
        else:
            found = (t[t == p], t, p)
        totals = [a + bincount(ids, classes) for a, ids in zip(totals, found, strict=True)]
    return totals[0], totals[1], totals[2]


def _counted(
    truth: Array, predicted: Array, classes: int, ignore: tuple[int, ...]
) -> Iterator[tuple[Array, Array]]:
    """Yield tiles (m,) int64 of the true, all of 0 to k - 1, and predicted classes that count."""
    xp = namespace(truth, predicted)
    for ids in (truth, predicted):
        if not xp.isdtype(ids.dtype, ("integral", "bool")):
            raise TypeError(f"classes have dtype {ids.dtype}; expected integers")
    if truth.shape != predicted.shape:
        raise ValueError(f"shapes {truth.shape} of truth and {predicted.shape} of predictions")
    flat = xp.reshape(truth, (-1,)), xp.reshape(predicted, (-1,))
    for tile in tiles(flat[0].shape[0], TILE_ELEMENTS):
        t, p = (xp.astype(ids[tile], xp.int64) for ids in flat)
        if ignore:
            counts = ~_among(t, ignore)
            t, p = t[counts], p[counts]
        if bool(xp.any(_outside(t, classes))):
            _refuse(truth, predicted, classes, ignore, ())
        yield t, p


def _outside(ids: Array, classes: int) -> Array:
    return (ids < 0) | (ids >= classes)


def _among(ids: Array, ignore: tuple[int, ...]) -> Array:
    xp = namespace(ids)
    found = xp.zeros(ids.shape, dtype=xp.bool, device=device_of(ids))
    for one in ignore:
        found = found | (ids == one)
    return found


def _refuse(
    truth: Array,
    predicted: Array,
    classes: int,
    ignore: tuple[int, ...],
    allowed: tuple[int, ...],
) -> None:
    """Raise the error of elements that are there, truths first."""
    xp = namespace(truth, predicted)
    flat = xp.reshape(truth, (-1,)), xp.reshape(predicted, (-1,))
    for side, accepted in (("truth", ()), ("predicted", allowed)):
        count, first, values = 0, -1, set[int]()
        for tile in tiles(flat[0].shape[0], TILE_ELEMENTS):
            t, p = (xp.astype(ids[tile], xp.int64) for ids in flat)
            ids = t if side == "truth" else p
            bad = to_host(_outside(ids, classes) & ~_among(t, ignore) & ~_among(ids, accepted))
            if not bad.any():
                continue
            first = first if count else tile.start + int(bad.argmax())
            count += int(bad.sum())
            values = set(sorted({*values, *to_host(ids)[bad].tolist()})[:SHOWN])
        if count:
            raise OutsideClassError(side, count, first, tuple(sorted(values)))
