"""Removing a block: the others keep their index and rows, and nothing points at the gone ones."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError, ExistsRefusedError, IncompleteError
from pipeline.store import Store, manifest

LABELS = frozenset({"labels"})


def kept_rows(sample, *spans):
    parts = [sample.rows(*span) for span in spans]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def check(split, sample, *spans):
    for name, array in sample.read(split).items():
        np.testing.assert_array_equal(array, kept_rows(sample, *spans)[name])


def files(path):
    return sorted(p.relative_to(path).as_posix() for p in path.glob("id/train/*/c/**/*"))


@pytest.mark.parametrize(
    ("index", "spans"), [(0, [(8, 20)]), (1, [(0, 8), (16, 20)]), (2, [(0, 16)])]
)
def test_the_other_blocks_keep_their_index_and_rows(path, sample, index, spans):
    store = sample.filled(path)
    before = store.split("id/train")
    identities = {b.index: before.identity(b, LABELS) for b in before.blocks}
    store.remove_block("id/train", index)
    split = store.split("id/train", verify=True)
    assert [block.index for block in split.blocks] == [i for i in range(3) if i != index]
    assert split.schema.rows == sum(b.rows for b in split.blocks) == 20 - before.blocks[index].rows
    check(split, sample, *spans)
    check(pickle.loads(pickle.dumps(split)), sample, *spans)
    for block in split.blocks:
        assert split.identity(block, LABELS) == identities[block.index]
        assert split.only(block).record(block).index == block.index
    with pytest.raises(DataError, match="has no block"):
        split.record(before.blocks[index])


def test_its_files_go_and_a_split_opened_before_says_so(path, sample):
    store = sample.filled(path)
    old, packed = store.split("id/train"), pickle.dumps(store.split("id/train"))
    assert store.remove_block("id/train", 1) == old.blocks[1]
    assert not (path / "id/train/features/c/2/0/0").exists()
    assert not (path / "id/train/labels/c/1").exists()
    assert (path / "id/train/labels/c/2").exists()
    left = files(path)
    with pytest.raises(DataError, match=r"block 1 \(rows 8-16\) was removed after"):
        sample.read(old)
    with pytest.raises(DataError, match="lost a block"):
        pickle.loads(packed)
    store.remove_block("id/train", 1)  # again: nothing more
    assert files(path) == left


def test_appending_after_a_removal_takes_new_rows(path, sample):
    store = sample.filled(path)
    store.remove_block("id/train", 2)
    block = store.writer("id/train").append(sample.rows(20, 25))
    assert (block.index, block.start, block.stop) == (3, 20, 25)
    store.remove_block("id/train", 3)
    block = store.writer("id/train").append(sample.rows(25, 27))
    assert (block.index, block.start, block.stop) == (4, 25, 27)
    split = store.split("id/train", verify=True)
    assert [b.index for b in split.blocks] == [0, 1, 4]
    check(split, sample, (0, 16), (25, 27))
    check(pickle.loads(pickle.dumps(split)), sample, (0, 16), (25, 27))


def test_a_chunk_file_that_another_block_shares_stays(path, sample):
    writer = sample.writer(path, rows=10)
    for block in writer.blocks:
        writer.write(block.index, sample.rows(block.start, block.stop))
    writer.append(sample.rows(10, 13))  # rows 8-12 are one chunk
    writer.remove(1)
    check(Store.open(path).split("id/train", verify=True), sample, (0, 8), (10, 13))
    writer.remove(2)
    assert not (path / "id/train/features/c/2/0/0").exists()


def test_a_removed_block_is_not_missing_and_comes_back_only_on_request(path, sample):
    store = sample.filled(path)
    writer = store.writer("id/train")
    writer.remove(1)
    assert writer.missing() == []
    assert writer.committed == {0, 2}
    with pytest.raises(ExistsRefusedError, match="was removed"):
        writer.write(1, sample.rows(8, 16))
    writer.write(1, sample.rows(8, 16), overwrite=True)
    split = store.split("id/train", verify=True)
    assert split.records[1].generation == 1
    check(split, sample, (0, 20))


def test_what_cannot_be_removed_or_read(path, sample):
    store = sample.filled(path)
    with pytest.raises(ConfigError, match="no block 7 to remove; it has blocks 0, 1, 2"):
        store.remove_block("id/train", 7)
    for index in range(3):
        store.remove_block("id/train", index)
    with pytest.raises(IncompleteError, match="holds no rows"):
        store.split("id/train")


def test_a_partial_split_ends_before_the_first_missing_block_behind_removed_ones(path, sample):
    writer = sample.writer(path, rows=40)
    for index in (0, 1, 2, 4):
        writer.write(index, sample.rows(8 * index, 8 * index + 8))
    writer.remove(1)
    store = Store.open(path)
    with pytest.raises(IncompleteError, match="rows 24-32"):
        store.split("id/train")
    check(store.split("id/train", allow_partial=True), sample, (0, 8), (16, 24))
    assert [block.index for block in writer.missing()] == [3]


def test_an_appended_block_that_is_being_written_again_is_missing_not_skipped(path, sample):
    writer = sample.writer(path, rows=None)
    for start in (0, 4, 8):
        writer.append(sample.rows(start, start + 4))
    record = manifest.read_record(path / "id/train", 1)
    manifest.write_record(path / "id/train", manifest.Record.of(record.block, 1, {}))
    with pytest.raises(IncompleteError, match="rows 4-8"):
        Store.open(path).split("id/train")
    check(Store.open(path).split("id/train", allow_partial=True), sample, (0, 4))


DYING = """
import os, pathlib, sys
from pipeline.store import Store
left, at = int(sys.argv[2]), pathlib.Path.unlink
def unlink(path, *args, **more):
    global left
    if "/c/" in str(path):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
    return at(path, *args, **more)
pathlib.Path.unlink = unlink
Store.open(sys.argv[1]).remove_block("id/train", 1)
"""


@pytest.mark.parametrize("unlinked", [0, 1, 2])
def test_a_removal_killed_while_files_go_is_done_and_can_be_finished(path, sample, unlinked):
    store = sample.filled(path)
    done = subprocess.run([sys.executable, "-c", DYING, str(path), str(unlinked)])
    assert done.returncode == -9
    split = store.split("id/train", verify=True)
    assert [block.index for block in split.blocks] == [0, 2]
    before = len(files(path))
    store.remove_block("id/train", 1)
    assert len(files(path)) < before
    check(store.split("id/train"), sample, (0, 8), (16, 20))
    assert os.listdir(path / "id/train/labels/c")
