"""What may be declared: names, shapes, chunk and block rows, and what creation refuses."""

import math
import os

import numpy as np
import pytest
import zarr

from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, DataError, ExistsRefusedError
from pipeline.store import Store, disk, layout
from pipeline.store.declaration import declare

TOKENS = {
    "features": ArraySpec((49, 1024), "float32", "TD"),
    "logits": ArraySpec((1000,), "float32", "K"),
    "labels": ArraySpec((), "int64"),
}


def planned(specs, rows=None, **sizes):
    sizes = {"block_nbytes": 500_000_000, "chunk_nbytes": 16 * 2**20, **sizes}
    return declare(specs, classes=5, rows=rows, attributes={}, **sizes)


def test_token_chunks_stay_under_16_mib():
    made = planned(TOKENS, 50_000)
    assert made.chunk_rows["features"] == 83  # 83 x 49 x 1024 x 4 bytes are 15.9 MiB
    assert made.block_rows % 83 == 0
    assert made.block_rows * (49 * 1024 * 4 + 4008) <= 500_000_000
    assert made.allotted[0].rows == made.block_rows
    assert made.allotted[-1].stop == 50_000


@pytest.mark.parametrize("rows", [None, 1, 7, 82, 83, 84, 50_000])
@pytest.mark.parametrize("chunk_nbytes", [1, 2**18, 10**6, 16 * 2**20])
def test_chunk_rows_divide_the_block_rows(rows, chunk_nbytes):
    made = planned(TOKENS, rows, chunk_nbytes=chunk_nbytes)
    for name, size in made.chunk_rows.items():
        assert made.block_rows % size == 0
        assert size == 1 or size * TOKENS[name].nbytes <= chunk_nbytes
    covered = [row for block in made.allotted[:2] for row in (block.start, block.stop)]
    assert covered[:1] == ([0] if rows else [])


@pytest.mark.parametrize(
    "name", ["id/train", "id/csid/a.b-c_1", "ood/near/x", "ood/far/9", "ood/val"]
)
def test_names_that_are_fine(path, name):
    Store.create(path).create_split(name, {"labels": ArraySpec((), "int64")}, classes=2, rows=3)
    assert Store.open(path).splits() == (name,)


@pytest.mark.parametrize(
    "name",
    ["train", "id/train/x", "ood/near", "ood/near/", "ood/near/a b", "ood/near/..", "../id/train",
     "ood/far/__x", "id/val\n", "id/csid/a/b", ""],
)  # fmt: skip
def test_names_that_are_refused(path, name):
    store = Store.create(path)
    with pytest.raises(ConfigError, match="not the name of a split"):
        store.create_split(name, {"labels": ArraySpec((), "int64")}, classes=2, rows=3)
    assert store.splits() == ()


def test_splits_come_in_natural_order(path):
    store = Store.create(path)
    names = [
        "id/train",
        "id/val",
        "id/test",
        "id/csid/a",
        "ood/near/x2",
        "ood/near/x10",
        "ood/far/b",
    ]
    for name in reversed(names):
        store.create_split(name, {"labels": ArraySpec((), "int64")}, classes=2, rows=3)
    assert store.splits() == tuple(names)


@pytest.mark.parametrize(
    ("spec", "sizes", "message"),
    [
        (ArraySpec((50_000, 49, 1024), "float32"), {}, "10.04 GB; .* 2.15 GB; store narrower"),
        (
            ArraySpec((49, 1024), "float32"),
            {"chunk_nbytes": 2**40, "block_nbytes": 2**40},
            r"chunks of 83 rows \(16.7 MB",
        ),
        (ArraySpec((3, 0), "float32"), {}, "length >= 1"),
        (ArraySpec((3,), "complex64"), {}, "dtype 'complex64'"),
        (ArraySpec((3, 4), "float32", "T"), {}, "must name the axes"),
    ],
)  # fmt: skip
def test_a03_arrays_that_cannot_be_stored_are_refused_in_words(path, spec, sizes, message):
    store = Store.create(path)
    with pytest.raises(ConfigError, match=message):
        store.create_split("id/train", {"features": spec}, classes=2, rows=50_000, **sizes)
    assert os.listdir(path) == ["zarr.json"]


