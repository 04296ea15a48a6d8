"""What goes into a store comes out of it, whatever the dtype, the chunks and the blocks."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import zarr

from pipeline.chunk import IS_OOD, ArraySpec, Block
from pipeline.errors import (
    ConfigError,
    DataError,
    ExistsRefusedError,
    IncompleteError,
    MissingInputError,
)
from pipeline.store import Store, reader

N = 20


@pytest.mark.parametrize(
    ("dtype", "chunk_rows"),
    [
        *(("float32", chunk_rows) for chunk_rows in (1, 7, N - 1, N)),
        *((dtype, 7) for dtype in ("float16", "float64", "int64", "uint8", "bool")),
    ],
)
def test_round_trip_over_dtypes_and_chunk_rows(path, dtype, chunk_rows, sample):
    x = (np.arange(N * 6).reshape(N, 2, 3) % 5 - 1).astype(dtype)
    spec = ArraySpec((2, 3), dtype)
    writer = Store.create(path).create_split(
        "id/val", {"x": spec}, classes=2, rows=N, chunk_nbytes=chunk_rows * spec.nbytes,
        block_nbytes=2 * chunk_rows * spec.nbytes,
    )  # fmt: skip
    for block in reversed(writer.blocks):
        writer.write(block.index, {"x": x[block.start : block.stop]})
    split = Store.open(path).split("id/val", verify=True)
    back = sample.read(split, ["x"])["x"]
    assert split.chunk_rows == chunk_rows
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(zarr.open_group(path, mode="r")["id/val/x"][:], x)


def test_a08c_bfloat16_is_stored_losslessly(path, sample):
    x = torch.ones(3, dtype=torch.bfloat16)
    wide = torch.linspace(-3, 3, 6).reshape(3, 2).to(torch.bfloat16)
    specs = {"x": ArraySpec((), "bfloat16"), "wide": ArraySpec((2,), "bfloat16")}
    writer = Store.create(path).create_split("id/train", specs, classes=1, rows=3)
    writer.write(0, {"x": x, "wide": wide})
    array = zarr.open_group(path, mode="r")["id/train/x"]
    assert array.dtype == np.uint16
    assert array.attrs["logical_dtype"] == "bfloat16"
    back = sample.read(Store.open(path).split("id/train", verify=True), ["x", "wide"])
    assert back["x"].tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_array_equal(back["wide"], wide.float().numpy())


def test_bfloat16_takes_exact_float32_and_refuses_what_would_be_rounded(path, sample):
    specs = {"x": ArraySpec((), "bfloat16")}
    writer = Store.create(path).create_split("id/train", specs, classes=1, rows=3)
    with pytest.raises(DataError, match="not exact"):
        writer.write(0, {"x": np.array([1.0, 2.0, 0.1], "f4")})
    assert not writer.committed
    writer.write(0, {"x": np.array([1.0, np.inf, np.nan], "f4")})
    back = sample.read(Store.open(path).split("id/train"), ["x"])["x"]
    np.testing.assert_array_equal(back, [1.0, np.inf, np.nan])


def test_chunks_of_fill_values_only_are_files(path, sample):
    rows = sample.rows(0, 8)
    rows = {"features": np.zeros_like(rows["features"]), "logits": np.full((8, 5), np.nan, "f4"),
            "labels": np.full(8, -1)}  # fmt: skip
    sample.writer(path, rows=8).write(0, rows)
    split = Store.open(path).split("id/train", verify=True)
    for name, array in sample.read(split).items():
        np.testing.assert_array_equal(array, rows[name])
    assert (path / "id/train/labels/c/0").is_file()
    assert (path / "id/train/logits/c/0/0").is_file()


def test_all_fill_chunks_of_every_kind_are_read_back(path, sample):
    kinds = {"f": "float32", "i": "int32", "u": "uint8", "b": "bool"}
    specs = {name: ArraySpec((2,), dtype) for name, dtype in kinds.items()}
    fill = {"f": np.nan, "i": -1, "u": 0, "b": False}
    rows = {name: np.full((6, 2), fill[name], dtype) for name, dtype in kinds.items()}
    Store.create(path).create_split("ood/val", specs, classes=0, rows=6).write(0, rows)
    back = sample.read(Store.open(path).split("ood/val"), list(specs))
    for name in specs:
        np.testing.assert_array_equal(back[name], rows[name])


def test_plain_zarr_walks_the_store_without_a_warning(path, sample):
    store = sample.filled(path)
    sample.filled(path, "ood/near/birds-2", rows=9)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        members = dict(zarr.open_group(path, mode="r").members(max_depth=None))
    assert not seen
    assert {"id/train/features", "id/train/manifest/block-00002"} <= set(members)
    assert members["id/train/features"].metadata.dimension_names == (
        "row", "features_T", "features_D")  # fmt: skip
    record = dict(members["id/train/manifest/block-00002"].attrs)
    assert (record["start"], record["rows"], record["generation"]) == (16, 4, 0)
    assert record["arrays"]["labels"]["nbytes"] == 32
    assert len(record["arrays"]["features"]["crc32c"]) == 8
    assert store.splits() == ("id/train", "ood/near/birds-2")


def test_zstd_only_where_it_saves_a_third(path):
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((2000, 8)).astype("f4")
    relu = noise * (noise > 1.5)
    specs = {name: ArraySpec((8,), "float32") for name in ("noise", "relu")}
    Store.create(path).create_split("id/train", specs, classes=0, rows=2000).write(
        0, {"noise": noise, "relu": relu}
    )
    group = zarr.open_group(path, mode="r")["id/train"]
    codecs = {name: [c["name"] for c in group[name].metadata.to_dict()["codecs"]] for name in specs}
    assert codecs == {"noise": ["bytes", "crc32c"], "relu": ["bytes", "zstd", "crc32c"]}


def test_each_chunk_is_read_once_and_only_what_was_asked_for(path, sample):
    split = sample.filled(path).split("id/train")
    reader.reset_reads()
    list(sample.read(split))
    assert set(reader.READS.values()) == {1}
    assert len(reader.READS) == 5 + 3 + 3  # features of 4 rows; logits and labels of 8
    reader.reset_reads()
    sample.read(split, ["logits", "labels"])
    assert {key[1] for key in reader.READS} == {"logits", "labels"}
    assert set(reader.READS.values()) == {1}


def test_chunks_of_one_array_may_straddle_those_of_another(path, sample):
    specs = {"features": ArraySpec((8,), "float32"), "labels": ArraySpec((5,), "int64")}
    writer = Store.create(path).create_split(
        "id/train", specs, classes=100, rows=24, chunk_nbytes=160, block_nbytes=12 * 72
    )
    assert writer.declared.chunk_rows == {"features": 4, "labels": 4}
    specs = {"features": ArraySpec((10,), "float32"), "labels": ArraySpec((3,), "int64")}
    writer = Store.open(path).create_split(
        "id/val", specs, classes=100, rows=24, chunk_nbytes=120, block_nbytes=12 * 64
    )
    assert writer.declared.chunk_rows == {"features": 3, "labels": 4}
    x, y = np.arange(240, dtype="f4").reshape(24, 10), np.arange(72).reshape(24, 3)
    for block in writer.blocks:
        rows = slice(block.start, block.stop)
        writer.write(block.index, {"features": x[rows], "labels": y[rows]})
    split = Store.open(path).split("id/val")
    reader.reset_reads()
    back = sample.read(split, ["features", "labels"])
    np.testing.assert_array_equal(back["features"], x)
    np.testing.assert_array_equal(back["labels"], y)
    assert set(reader.READS.values()) == {1}


def test_chunks_know_their_rows_and_the_virtual_field_is_not_read(path, sample):
    sample.filled(path, "ood/far/x")
    split = Store.open(path).split("ood/far/x")
    chunks = [c for b in split.blocks for c in split.read(b, frozenset({IS_OOD}))]
    assert split.is_ood
    assert all(chunk.is_ood and not chunk.arrays for chunk in chunks)
    assert [(c.start, c.stop) for c in chunks] == [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20)]
    assert not reader.READS


def test_a_split_pickles_small_and_opens_where_it_is_read(path, sample):
    split = sample.filled(path).split("id/train")
    sample.read(split)
    packed = pickle.dumps(split)
    assert len(packed) < 500
    code = (
        "import sys, pickle; split = pickle.loads(sys.stdin.buffer.read());"
        "print(split.schema.rows, sum(float(c['features'].sum()) for b in split.blocks"
        " for c in split.read(b, frozenset({'features'}))), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=packed, capture_output=True, check=True
    )
    rows, total, torch_loaded = done.stdout.split()
    expected = sample.rows(0, N)["features"].sum(dtype="f8")
    assert (int(rows), torch_loaded) == (N, b"False")
    assert float(total) == pytest.approx(expected, rel=1e-4)


def test_checksums_come_from_the_manifest_and_differ_by_content(path, sample):
    split = sample.filled(path).split("id/train")
    sums = [split.checksums(block, frozenset({"labels"}))["labels"] for block in split.blocks]
    assert len(set(sums)) == 3
    assert set(split.checksums(split.blocks[0], frozenset({"labels"}))) == {"labels"}


def test_an_incomplete_split_is_refused_and_its_rows_named(path, sample):
    writer = sample.writer(path)
    store = Store.open(path)
    with pytest.raises(IncompleteError, match="rows 0-20"):
        store.split("id/train", allow_partial=True)
    writer.write(0, sample.rows(0, 8))
    writer.write(2, sample.rows(16, 20))
    with pytest.raises(IncompleteError, match=r"rows 8-16 \(1 of 3 blocks\)"):
        store.split("id/train")
    part = store.split("id/train", allow_partial=True)
    assert part.schema.rows == 8
    np.testing.assert_array_equal(sample.read(part)["labels"], sample.rows(0, 8)["labels"])
    assert [block.index for block in writer.missing()] == [1]
    writer.write(1, sample.rows(8, 16))
    assert store.split("id/train").schema.rows == 20
    assert pickle.loads(pickle.dumps(part)).schema.rows == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.full(8, 5)}, "row 8: 5, row 9: 5.* and 3 more rows"),
        ({"labels": np.arange(8) % 7}, "row 13: 5, row 14: 6"),
        ({"labels": np.zeros((8, 1), int)}, r"shape \(8,\), got \(8, 1\)"),
        ({"logits": np.zeros((7, 5), "f4")}, r"shape \(8, 5\), got \(7, 5\)"),
        ({"features": np.zeros((8, 3, 4), "f8")}, "must be float32, got float64"),
        ({"extra": np.zeros(8)}, "expected arrays features, labels, logits, got extra"),
        ({"labels": np.array(["a"] * 8)}, "not supported"),
    ],
)
def test_rows_that_contradict_the_declaration_write_nothing(path, sample, change, message):
    writer = sample.writer(path)
    with pytest.raises(DataError, match=message):
        writer.write(1, {**sample.rows(8, 16), **change})
    assert not writer.committed
    assert not (path / "id/train/features").exists()


def test_labels_below_zero_are_void_and_stored(path, sample):
    rows = {**sample.rows(0, 8), "labels": np.array([-1, 0, 4, -100, 1, 2, 3, -1])}
    sample.writer(path, rows=8).write(0, rows)
    back = sample.read(Store.open(path).split("id/train"), ["labels"])["labels"]
    np.testing.assert_array_equal(back, rows["labels"])


def test_a_committed_block_is_overwritten_only_on_request(path, sample):
    store = sample.filled(path)
    old, packed = store.split("id/train"), pickle.dumps(store.split("id/train"))
    writer = store.writer("id/train")
    with pytest.raises(ExistsRefusedError, match="committed already"):
        writer.write(1, sample.rows(8, 16))
    changed = {**sample.rows(8, 16), "labels": np.zeros(8, int)}
    writer.write(1, changed, overwrite=True)
    new = store.split("id/train", verify=True)
    assert [record.generation for record in new.records] == [0, 1, 0]
    assert sample.read(new, ["labels"])["labels"][8:16].tolist() == [0] * 8
    with pytest.raises(DataError, match="overwritten after"):
        sample.read(old, ["labels"])
    with pytest.raises(DataError, match="overwritten after"):
        pickle.loads(packed)


def test_a_block_overwritten_while_it_is_read_is_an_error(path, sample):
    store = sample.filled(path)
    split = store.split("id/train")
    chunks = split.read(split.blocks[0], frozenset({"features"}))
    next(chunks)
    store.writer("id/train").write(0, sample.rows(0, 8), overwrite=True)
    with pytest.raises(DataError, match="overwritten after"):
        list(chunks)


def test_unknown_names_and_blocks(path, sample):
    store = sample.filled(path)
    store.create_split("id/csid/train1", sample.specs, classes=5, rows=1)
    with pytest.raises(MissingInputError, match=r"id/train, .*; did you mean id/csid/train1"):
        store.split("id/csid/train2")
    split = store.split("id/train")
    with pytest.raises(MissingInputError, match="no array 'cls'"):
        list(split.read(split.blocks[0], frozenset({"cls"})))
    with pytest.raises(DataError, match="no block"):
        list(split.read(Block(0, 0, 5), frozenset({"labels"})))
    with pytest.raises(ConfigError, match="no block 3"):
        store.writer("id/train").write(3, sample.rows(20, 28))
    with pytest.raises(MissingInputError, match="not there"):
        Store.open(path.parent / "nothing")
