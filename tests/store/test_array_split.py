"""Splits over arrays in memory, or sliced lazily, of any library."""

import pickle
from collections import Counter
from typing import ClassVar

import dask.array
import numpy as np
import pytest
import torch
import zarr
from zarr.storage import LocalStore, WrapperStore

from pipeline.chunk import IS_OOD, ArraySpec
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.store import ArraySplit, Store

N = 20
X = np.random.default_rng(0).standard_normal((N, 3, 4)).astype("f4")
Y = np.arange(N) % 5


def whole(split, fields, step_rows=None):
    parts = {name: [] for name in fields}
    for block in split.blocks:
        for chunk in split.read(block, frozenset(fields), step_rows):
            for name, kept in parts.items():
                kept.append(chunk[name].copy())
    return {name: np.concatenate(kept) for name, kept in parts.items()}


def as_zarr(x):
    array = zarr.create_array({}, shape=x.shape, chunks=(6, *x.shape[1:]), dtype=x.dtype)
    array[:] = x
    return array


@pytest.mark.parametrize(
    "make",
    [np.asarray, torch.from_numpy, as_zarr, lambda x: dask.array.from_array(x, chunks=6)],
    ids=["numpy", "torch", "zarr", "dask"],
)
@pytest.mark.parametrize("chunk_rows", [1, 7, N - 1, N, 100])
def test_every_library_gives_the_same_rows(make, chunk_rows):
    split = ArraySplit(make(X), make(Y), classes=5, chunk_rows=chunk_rows, block_rows=8)
    back = whole(split, ["features", "labels"])
    assert all(isinstance(array, np.ndarray) for array in back.values())
    np.testing.assert_array_equal(back["features"], X)
    np.testing.assert_array_equal(back["labels"], Y)
    assert [block.stop for block in split.blocks] == [8, 16, 20]
    assert split.chunk_rows == min(chunk_rows, 8)
    assert split.schema.arrays["features"] == ArraySpec((3, 4), "float32", "TD")
    (first, *_), fields = split.blocks, frozenset({"features", "labels"})
    assert split.checksums(first, fields) == ArraySplit(X, Y, block_rows=8).checksums(first, fields)


def test_numpy_rows_are_views_and_nothing_is_written():
    x, y = X.copy(), Y.copy()
    x.flags.writeable = y.flags.writeable = False
    split = ArraySplit(x, y)
    (chunk,) = split.read(split.blocks[0], frozenset({"features", "labels"}))
    assert np.shares_memory(chunk["features"], x)
    assert np.shares_memory(chunk["labels"], y)


def test_only_the_fields_asked_for_and_the_virtual_one():
    more = {"mask": np.ones((N, 3), bool), "ids": np.arange(N)}
    split = ArraySplit(X, Y, name="ood/near/x", arrays=more)
    (chunk,) = split.read(split.blocks[0], frozenset({"ids", IS_OOD}))
    assert set(chunk.arrays) == {"ids"}
    assert chunk.is_ood
    assert split.is_ood
    (chunk,) = split.read(split.blocks[0], frozenset({"features"}))
    assert set(chunk.arrays) == {"features", "mask"}  # tokens never go without their mask
    with pytest.raises(MissingInputError, match="no array 'logits'"):
        list(split.read(split.blocks[0], frozenset({"logits"})))


def test_bfloat16_tensors_and_checksums_equal_to_those_of_a_store(tmp_path):
    x = torch.linspace(-4, 4, 12).reshape(6, 2).to(torch.bfloat16)
    split = ArraySplit(x, name="ood/val")
    assert split.schema.arrays["features"] == ArraySpec((2,), "bfloat16", "D")
    np.testing.assert_array_equal(whole(split, ["features"])["features"], x.float().numpy())
    writer = Store.create(tmp_path / "s").create_split(
        "ood/val", split.schema.arrays, classes=0, rows=6
    )
    writer.write(0, {"features": x})
    stored = Store.open(tmp_path / "s").split("ood/val")
    fields = frozenset({"features"})
    assert split.checksums(split.blocks[0], fields) == stored.checksums(stored.blocks[0], fields)


