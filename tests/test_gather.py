"""Gathering: the same grains, bit for bit, whatever the chunks; nothing points into a chunk."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from pipeline import arrays
from pipeline.chunk import Arena, ArraySpec, Block, Chunk, Schema
from pipeline.gather import gathers
from pipeline.testing.drive import PLACES
from pipeline.views import Labels, Tokens

ROWS = 23
X = np.random.default_rng(0).standard_normal((ROWS, 2, 3)).astype("f4")
Y = np.arange(ROWS) % 5
SCHEMA = Schema(
    ROWS, 5, {"features": ArraySpec((2, 3), "float32", "TD"), "labels": ArraySpec((), "int64")}
)


@dataclass
class Copying:
    """Keeps a copy of every grain."""

    grain: int
    views: tuple = (Labels(), Tokens())
    seen: list = field(default_factory=list)
    shared: list = field(default_factory=list)

    def absorb(self, chunk):
        self.seen.append(
            (chunk.start, *(np.array(arrays.to_host(view(chunk))) for view in self.views))
        )
        self.shared.append([view(chunk) for view in self.views])


def push_all(takers, sizes, place=PLACES["numpy"], poison=True):
    """Push chunks whose memory is used again, as a reader does."""
    gathered = gathers(takers, SCHEMA, Arena(), Block(0, 0, sum(sizes)))
    x, y = np.empty_like(X), np.empty_like(Y)
    start = 0
    for size in sizes:
        x[:size], y[:size] = X[start : start + size], Y[start : start + size]
        contents = {"features": place.put(x[:size]), "labels": place.put(y[:size])}
        for gather in gathered:
            gather.push(Chunk(SCHEMA, start, size, contents))
        if poison:
            x[:], y[:] = np.nan, -77
        start += size
    for gather in gathered:
        gather.flush()


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("grain", [1, 4, 7, 22, 23, 64])
@pytest.mark.parametrize(
    "sizes", [[23], [1] * 23, [7, 7, 7, 2], [22, 1], [4, 0, 4, 4, 4, 7], [3, 20]]
)
def test_grains_are_equal_whatever_the_chunks(place, grain, sizes):
    taker = Copying(grain)
    push_all([taker], sizes, place)
    assert [start for start, *_ in taker.seen] == list(range(0, ROWS, grain))
    for start, y, x in taker.seen:
        stop = min(start + grain, ROWS)
        np.testing.assert_array_equal(y, Y[start:stop])
        np.testing.assert_array_equal(x, X[start:stop])


def test_a_grain_within_one_chunk_is_not_copied_and_held_rows_are():
    taker = Copying(4, (Tokens(),))
    x = X[:6].copy()
    (gather,) = gathers([taker], SCHEMA, Arena(), Block(0, 0, ROWS))
    gather.push(Chunk(SCHEMA, 0, 6, {"features": x}))
    assert np.shares_memory(taker.shared[0][0], x)
    gather.push(Chunk(SCHEMA, 6, 2, {"features": X[6:8]}))
    assert not np.shares_memory(taker.shared[1][0], x)
    assert len(taker.seen) == 2


def test_takers_with_different_grains_see_all_rows_and_equal_grains_share_a_gather():
    takers = [Copying(4), Copying(4, (Labels(),)), Copying(9)]
    gathered = gathers(takers, SCHEMA, Arena(), Block(0, 0, ROWS))
    assert [len(gather.takers) for gather in gathered] == [2, 1]
    push_all(takers, [5, 5, 5, 5, 3])
    for taker in takers:
        np.testing.assert_array_equal(np.concatenate([seen[1] for seen in taker.seen]), Y)


def test_no_buffer_is_longer_than_the_block():
    (gather,) = gathers([Copying(65_536)], SCHEMA, Arena(), Block(0, 0, ROWS))
    gather.push(Chunk(SCHEMA, 0, 3, {"features": X[:3], "labels": Y[:3]}))
    assert {len(buffer) for buffer in gather.buffers.values()} == {ROWS}


def test_no_rows_are_no_grain():
    taker = Copying(4)
    for gather in gathers([taker], SCHEMA, Arena(), Block(0, 0, 0)):
        gather.flush()
    assert taker.seen == []


def test_a_last_grain_within_one_chunk_is_not_copied_however_short():
    taker = Copying(4, (Tokens(),))
    x = X[:6].copy()
    (gather,) = gathers([taker], SCHEMA, Arena(), Block(0, 0, 6))
    gather.push(Chunk(SCHEMA, 0, 6, {"features": x}))
    gather.flush()
    assert [len(seen[1]) for seen in taker.seen] == [4, 2]
    assert all(np.shares_memory(rows, x) for (rows,) in taker.shared)
    assert not gather.buffers
