"""What is read at once: whole grains where a grain is not much longer than a stored chunk."""

import numpy as np
import pytest

from pipeline import fold
from pipeline.chunk import ArraySpec
from pipeline.errors import DataError
from pipeline.statistics import ClassMoments
from pipeline.store import ArraySplit, Store, reader
from pipeline.views import Pooled, Tokens

TOKENS, D, K, ROWS = 7, 16, 3, 100
IMAGE_NBYTES = TOKENS * D * 4
STATISTICS = (ClassMoments(of=Tokens()), ClassMoments(of=Pooled()))


def stored(path, chunk_rows, dtype="float32"):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, TOKENS, D)).astype(dtype)
    labels = np.sort(np.arange(ROWS) % K)
    arrays = {
        "features": ArraySpec((TOKENS, D), dtype, "TD"),
        "labels": ArraySpec((), "int64"),
    }
    row_nbytes = features[0].nbytes
    writer = Store.create(path).create_split(
        "id/train", arrays, classes=K, rows=ROWS,
        chunk_nbytes=chunk_rows * row_nbytes, block_nbytes=60 * (row_nbytes + 8),
    )  # fmt: skip
    for block in writer.missing():
        part = slice(block.start, block.stop)
        writer.write(block.index, {"features": features[part], "labels": labels[part]})
    return Store.open(path).split("id/train")


@pytest.fixture
def grain(monkeypatch):
    """Make a grain of tokens 8 images long, as 128 are of usual ones."""
    # Beside its tokens, an image brings its mean, its label and its number of tokens.
    nbytes = 8 * (IMAGE_NBYTES + 8 * (D + 3))
    monkeypatch.setattr(fold, "TOKENS_GRAIN_NBYTES", nbytes)
    return 8


@pytest.mark.parametrize(
    ("chunk_rows", "step"), [(3, 3), (4, 8), (5, 8), (8, 8), (13, 8), (20, 16)]
)
def test_whole_grains_are_read_where_that_is_not_far_from_a_chunk(
    tmp_path, grain, chunk_rows, step
):
    split = stored(tmp_path / "s.zarr", chunk_rows)
    assert split.chunk_rows == chunk_rows
    assert fold.grain_rows(STATISTICS[0], split.schema) == grain
    assert fold.step_of(split, STATISTICS, 0) == step
    assert fold.step_of(split, STATISTICS, 1) == step // 2


def states_of(split, shrink=0):
    return [fold.fold(STATISTICS, split, block, shrink=shrink).states for block in split.blocks]


@pytest.mark.parametrize("chunk_rows", [1, 3, 5, 20, 60])
@pytest.mark.parametrize("shrink", [0, 2])
def test_steps_across_chunks_read_each_chunk_once_and_change_no_bit(
    tmp_path, grain, chunk_rows, shrink
):
    blocks = stored(tmp_path / "like.zarr", 4).blocks
    like = states_of(stored(tmp_path / "whole.zarr", 60))
    split = stored(tmp_path / "s.zarr", chunk_rows)
    assert split.blocks == blocks
    reader.reset_reads()
    found = states_of(split, shrink)
    assert set(reader.READS.values()) == {1}
    for ours, theirs in zip(found, like, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            for x, y in zip(a, b, strict=True):
                np.testing.assert_array_equal(x, y)


def test_rows_in_memory_are_read_in_whole_grains_as_well(grain):
    rows = np.zeros((ROWS, TOKENS, D), "f4"), np.zeros(ROWS, int)
    split = ArraySplit(*rows, chunk_rows=5, block_rows=30)
    step = fold.step_of(split, STATISTICS, 0)
    assert step == grain
    (block, *_), fields = split.blocks, frozenset({"features"})
    assert [chunk.rows for chunk in split.read(block, fields, step)] == [8, 8, 8, 6]


def test_a_fold_that_fails_has_closed_what_it_read(tmp_path):
    ended = []

    class Reading(ArraySplit):
        def read(self, block, fields, step_rows=None):
            try:
                yield from super().read(block, fields, step_rows)
            finally:
                ended.append(block.index)

    features = np.ones((20, TOKENS, 3))
    features[3] = np.nan
    split = Reading(features, np.zeros(20, np.int64))
    with pytest.raises(DataError) as kept:  # and with it the frames it was raised in
        fold.fold([ClassMoments(of=Pooled())], split, split.blocks[0])
    assert ended == [0]
    assert kept.value
