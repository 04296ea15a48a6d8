"""Writers that are killed at any instant: no half block is ever seen, and a resume completes."""

import multiprocessing
import random
import time

import numpy as np
import pytest
import zarr

from pipeline.chunk import ArraySpec
from pipeline.errors import IncompleteError
from pipeline.store import Store

KILLS = 8
ROWS, WIDTH = 240, 512
SPECS = {"features": ArraySpec((WIDTH,), "float32", "D"), "labels": ArraySpec((), "int64")}


def rows_of(start, stop):
    labels = np.arange(start, stop)
    return {
        "features": np.repeat(labels[:, None], WIDTH, axis=1).astype("f4"),
        "labels": labels,
    }


def write_missing(path, started):
    writer = Store.open(path).writer("id/train")
    started.set()
    for block in writer.missing():
        writer.write(block.index, rows_of(block.start, block.stop))


def write_forever(path, started):
    """Write what is missing, then every block again and again."""
    writer = Store.open(path).writer("id/train")
    started.set()
    while True:
        for block in writer.missing() or writer.blocks:
            rows = rows_of(block.start, block.stop)
            writer.write(block.index, rows, overwrite=block.index in writer.committed)


def append_forever(path, started):
    writer = Store.open(path).writer("id/train")
    started.set()
    while True:
        end = sum(block.rows for block in writer.blocks)
        writer.append(rows_of(end, end + 7))


def kill_in_the_middle(target, path, delay_seconds):
    """Run ``target`` in a process of its own and SIGKILL it after a while; tell if it lived."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipeline.store"])
    started = context.Event()
    process = context.Process(target=target, args=(path, started))
    process.start()
    assert started.wait(60)
    process.join(delay_seconds)
    alive = process.is_alive()
    process.kill()
    process.join()
    return alive


def check_what_is_readable(path):
    """Everything a reader is given must be whole; a split without any row is refused."""
    try:
        split = Store.open(path).split("id/train", allow_partial=True, verify=True)
    except IncompleteError:
        return 0
    for block in split.blocks:
        for chunk in split.read(block, frozenset(SPECS)):
            expected = rows_of(chunk.start, chunk.stop)
            np.testing.assert_array_equal(chunk["features"], expected["features"])
            np.testing.assert_array_equal(chunk["labels"], expected["labels"])
    return split.schema.rows


def strays(path):
    return [found for found in path.rglob("*") if ".partial" in found.name]


def create(path, rows):
    Store.create(path).create_split(
        "id/train", SPECS, classes=10_000, rows=rows, chunk_nbytes=5 * WIDTH * 4,
        block_nbytes=10 * (WIDTH * 4 + 8),
    )  # fmt: skip


def test_kill_9_in_mid_write_leaves_no_half_block(path):
    draw = random.Random(0)
    create(path, ROWS)
    for _ in range(KILLS):
        assert kill_in_the_middle(write_forever, path, draw.uniform(0, 0.06))
        check_what_is_readable(path)
    writer = Store.open(path).writer("id/train")
    for block in writer.missing():
        writer.write(block.index, rows_of(block.start, block.stop))
    assert check_what_is_readable(path) == ROWS
    assert not strays(path)
    dict(zarr.open_group(path, mode="r").members(max_depth=None))  # warnings are errors


def test_kill_9_in_mid_append_leaves_the_old_rows_true(path):
    draw = random.Random(1)
    create(path, None)
    seen = 0
    for _ in range(KILLS):
        assert kill_in_the_middle(append_forever, path, draw.uniform(0, 0.06))
        rows = check_what_is_readable(path)
        assert rows % 7 == 0
        assert rows >= seen
        seen = rows
    Store.open(path).writer("id/train").append(rows_of(seen, seen + 2))
    assert check_what_is_readable(path) == seen + 2
    assert zarr.open_group(path, mode="r")["id/train/labels"].shape == (seen + 2,)
    assert not strays(path)
    dict(zarr.open_group(path, mode="r").members(max_depth=None))


def test_an_append_that_died_after_it_made_room_leaves_no_rows_behind(path):
    create(path, None)
    writer = Store.open(path).writer("id/train")
    writer.append(rows_of(0, 7))
    for name in SPECS:
        array = zarr.open_array(path / "id/train" / name, mode="r+")
        array.resize((40, *array.shape[1:]))
        array[7:40] = 3
    assert check_what_is_readable(path) == 7
    writer.append(rows_of(7, 9))
    assert check_what_is_readable(path) == 9
    assert zarr.open_group(path, mode="r")["id/train/features"].shape == (9, WIDTH)


@pytest.mark.parametrize("rows", [18, 20])
@pytest.mark.parametrize("name", ["features", "labels"])
def test_a_block_that_died_half_written_is_not_seen_and_is_healed(path, name, rows):
    create(path, rows)
    writer = Store.open(path).writer("id/train")
    writer.write(0, rows_of(0, 10))
    writer.write(1, rows_of(10, rows))
    (path / "id/train/manifest/block-00001/zarr.json").unlink()
    torn = max((path / "id/train" / name / "c").rglob("*"), key=lambda p: (p.is_file(), p))
    torn.write_bytes(torn.read_bytes()[:7])
    stray = torn.with_name(f"{torn.name}.0123.partial")
    stray.write_bytes(b"half")
    assert check_what_is_readable(path) == 10
    writer.write(1, rows_of(10, rows))
    assert check_what_is_readable(path) == rows
    assert not strays(path)


def test_an_overwrite_that_died_leaves_the_block_uncommitted(path):
    create(path, 20)
    writer = Store.open(path).writer("id/train")
    for block in writer.blocks:
        writer.write(block.index, rows_of(block.start, block.stop))

    class Dying:
        """Rows that can be checked, and then stop while they are being written."""

        def __init__(self, rows):
            self.rows, self.dtype, self.shape = rows, rows.dtype, rows.shape

        def __getitem__(self, rows):
            raise KeyboardInterrupt

    rows = rows_of(10, 20)
    with pytest.raises(KeyboardInterrupt):
        writer.write(1, {**rows, "features": Dying(rows["features"])}, overwrite=True)
    assert writer.committed == {0}
    with pytest.raises(IncompleteError, match="rows 10-20"):
        Store.open(path).split("id/train")
    writer.write(1, rows)
    split = Store.open(path).split("id/train", verify=True)
    assert [record.generation for record in split.records] == [0, 1]


def test_readers_that_run_beside_a_writer_see_whole_blocks_only(path):
    create(path, ROWS)
    context = multiprocessing.get_context("forkserver")
    started = context.Event()
    process = context.Process(target=write_missing, args=(path, started))
    process.start()
    assert started.wait(60)
    seen, deadline = [0], time.monotonic() + 60
    while seen[-1] < ROWS and time.monotonic() < deadline:
        seen.append(check_what_is_readable(path))
    process.join()
    assert seen[-1] == ROWS
    assert seen == sorted(seen)
