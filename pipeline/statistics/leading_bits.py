"""Bins of equal leading bits: what becomes of scores in order that take too many bytes.

A bin is named by the key of its least number, in float64: the key without its last bits. Keys are
made and cut a tile at a time: those of all scores would take more bytes than the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline import arrays
from pipeline.arrays import KEY_BITS, Array
from pipeline.statistics.sides import Side, Sides, collapsed, summed, with_counts

EXACT = -1
"""Shift of scores that are kept as they are; of bins, it is how many bits their keys lack."""
TILE_SCORES = 2**16


def cut(sides: Sides, shift: int, further: int) -> Sides:
    """Return bins whose keys lack ``further`` bits, from scores or from finer bins."""
    return sides if shift == further else Sides(*(_cut(side, shift, further) for side in sides))


def bins_joined(a: Sides, b: Sides) -> Sides:
    """Return the bins of both; their counts are kept, whatever they take."""
    return Sides(*(_joined(*pair) for pair in zip(a, b, strict=True)))


def least_shift(sides: Sides, shift: int, room: int) -> int:
    """Return the least number of bits, at least ``shift``, without which there are ``room`` bins.

    It depends on the scores alone. Two neighbours are in one bin once all bits that differ are cut
    off.
    """
    if shift != EXACT and sum(side.scores.shape[0] for side in sides) <= room:
        return shift
    differing = [0] * (KEY_BITS + 1)
    for side in sides:
        for keys in _tiles(side.scores, shift, overlap=1):
            lengths = arrays.bit_lengths(keys[1:] ^ keys[:-1])
            for bits, count in enumerate(arrays.to_host(arrays.bincount(lengths, KEY_BITS + 1))):
                differing[bits] += int(count)
    bins = sum(1 for side in sides if side.scores.shape[0]) + differing[KEY_BITS]
    bits = KEY_BITS - 1
    while bits > max(shift, 0) and bins + differing[bits] <= room:
        bins += differing[bits]
        bits -= 1
    return bits


def _cut(side: Side, shift: int, further: int) -> Side:
    if not side.scores.shape[0]:
        return Side(arrays.sort_keys(side.scores), side.counts)
    parts = []
    for tile, keys in zip(_slices(side.scores), _tiles(side.scores, shift), strict=True):
        short = (keys >> further) << further
        many = side.counts.shape[0] > 0
        parts.append(summed(short, side.counts[tile]) if many else with_counts(short))
    xp = arrays.namespace(side.counts)
    return Side(*summed(*(xp.concat(column) for column in zip(*parts, strict=True))))


def _joined(a: Side, b: Side) -> Side:
    xp = arrays.namespace(a.scores, b.scores)
    return Side(*collapsed(*(xp.concat(pair) for pair in zip(a, b, strict=True))))


def _slices(scores: Array) -> Iterator[slice]:
    return arrays.tiles(scores.shape[0], TILE_SCORES)


def _tiles(scores: Array, shift: int, overlap: int = 0) -> Iterator[Array]:
    """Yield the keys of scores, or of bins, some at a time; each tile may begin in the next."""
    keys: Callable[[Array], Array] = arrays.sort_keys if shift == EXACT else lambda x: x
    for tile in _slices(scores):
        yield keys(scores[tile.start : min(tile.stop + overlap, scores.shape[0])])