def test_declarations_that_make_no_sense(path):
    store, spec = Store.create(path), {"labels": ArraySpec((), "int64")}
    with pytest.raises(DataError, match="at least one row"):
        store.create_split("id/train", spec, classes=2, rows=0)
    with pytest.raises(ConfigError, match="at least one array"):
        store.create_split("id/train", {}, classes=2, rows=3)
    with pytest.raises(ConfigError, match="labels must be integers"):
        store.create_split("id/train", {"labels": ArraySpec((), "float32")}, classes=2, rows=3)
    with pytest.raises(ConfigError, match="plain JSON"):
        store.create_split("id/train", spec, classes=2, rows=3, attributes={"x": math.nan})
    for name in ("manifest", "is_ood", "a/b"):
        with pytest.raises(ConfigError, match="name of an array"):
            store.create_split("id/train", {name: ArraySpec((), "int64")}, classes=2, rows=3)
    assert store.splits() == ()


def test_creating_a_split_again_resumes_or_says_what_differs(path, sample):
    attributes = {"model": "vit", "prefix_tokens": (1, 4)}
    store = Store.create(path)
    make = {"classes": 5, "rows": 20, "attributes": attributes, **sample.layout}
    store.create_split("id/train", sample.specs, **make).write(0, sample.rows(0, 8))
    with pytest.raises(ExistsRefusedError, match="exist_ok"):
        store.create_split("id/train", sample.specs, **make)
    writer = store.create_split("id/train", sample.specs, **make, exist_ok=True)
    assert writer.committed == {0}
    assert store.attributes("id/train") == {"model": "vit", "prefix_tokens": [1, 4]}
    other = {**make, "classes": 6, "attributes": {"model": "swin"}}
    with pytest.raises(ExistsRefusedError, match=r"classes: stored 5, asked for 6.*'vit'.*'swin'"):
        store.create_split("id/train", sample.specs, **other, exist_ok=True)
    assert writer.committed == {0}


def test_a09a_running_again_erases_nothing(path):
    spec = {"labels": ArraySpec((), "int64")}
    sevens = {"labels": np.full(4, 7)}
    Store.create(path).create_split("id/train", spec, classes=8, rows=4).write(0, sevens)
    with pytest.raises(ExistsRefusedError, match="open it to resume"):
        Store.create(path)
    store = Store.open(path)
    store.create_split("id/train", spec, classes=8, rows=4, exist_ok=True)
    split = store.split("id/train")
    (chunk,) = split.read(split.blocks[0], frozenset({"labels"}))
    assert chunk["labels"].tolist() == [7, 7, 7, 7]


def test_overwriting_erases_only_once_there_is_something_new(path, sample):
    sample.filled(path)
    for _ in range(2):  # a second try, after the first one died before it wrote anything
        store = Store.create(path, overwrite=True)
        (aside,) = path.parent.glob(".store.zarr.replaced-*")
        old = Store.open(aside).split("id/train")
        np.testing.assert_array_equal(sample.read(old)["labels"], sample.rows(0, 20)["labels"])
        assert store.splits() == ()
        writer = store.create_split("id/train", sample.specs, classes=5, rows=8, **sample.layout)
    writer.write(0, sample.rows(0, 8))
    assert not list(path.parent.glob(".store.zarr.replaced-*"))
    assert Store.open(path).split("id/train").schema.rows == 8


def test_a_store_from_elsewhere_cannot_name_what_is_removed(path, sample):
    writer = sample.writer(path)
    (path.parent / "photos").mkdir()
    attributes = disk.read_group(path)
    attributes[layout.DECLARATION]["replaces"] = ["photos"]
    disk.write_group(path, attributes)
    writer.write(0, sample.rows(0, 8))
    assert (path.parent / "photos").is_dir()
    assert "replaces" not in disk.read_group(path)[layout.DECLARATION]


def test_what_is_not_a_store_is_never_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("years of work")
    for target in ("thesis", "thesis/chapter.txt"):
        with pytest.raises(ExistsRefusedError, match="not a featfold store"):
            Store.create(tmp_path / target, overwrite=True)
    assert (tmp_path / "thesis/chapter.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert Store.create(tmp_path / "empty").splits() == ()


def test_a09b_the_format_is_read_from_disk_and_nothing_is_written(tmp_path):
    zarr.create_group(tmp_path / "feat", zarr_format=3)
    zarr.create_group(tmp_path / "old", zarr_format=2)
    zarr.create_group(tmp_path / "mixed", zarr_format=3)
    (tmp_path / "mixed/.zgroup").write_text('{"zarr_format": 2}')
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(ConfigError, match="not written by featfold"):
        Store.open(tmp_path / "feat")
    for name in ("old", "mixed"):
        with pytest.raises(ConfigError, match="zarr format 2"):
            Store.open(tmp_path / name)
    for name in ("feat", "old", "mixed"):
        with pytest.raises(ExistsRefusedError):
            Store.create(tmp_path / name, overwrite=True)
    after = {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix != ".lock"
    }
    assert after == before