def test_tensors_that_require_a_gradient_and_foreign_byte_orders():
    split = ArraySplit(torch.from_numpy(X).requires_grad_(), Y.astype(">i8"))
    back = whole(split, ["features", "labels"])
    np.testing.assert_array_equal(back["features"], X)
    assert back["labels"].dtype == np.dtype("int64")
    assert back["labels"].dtype.isnative


def test_number_of_classes():
    assert ArraySplit(X, Y).schema.classes == 5
    assert ArraySplit(X, Y, classes=9).schema.classes == 9
    assert ArraySplit(X, Y, arrays={"logits": np.zeros((N, 7), "f4")}).schema.classes == 7
    assert ArraySplit(X, np.full(N, -1)).schema.classes == 0
    assert ArraySplit(X).schema.classes == 0
    with pytest.raises(ConfigError, match="pass classes="):
        ArraySplit(X, dask.array.from_array(Y))


def test_labels_out_of_range_are_named_now_or_when_they_are_read():
    bad = Y.copy()
    bad[[3, 17]] = 5, 8
    with pytest.raises(DataError, match=r"split id/train: .* row 3: 5, row 17: 8"):
        ArraySplit(X, bad, classes=5)
    with pytest.raises(DataError, match="row 3: 5"):
        ArraySplit(X, torch.from_numpy(bad), classes=5)
    split = ArraySplit(X, dask.array.from_array(bad), classes=5, chunk_rows=7)
    chunks = split.read(split.blocks[0], frozenset({"labels"}))
    with pytest.raises(DataError, match="row 3: 5"):
        next(chunks)
    late = ArraySplit(X, as_zarr(np.where(bad == 5, 0, bad)), classes=5, chunk_rows=7)
    with pytest.raises(DataError, match="row 17: 8"):
        whole(late, ["labels"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no arrays"),
        ({"features": X[:0]}, "is empty"),
        ({"features": X, "labels": Y[:-1]}, "features: 20, labels: 19"),
        ({"features": np.float64(3.0)}, "known number of rows"),
        ({"features": X, "labels": Y.astype("f8")}, "labels must be integers, got float64"),
        ({"features": np.array(["a", "b"])}, "not supported"),
        ({"features": X.astype("complex64")}, "not supported"),
        ({"features": np.array([{}, {}])}, "not supported"),
        ({"features": X[:, :0]}, "hold nothing"),
        ({"features": np.ma.masked_less(X, 0)}, "features is a numpy masked array"),
        (
            {"features": np.zeros((N, 6, 2)), "arrays": {"mask": np.ones((N, 5), bool)}},
            r"mask has rows of shape \(5,\); expected one flag for each token, \(6,\)",
        ),
        ({"features": np.zeros((N, 6, 2)), "arrays": {"mask": np.ones(N, bool)}}, "mask has rows"),
        ({"features": X, "labels": np.full(N, 2**64 - 1, "u8")}, "largest label is 18446744"),
    ],
)
def test_input_that_is_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        ArraySplit(**arguments)


def test_a_dask_array_of_unknown_length_is_refused():
    x = dask.array.from_array(X.reshape(N, 12), chunks=6)
    with pytest.raises(DataError, match="known number of rows"):
        ArraySplit(x[x[:, 0] > 0])


def test_plain_lists_are_arrays():
    split = ArraySplit([[1.0, 2.0], [3.0, 4.0]], [0, 1])
    assert split.schema.arrays["features"].dtype == "float64"
    assert whole(split, ["features"])["features"].sum() == 10


def test_pickled_splits_are_whole():
    split = pickle.loads(pickle.dumps(ArraySplit(X, Y, block_rows=6)))
    np.testing.assert_array_equal(whole(split, ["features"])["features"], X)
    assert len(split.blocks) == 4


def test_default_sizes_bound_chunks_and_blocks():
    wide = np.broadcast_to(np.float32(0), (100_000, 49, 1024))
    split = ArraySplit(wide, np.zeros(100_000, int))
    assert split.chunk_rows == 4 * 2**20 // (49 * 1024 * 4)
    assert all(block.rows * 49 * 1024 * 4 <= 128 * 2**20 for block in split.blocks)
    assert ArraySplit(wide, chunk_rows=200_000).chunk_rows <= 100_000
    with pytest.raises(ConfigError, match="positive"):
        ArraySplit(X, block_rows=-1)


