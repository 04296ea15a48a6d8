"""Appending, writing at the same time, and reading while others write."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr

from pipeline.chunk import ArraySpec
from pipeline.errors import DataError, LockedError
from pipeline.store import Store, disk, reader


def test_append_to_a_short_last_block_keeps_old_records_true(path, sample):
    store = sample.filled(path, rows=10)  # the last block holds rows 8-10 of a chunk of 4
    old = store.split("id/train")
    record = path / "id/train/manifest/block-00001/zarr.json"
    before = record.read_bytes()
    block = store.writer("id/train").append(sample.rows(10, 21))
    assert (block.index, block.start, block.stop) == (2, 10, 21)
    assert store.writer("id/train").append(sample.rows(21, 22)).index == 3
    assert record.read_bytes() == before
    old.verify()
    new = store.split("id/train", verify=True)
    for name, array in sample.read(new).items():
        np.testing.assert_array_equal(array, sample.rows(0, 22)[name])
    np.testing.assert_array_equal(sample.read(old)["labels"], sample.rows(0, 10)["labels"])
    plain = zarr.open_group(path / "id/train", mode="r")
    assert {array.shape[0] for _, array in plain.arrays()} == {22}
    starts = [c.start for b in new.blocks for c in new.read(b, frozenset({"labels"}))]
    assert starts == [0, 4, 8, 10, 14, 18, 21]


def test_append_within_one_block_reads_each_chunk_once(path, sample):
    writer = sample.writer(path, rows=None)
    for start in (0, 6, 17):
        writer.append(sample.rows(start, start + 11 if start else 6))
    split = Store.open(path).split("id/train")
    for block in split.blocks:
        reader.reset_reads()
        list(split.read(block, frozenset({"features", "labels"})))
        assert set(reader.READS.values()) == {1}


def test_a05b_fifty_appends_from_four_threads(path):
    spec = {"x": ArraySpec((), "float64")}
    Store.create(path).create_split("id/train", spec, classes=0, chunk_nbytes=8 * 16)
    with ThreadPoolExecutor(4) as pool:
        appended = [
            pool.submit(Store.open(path).writer("id/train").append, {"x": np.ones(10)})
            for _ in range(50)
        ]
    assert sorted(job.result().start for job in appended) == list(range(0, 500, 10))
    split = Store.open(path).split("id/train", verify=True)
    total = sum(c["x"].sum() for b in split.blocks for c in split.read(b, frozenset({"x"})))
    assert (split.schema.rows, total) == (500, 500.0)
    assert zarr.open_group(path, mode="r")["id/train/x"].shape == (500,)


def test_a05a_threads_writing_blocks_of_one_split_lose_nothing(path):
    x = np.arange(1.0, 4097.0).reshape(64, 64)
    spec = {"x": ArraySpec((64,), "float64")}
    writer = Store.create(path).create_split(
        "id/train", spec, classes=0, rows=64, chunk_nbytes=4 * 512, block_nbytes=8 * 512
    )
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda b: writer.write(b.index, {"x": x[b.start : b.stop]}), writer.blocks))
    Store.open(path).split("id/train", verify=True)
    stored = zarr.open_group(path, mode="r")["id/train/x"][:]
    np.testing.assert_array_equal(stored, x)


def write_every_other(path, first, x):
    writer = Store.open(path).writer("id/train")
    for block in writer.blocks[first::2]:
        writer.write(block.index, {"x": x[block.start : block.stop]})


def test_a05a_processes_writing_blocks_of_one_split_lose_nothing(path):
    x = np.arange(1.0, 4097.0).reshape(64, 64)
    spec = {"x": ArraySpec((64,), "float64")}
    Store.create(path).create_split(
        "id/train", spec, classes=0, rows=64, chunk_nbytes=8 * 512, block_nbytes=8 * 512
    )
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipeline.store"])
    writers = [context.Process(target=write_every_other, args=(path, i, x)) for i in range(2)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0, 0]
    Store.open(path).split("id/train", verify=True)
    np.testing.assert_array_equal(zarr.open_group(path, mode="r")["id/train/x"][:], x)


def test_a_last_block_and_appended_rows_may_share_a_chunk(path, sample):
    writer = sample.writer(path, rows=10)
    writer.write(0, sample.rows(0, 8))
    writer.append(sample.rows(10, 13))
    writer.write(1, sample.rows(8, 10))
    writer.write(1, sample.rows(8, 10), overwrite=True)
    split = Store.open(path).split("id/train", verify=True)
    for name, array in sample.read(split).items():
        np.testing.assert_array_equal(array, sample.rows(0, 13)[name])


def test_writing_a_block_and_appending_to_its_last_chunk_at_the_same_time(path):
    spec = {"x": ArraySpec((), "float64")}
    store = Store.create(path)
    make = {"classes": 0, "rows": 65, "chunk_nbytes": 8 * 64, "block_nbytes": 8 * 64}
    writer = store.create_split("id/train", spec, **make)
    writer.write(0, {"x": np.ones(64)})
    writer.write(1, {"x": np.ones(1)})
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(lambda: [writer.write(1, {"x": [1.0]}, overwrite=True) for _ in range(40)]),
            pool.submit(lambda: [writer.append({"x": [1.0]}) for _ in range(40)]),
        ]
    assert [len(job.result()) for job in jobs] == [40, 40]
    split = store.split("id/train", verify=True)
    assert split.schema.rows == 105
    np.testing.assert_array_equal(zarr.open_group(path, mode="r")["id/train/x"][:], np.ones(105))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"x": np.ones(0), "y": np.ones(0)}, "no rows to append"),
        ({"x": np.ones(3), "y": np.ones(4)}, r"same number of rows, got \[3, 4\]"),
        ({"x": np.float64(1), "y": np.ones(1)}, r"shape \(1,\), got \(\)"),
        ({"x": [1.0, 2.0], "y": [1, 2]}, "y must be float64, got int64"),
    ],
)
def test_appends_that_are_refused_add_nothing(path, rows, message):
    spec = {"x": ArraySpec((), "float64"), "y": ArraySpec((), "float64")}
    writer = Store.create(path).create_split("id/train", spec, classes=0)
    with pytest.raises(DataError, match=message):
        writer.append(rows)
    assert writer.blocks == ()


def test_a_lock_that_stays_held_ends_in_a_clear_error(path, sample):
    sample.filled(path)
    with (
        disk.locked(path, "id/train"),
        pytest.raises(LockedError, match="id/train: held by process"),
        disk.locked(path, "id/train", timeout_seconds=0.05),
    ):
        pass
