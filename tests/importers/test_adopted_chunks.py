"""Chunk files of plain zarr under a second name in the store: not copied, and nobody else's."""

import os
import shutil

import numpy as np
import pytest
import zarr

import pipeline as ff
from pipeline.__main__ import main
from pipeline.errors import CorruptError
from pipeline.store import Store

N = 53
X = np.random.default_rng(0).standard_normal((N, 4, 6)).astype("f4")
CODECS = {
    "none": None,
    "crc32c": [zarr.codecs.Crc32cCodec()],
    "zstd": [zarr.codecs.ZstdCodec(level=3)],
    "blosc": [zarr.codecs.BloscCodec(cname="lz4")],
    "gzip and crc32c": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()],
}
OPTIONS = {"arrays": {"features": "feats"}, "layouts": {"features": "NTD"}, "classes": 3}


def plain(path, x=X, chunks=(7, 4, 6), codecs=None, **options):
    group = zarr.create_group(path)
    group.create_array("feats", data=x, chunks=chunks, compressors=codecs, **options)
    group.create_array("labels", data=np.arange(len(x)) % 3, chunks=(11,))
    return path


def adopted(tmp_path, source, **options):
    return ff.import_split(
        tmp_path / "s.zarr", "id/train", source,
        **{**OPTIONS, "adopt": True, "block_nbytes": 2000, **options},
    )  # fmt: skip


def read(tmp_path):
    split = Store.open(tmp_path / "s.zarr").split("id/train")
    chunks = [c for b in split.blocks for c in map(_copied, split.read(b, {"features", "labels"}))]
    return [np.concatenate(each) for each in zip(*chunks, strict=True)]


def _copied(chunk):
    return chunk["features"].copy(), chunk["labels"].copy()