def test_a06_each_shard_of_a_zarr_array_is_opened_once(tmp_path):
    """dask/dask#12586: reading by inner chunk opened every shard sixteen times."""

    class Counting(WrapperStore):
        gets: ClassVar[Counter] = Counter()

        async def get(self, key, *args, **kwargs):
            if "/c/" in f"/{key}" and kwargs.get("byte_range") is None and not any(args[1:]):
                self.gets[key] += 1
            return await super().get(key, *args, **kwargs)

    rows = np.arange(16384 * 64, dtype=np.float32).reshape(16384, 64)
    path = tmp_path / "sharded.zarr"
    zarr.create_array(path, data=rows, chunks=(64, 64), shards=(1024, 64))
    array = zarr.open_array(Counting(LocalStore(path)), mode="r")
    split = ArraySplit(array, np.zeros(16384, int), classes=1)
    assert split.chunk_rows % 1024 == 0
    Counting.gets.clear()
    read = [
        chunk["features"]
        for block in split.blocks
        for chunk in split.read(block, frozenset({"features"}))
    ]
    assert np.array_equal(np.concatenate(read), rows)
    assert len(Counting.gets) == 16
    assert set(Counting.gets.values()) == {1}


class EveryGet(WrapperStore):
    """Counts every look at a stored chunk, whole or in part."""

    gets: ClassVar[Counter] = Counter()

    async def get(self, key, *args, **kwargs):
        if "/c/" in f"/{key}":
            self.gets[key] += 1
        return await super().get(key, *args, **kwargs)


@pytest.mark.parametrize("step_rows", [None, 1000, 7])
def test_a06_objects_of_any_size_are_opened_once_whatever_the_steps(tmp_path, step_rows):
    n = 3072  # whole shards: of a ragged one zarr reads the inner chunks one by one
    rows, labels = np.arange(n * 8.0).reshape(n, 8), np.arange(n) % 3
    zarr.create_array(tmp_path / "x", data=rows, chunks=(32, 8), shards=(256, 8))
    zarr.create_array(tmp_path / "y", data=labels, chunks=(n,))
    x, y = (zarr.open_array(EveryGet(LocalStore(tmp_path / name)), mode="r") for name in "xy")
    split = ArraySplit(x, y, classes=3, chunk_rows=256)
    EveryGet.gets.clear()
    for name, array in whole(split, ["features", "labels"], step_rows).items():
        np.testing.assert_array_equal(array, {"features": rows, "labels": labels}[name])
    assert len(EveryGet.gets) == 12 + 1
    assert set(EveryGet.gets.values()) == {1}


@pytest.mark.parametrize("step_rows", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("made", [np.asarray, as_zarr, lambda x: torch.asarray(x)])
def test_steps_give_the_same_rows(made, step_rows):
    split = ArraySplit(made(X), Y, chunk_rows=5, block_rows=12)
    for name, array in whole(split, ["features", "labels"], step_rows).items():
        np.testing.assert_array_equal(array, {"features": X, "labels": Y}[name])
    starts = [c.start for c in split.read(split.blocks[1], frozenset({"labels"}), step_rows)]
    assert starts == list(range(12, 20, step_rows or 5))
    assert split.identity(split.blocks[0], frozenset({"labels"})) is None
    with pytest.raises(ConfigError, match="step_rows"):
        next(split.read(split.blocks[0], frozenset({"labels"}), 0))


def test_the_memory_of_reading_is_that_of_copies_alone():
    fields, rows = frozenset({"features"}), 5
    assert ArraySplit(X, chunk_rows=rows).reading_nbytes(fields) == 0
    assert next(ArraySplit(X).read(ArraySplit(X).blocks[0], fields))["features"].base is not None
    lazy = ArraySplit(as_zarr(X), chunk_rows=rows)
    assert lazy.reading_nbytes(fields) >= 2.5 * (6 + rows) * 48  # objects of 6 rows
    assert lazy.reading_nbytes(fields, 1) < lazy.reading_nbytes(fields)
