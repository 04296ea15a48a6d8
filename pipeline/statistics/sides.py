"""Scores of two classes in order, in few bytes: what statistics of ranks keep and merge.

Sorting is all there is to a merge. Scores stay in the floats that they come in; where many rows
share a score, it is kept once, with their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array

COUNT_NBYTES = 8
PENDING_NBYTES = 8 * 2**20
"""Scores that wait to be sorted, at least, where so many fit: few merges, of long runs."""
ARRAY_NBYTES = 128
"""An array beside its numbers: of small chunks it takes more than they do."""
DISTINCT_TILE = 2**17
"""Scores that are compared with their neighbours at a time."""
PIECE_ROWS = 2**15
"""Scores of either class that are brought into one order at a time: they stay in cache."""

Host = np.ndarray[Any, Any]


class Side(NamedTuple):
    """The scores of one class in ascending order."""

    scores: Array
    """(m,) float32 or float64: one for each row, or every distinct one once."""
    counts: Array
    """Rows of each distinct score (m,) int64; (0,) where there is one score for each row."""

    @property
    def rows(self) -> int:
        """Rows of the class."""
        if not self.counts.shape[0]:
            return int(self.scores.shape[0])
        return int(arrays.namespace(self.counts).sum(self.counts))


class Sides(NamedTuple):
    """The scores of rows that are not positive, and of those that are."""

    negatives: Side
    positives: Side


class Pending(NamedTuple):
    """Scores (m,) of both classes, chunk after chunk, that wait to be sorted."""

    negatives: tuple[Array, ...] = ()
    positives: tuple[Array, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        waiting = (*self.negatives, *self.positives)
        scores = sum(int(x.shape[0]) for x in waiting)
        width = arrays.itemsize(waiting[0].dtype) if waiting else 0
        return width * scores + ARRAY_NBYTES * len(waiting)

    def plus(self, negatives: Array, positives: Array) -> Pending:
        """Return these and the scores of another chunk."""
        return Pending((*self.negatives, negatives), (*self.positives, positives))


def most_waiting_nbytes(settled_nbytes: int) -> int:
    """Return the bytes of scores that may wait, beside so many at most that are settled.

    Half as many: what is settled is merged with few others, which are long.
    """
    return max(min(PENDING_NBYTES, settled_nbytes), settled_nbytes // 2)


def waiting_nbytes(settled_nbytes: int, scores: int) -> int:
    """Return the bytes that wait in an open state of so many scores."""
    return min(most_waiting_nbytes(settled_nbytes), 8 * scores)


def nothing() -> Sides:
    """Return the scores of no rows, on the host."""
    return Sides(*(Side(np.zeros(0, np.float32), np.zeros(0, np.int64)) for _ in range(2)))


def settled(sides: Sides, pending: Pending) -> Sides:
    """Return the sides with the scores that waited."""
    return Sides(*(_settled(side, new) for side, new in zip(sides, pending, strict=True)))


def _settled(side: Side, new: Sequence[Array]) -> Side:
    if not new:
        return side
    xp = arrays.namespace(*new)
    return joined(side, _in_few_bytes(arrays.sort_in_place(xp.concat(new))))


def merged(a: Sides, b: Sides) -> Sides:
    """Return the scores of both. It depends on the scores alone, not on what was merged before."""
    return Sides(*(joined(x, y) for x, y in zip(a, b, strict=True)))


def least_nbytes(a: Sides, b: Sides, enough: int) -> int:
    """Return bytes that the scores of both take at least; exact where these are not ``enough``."""
    rows = [x.rows + y.rows for x, y in zip(a, b, strict=True)]
    widths = [_width(x, y) for x, y in zip(a, b, strict=True)]
    if (most := sum(w * n for w, n in zip(widths, rows, strict=True))) <= enough:
        return most
    once = [max(_distinct(x), _distinct(y)) for x, y in zip(a, b, strict=True)]
    forms = zip(widths, rows, once, strict=True)
    return sum(min(w * n, (w + COUNT_NBYTES) * d) for w, n, d in forms)


def _width(a: Side, b: Side) -> int:
    return max(arrays.itemsize(side.scores.dtype) for side in (a, b))


def _distinct(side: Side) -> int:
    """Return how many distinct scores a side has."""
    if side.counts.shape[0]:
        return int(side.counts.shape[0])
    changes = 0
    for tile in arrays.tiles(side.scores.shape[0] - 1, DISTINCT_TILE):
        part = side.scores[tile.start : tile.stop + 1]
        changes += int(arrays.namespace(part).count_nonzero(part[1:] != part[:-1]))
    return changes + min(1, int(side.scores.shape[0]))


def joined(a: Side, b: Side) -> Side:
    """Return the scores of both sides."""
    xp = arrays.namespace(a.scores, b.scores)
    if 0 in (a.scores.shape[0], b.scores.shape[0]):
        full = a if b.scores.shape[0] == 0 else b
        widest = xp.result_type(a.scores, b.scores)
        scores, counts = xp.astype(full.scores, widest), xp.asarray(full.counts, copy=True)
        return Side(scores, counts) if widest == full.scores.dtype else _again(scores, counts)
    if not (a.counts.shape[0] or b.counts.shape[0]):
        return _in_few_bytes(arrays.sort_in_place(xp.concat((a.scores, b.scores))))
    parts = [distinct(side) for side in (a, b)]
    return _again(*collapsed(*(xp.concat(pair) for pair in zip(*parts, strict=True))))


def distinct(side: Side) -> tuple[Array, Array]:
    """Return every distinct score of a side once, with its rows: (m,) and (m,) int64."""
    if side.counts.shape[0] or not side.scores.shape[0]:
        return side
    return with_counts(side.scores)


def collapsed(keys: Array, counts: Array) -> tuple[Array, Array]:
    """Return distinct keys in ascending order with the sums of their counts."""
    xp = arrays.namespace(keys)
    order = xp.argsort(keys, stable=True)  # linear time where runs are sorted already
    return summed(xp.take(keys, order), xp.take(counts, order))


def summed(ordered: Array, counts: Array) -> tuple[Array, Array]:
    """Return the distinct ones of keys in order with the sums of their counts."""
    last = _last_of_equals(ordered)
    return ordered[last], _steps(arrays.namespace(counts).cumulative_sum(counts)[last])


def with_counts(ordered: Array) -> tuple[Array, Array]:
    """Return the distinct ones of scores in order, and how often each occurs."""
    xp = arrays.namespace(ordered)
    last = xp.nonzero(_last_of_equals(ordered))[0]
    return xp.take(ordered, last), _steps(xp.astype(last, xp.int64) + 1)


def _last_of_equals(ordered: Array) -> Array:
    xp = arrays.namespace(ordered)
    if not ordered.shape[0]:
        return xp.zeros_like(ordered, dtype=xp.bool)
    return xp.concat((ordered[1:] != ordered[:-1], xp.ones_like(ordered[:1], dtype=xp.bool)))


def _steps(upto: Array) -> Array:
    """Return the differences of a cumulative sum (m,), the first from zero."""
    if not upto.shape[0]:
        return upto
    return arrays.namespace(upto).concat((upto[:1], upto[1:] - upto[:-1]))


def _in_few_bytes(ordered: Array) -> Side:
    """Return scores in order in the form that takes less."""
    xp = arrays.namespace(ordered)
    width, rows = arrays.itemsize(ordered.dtype), int(ordered.shape[0])
    none = xp.zeros((0,), dtype=xp.int64, device=arrays.device_of(ordered))
    each = Side(ordered, none)
    if (width + COUNT_NBYTES) * _distinct(each) < width * rows:
        return Side(*with_counts(ordered))
    return each


def _again(scores: Array, counts: Array) -> Side:
    """Return distinct scores with their counts in the form that takes less."""
    xp = arrays.namespace(scores)
    if not counts.shape[0]:
        return _in_few_bytes(scores)
    width, rows = arrays.itemsize(scores.dtype), int(xp.sum(counts))
    if (width + COUNT_NBYTES) * counts.shape[0] < width * rows:
        return Side(scores, counts)
    return Side(xp.repeat(scores, counts), counts[:0])


def pieces(sides: Sides) -> Iterator[tuple[Host, Host, Host]]:
    """Yield the distinct scores of both sides in ascending order, so many at a time.

    Each piece is scores (m,), and the negative and the positive rows of each: (m,) int64.
    """
    widest = np.result_type(*(side.scores for side in sides))
    both = [Side(side.scores.astype(widest, copy=False), side.counts) for side in sides]
    begun = [0, 0]
    while any(start < len(side.scores) for start, side in zip(begun, both, strict=True)):
        ends = _ends(both, begun)
        yield _in_one_order(*(_part(s, i, j) for s, i, j in zip(both, begun, ends, strict=True)))
        begun = ends


def _ends(both: Sequence[Side], begun: Sequence[int]) -> list[int]:
    """Return where to cut both sides so that equal scores stay together."""
    starts = list(zip(both, begun, strict=True))
    cuts = [s.scores[i + PIECE_ROWS] for s, i in starts if i + PIECE_ROWS < len(s.scores)]
    if not cuts:
        return [len(side.scores) for side in both]
    cut = min(cuts)
    return [i + int(np.searchsorted(s.scores[i:], cut, side="right")) for s, i in starts]


def _part(side: Side, start: int, stop: int) -> Side:
    return Side(side.scores[start:stop], side.counts[start:stop])


def _in_one_order(negatives: Side, positives: Side) -> tuple[Host, Host, Host]:
    both = arrays.sort_in_place(np.concatenate((negatives.scores, positives.scores)))
    last = np.flatnonzero(_last_of_equals(both))
    scores = both[last]
    below = _rows_of(negatives, scores)
    if len(negatives.counts) or len(positives.counts):
        return scores, below, _rows_of(positives, scores)
    return scores, below, np.diff(last + 1, prepend=0) - below


def _rows_of(side: Side, scores: Host) -> Host:
    """Return the rows of a side with each of the scores, which are all that it has and more."""
    upto = np.searchsorted(side.scores, scores, side="right")
    if len(side.counts):
        upto = np.append(0, np.cumsum(side.counts))[upto]
    return np.diff(upto, prepend=0)