def contents(path):
    return {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("codecs", CODECS)
def test_the_files_are_the_same_and_the_rows_are_those_of_zarr(tmp_path, codecs):
    source = plain(tmp_path / "g", codecs=CODECS[codecs])
    before = contents(source)
    done = adopted(tmp_path, source)
    assert (done.adopted, done.copied, done.rows) == ("features", "", N)
    ours = sorted((tmp_path / "s.zarr/id/train/features/c").glob("*/0/0"))
    theirs = sorted((source / "feats/c").glob("*/0/0"))
    assert len(ours) == len(theirs) == 8
    assert [os.stat(file).st_ino for file in ours] == [os.stat(file).st_ino for file in theirs]
    assert contents(source) == before
    features, labels = read(tmp_path)
    assert features.tobytes() == X.tobytes()
    assert labels.tolist() == [i % 3 for i in range(N)]
    opened = zarr.open_array(tmp_path / "s.zarr/id/train/features", mode="r")
    assert opened[:].tobytes() == X.tobytes()
    Store.open(tmp_path / "s.zarr").split("id/train", verify=True)


def test_what_happens_on_one_side_does_not_reach_the_other(tmp_path):
    source = plain(tmp_path / "g")
    adopted(tmp_path, source)
    before = contents(source)
    store = Store.open(tmp_path / "s.zarr")
    writer = store.writer("id/train")
    second = writer.blocks[1]
    zeros = {"features": np.zeros((second.rows, 4, 6), "f4"), "labels": np.zeros(second.rows, int)}
    writer.write(1, zeros, overwrite=True)
    store.remove_block("id/train", 2)
    assert contents(source) == before
    zarr.open_array(source / "feats", mode="r+")[:14] = 5.0
    first = writer.blocks[0]
    rows = np.concatenate([c["features"].copy() for c in store.split("id/train").read(
        first, frozenset({"features"}))])  # fmt: skip
    assert rows.tobytes() == X[: first.rows].tobytes()
    shutil.rmtree(source)
    store.split("id/train", verify=True)


def test_bytes_that_somebody_changes_in_place_are_found(tmp_path):
    source = plain(tmp_path / "g")
    adopted(tmp_path, source)
    with (source / "feats/c/1/0/0").open("r+b") as file:
        file.seek(100)
        file.write(b"\x55")
    with pytest.raises(CorruptError, match="features"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("options", "asked", "why"),
    [
        ({"chunks": (7, 2, 6)}, {}, "has chunks that split a row"),
        ({"shards": (14, 4, 6)}, {}, "has other codecs"),
        ({"filters": [zarr.codecs.TransposeCodec(order=(0, 2, 1))]}, {}, "has other codecs"),
        ({"chunks": (80, 4, 6)}, {}, "chunks of other rows"),
        ({}, {"dtype": "float64"}, "is converted"),
        ({}, {"layouts": {"features": "NDT"}}, "is converted"),
        ({"chunk_key_encoding": {"name": "v2", "separator": "."}}, {}, "with other names"),
    ],
)
def test_what_does_not_fit_is_copied_and_said(tmp_path, options, asked, why):
    done = adopted(tmp_path, plain(tmp_path / "g", **options), **asked)
    assert done.adopted == ""
    assert why in done.copied
    features, _ = read(tmp_path)
    wanted = X.swapaxes(1, 2) if "layouts" in asked else X
    assert np.array_equal(features, wanted)


def test_format_2_and_files_that_are_no_zarr_are_copied(tmp_path):
    group = zarr.create_group(tmp_path / "g", zarr_format=2)
    group.create_array("feats", data=X, chunks=(7, 4, 6))
    group.create_array("labels", data=np.arange(N) % 3)
    assert "zarr of format 2" in adopted(tmp_path, tmp_path / "g").copied
    np.savez(tmp_path / "a.npz", feats=X, labels=np.arange(N) % 3)
    shutil.rmtree(tmp_path / "s.zarr")
    assert "is not one zarr array" in adopted(tmp_path, tmp_path / "a.npz").copied


def test_where_links_cannot_be_the_bytes_are_copied(tmp_path, monkeypatch):
    source = plain(tmp_path / "g", codecs=CODECS["zstd"])
    link = os.link

    def refused(source, target):
        if "feats" in str(source):
            raise OSError(18, "Invalid cross-device link")
        link(source, target)

    monkeypatch.setattr(os, "link", refused)
    done = adopted(tmp_path, source)
    assert (done.adopted, done.copied) == (
        "", "features: files cannot be linked into the store ([Errno 18] Invalid cross-device link)"
    )  # fmt: skip
    features, _ = read(tmp_path)
    assert features.tobytes() == X.tobytes()
    monkeypatch.undo()
    ours = next((tmp_path / "s.zarr/id/train/features/c").glob("*/0/0"))
    assert os.stat(ours).st_nlink == 1


def test_an_adoption_goes_on_and_mends(tmp_path):
    source = plain(tmp_path / "g")
    adopted(tmp_path, source)
    for file in (tmp_path / "s.zarr/id/train/features/c").glob("*/0/0"):
        if "/2/0/0" in str(file):
            file.unlink()
    (tmp_path / "s.zarr/id/train/manifest/block-00001/zarr.json").unlink()
    done = adopted(tmp_path, source, resume=True)
    assert done.adopted == "features"
    assert done.written >= 1
    assert read(tmp_path)[0].tobytes() == X.tobytes()


def test_what_was_begun_by_copying_goes_on_by_copying(tmp_path):
    source = plain(tmp_path / "g", codecs=CODECS["zstd"])
    adopted(tmp_path, source, adopt=False, chunk_nbytes=7 * 96)
    (tmp_path / "s.zarr/id/train/manifest/block-00001/zarr.json").unlink()
    done = adopted(tmp_path, source, resume=True)
    assert (done.adopted, done.written) == ("", 1)
    assert "begun with other codecs" in done.copied
    assert read(tmp_path)[0].tobytes() == X.tobytes()


def test_what_was_begun_by_linking_goes_on_by_copying(tmp_path):
    source = plain(tmp_path / "g", codecs=CODECS["crc32c"])
    before = contents(source)
    adopted(tmp_path, source)
    (tmp_path / "s.zarr/id/train/manifest/block-00001/zarr.json").unlink()
    done = adopted(tmp_path, source, adopt=False, resume=True)
    assert (done.adopted, done.copied, done.written) == ("", "", 1)
    assert read(tmp_path)[0].tobytes() == X.tobytes()
    assert contents(source) == before


def test_the_command_says_which(capsys, tmp_path):
    def run(source, split):
        words = ("--map", "feats=features", "--layout", "features=NTD", "--classes", "3", "--adopt")
        store = str(tmp_path / "s.zarr")
        code = main(["import", str(source), "--store", store, "--split", split, *words])
        return code, capsys.readouterr().out

    code, out = run(plain(tmp_path / "g"), "id/train")
    assert code == 0
    assert "features: its chunk files were linked, not copied" in out
    code, out = run(plain(tmp_path / "h", chunks=(7, 2, 6)), "id/test")
    assert code == 0
    assert "copied: features has chunks that split a row" in out
