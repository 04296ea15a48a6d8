"""Stores in an object store, read and written through a real S3 server on the loopback."""

import json
import math
import pickle
from collections import Counter

import numpy as np
import pytest
import zarr
from obstore.store import S3Store
from zarr.storage import ObjectStore

import pipeline as ff
from pipeline.chunk import ArraySpec
from pipeline.errors import (
    ConfigError,
    CorruptError,
    ExistsRefusedError,
    IncompleteError,
    MissingInputError,
)
from pipeline.store import Store, manifest, place
from pipeline.store.object_array import zarr_store
from pipeline.store.survey import HeldSplit, examine

K, T, D = 5, 7, 16
SPECS = {
    "features": ArraySpec((T, D), "float32", "TD"),
    "halves": ArraySpec((D,), "bfloat16", "D"),
    "logits": ArraySpec((K,), "float16", "K"),
    "labels": ArraySpec((), "int64"),
    "ids": ArraySpec((), "int64"),
}
ROW_NBYTES = T * D * 4 + D * 2 + K * 2 + 16
SIZES = {"chunk_nbytes": 8 * T * D * 4, "block_nbytes": 24 * ROW_NBYTES}
RAW = ("features", "halves", "logits")
"""Arrays whose bytes do not compress."""


def rows_of(start, stop, seed=0):
    ids = np.arange(start, stop)
    rng = np.random.default_rng(seed)
    rng.standard_normal((start, T * D + D + K))  # rows do not depend on the block they come in
    noise = rng.standard_normal((stop - start, T * D + D + K)).astype("f4")
    features = noise[:, : T * D].reshape(-1, T, D) + 4 * np.eye(K, D)[ids % K][:, None]
    bits = noise[:, T * D : T * D + D].copy().view(np.uint32) & 0xFFFF0000
    return {
        "features": features.astype("f4"),
        "halves": bits.view("f4"),
        "logits": noise[:, T * D + D :].astype("f2"),
        "labels": ids % K,
        "ids": ids * 3,
    }


def fill(path, name="id/train", rows=83, seed=0):
    store = Store.open(path) if Store.is_at(path) else Store.create(path)
    writer = store.create_split(name, SPECS, classes=K, rows=rows, exist_ok=True, **SIZES)
    for block in writer.missing():
        writer.write(block.index, rows_of(block.start, block.stop, seed))
    return store


def read(split, fields=tuple(SPECS)):
    parts = {name: [] for name in fields}
    for block in split.blocks:
        for chunk in split.read(block, frozenset(fields)):
            for name, kept in parts.items():
                kept.append(chunk[name].copy())
    return {name: np.concatenate(kept) for name, kept in parts.items()}


def check(split, rows=83, seed=0):
    expected = rows_of(0, rows, seed)
    for name, found in read(split).items():
        assert found.dtype == expected[name].dtype
        assert found.tobytes() == expected[name].tobytes(), name


def objects(url):
    """Return every object below, with its content."""
    root = place.at(url)
    return {str(one): bytes(one.read_bytes()) for one in root.all_below()}


def files(path):
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_store_holds_the_same_bytes_as_one_in_a_folder(bucket, path):
    check(fill(bucket.store).split("id/train", verify=True))
    fill(path)
    there = {key.removeprefix(f"{bucket.store}/"): c for key, c in objects(bucket.store).items()}
    here = files(path)
    assert there.keys() == here.keys()
    for name, content in here.items():
        if "/manifest/block-" in name:  # when and by whom it was written differs
            one, two = (json.loads(c)["attributes"] for c in (content, there[name]))
            assert one["arrays"] == two["arrays"]
        else:
            assert there[name] == content, name


def test_zarr_itself_opens_it_without_a_warning(bucket):
    fill(bucket.store)
    plain = S3Store(bucket.bucket, prefix="feats.zarr")
    group = zarr.open_group(ObjectStore(plain, read_only=True), mode="r")
    ours = zarr.open_group(zarr_store(place.at(bucket.store), read_only=True), mode="r")
    assert dict(ours.members(max_depth=None)).keys() == dict(group.members(max_depth=None)).keys()
    np.testing.assert_array_equal(group["id/train/features"][:], rows_of(0, 83)["features"])
    assert "id/train/manifest/block-00000" in dict(group.members(max_depth=None))


def test_what_is_in_a_bucket_is_told(bucket):
    store = fill(bucket.store)
    for name in ("ood/near/b10", "ood/near/b9", "id/val", "ood/far/x", "id/csid/y"):
        fill(bucket.store, name, 9)
    order = ("id/train", "id/val", "id/csid/y", "ood/near/b9", "ood/near/b10", "ood/far/x")
    assert store.splits() == order
    assert store.has("ood/far/x")
    assert not store.has("ood/far/none")
    found = list(examine(store, verify=True))
    assert all(isinstance(one, HeldSplit) and not one.missing for one in found)
    with pytest.raises(MissingInputError, match=r"did you mean ood/far/x\?"):
        store.split("ood/far/xx")
    assert repr(store) == f"Store('{bucket.store}')"


@pytest.mark.parametrize("end", ["", "/", "//"])
def test_slashes_at_the_end_say_nothing(bucket, end):
    fill(bucket.store)
    check(Store.open(bucket.store + end).split("id/train"))
    assert Store.is_at(bucket.store + end)


def test_a_key_may_hold_blanks_and_letters_of_any_language(bucket):
    url = f"s3://{bucket.bucket}/my feats/größe 50%/a+b"
    check(fill(url).split("id/train"))
    assert str(Store.open(url).path) == url


def test_a_pass_fetches_the_bytes_of_its_arrays_once(bucket):
    store = fill(bucket.store)
    split = store.split("id/train")
    bucket.reset()
    read(split, ("features", "labels"))
    got, root = bucket.chunks(), place.at(bucket.store)
    assert {key.split("/")[2] for key in got} == {"features", "labels"}
    short = {"id/train/features/c/10/0/0": 3 * T * D * 4, "id/train/labels/c/3": 11 * 8}
    """Last chunks, of which only the rows that the split has are fetched."""
    for key, nbytes in got.items():
        assert nbytes == short.get(key, len((root / key).read_bytes()))
    assert len([key for key in got if "features" in key]) == math.ceil(83 / 8)


def test_blocks_that_share_a_chunk_fetch_their_own_rows_of_it(bucket):
    writer = Store.create(bucket.store).create_split("id/train", SPECS, classes=K, **SIZES)
    for start, stop in ((0, 5), (5, 6), (6, 21), (21, 30)):
        writer.append(rows_of(start, stop))
    split = Store.open(bucket.store).split("id/train", verify=True)
    check(split, 30)
    bucket.reset()
    read(split, ("features",))
    wanted = 30 * T * D * 4
    whole = [key for key, n in bucket.chunks().items() if n == 8 * T * D * 4 + 4]
    assert sum(bucket.chunks().values()) == wanted + 4 * len(whole)


def test_memory_of_reading_counts_the_chunk_that_was_fetched(bucket, path):
    there, here = fill(bucket.store).split("id/train"), fill(path).split("id/train")
    assert there.reading_nbytes({"features"}) >= here.reading_nbytes({"features"}) + 8 * T * D * 4


def test_a_split_pickles_as_its_name(bucket):
    split = fill(bucket.store).split("id/train")
    sent = pickle.dumps(split)
    assert len(sent) < 400
    check(pickle.loads(sent))


def test_the_same_numbers_as_from_a_folder(bucket, path, tmp_path):
    for name, rows in (("id/train", 83), ("ood/far/x", 40)):
        fill(path, name, rows)
        fill(bucket.store, name, rows)
    scores = []
    for number, at in enumerate((path, bucket.store)):
        options = {"cluster": "threads", "workers": 2, "cache": tmp_path / str(number)}
        store = Store.open(at)
        fitted = ff.fit(["mahalanobis", "knn"], store.split("id/train"), **options)
        scores.append(ff.score(fitted, store.split("ood/far/x"), **options))
    for name, expected in scores[0].items():
        np.testing.assert_array_equal(scores[1][name], expected)


def test_partials_of_a_store_at_a_url_are_kept_at_home(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    split = fill(bucket.store).split("id/train")
    before = set(objects(f"s3://{bucket.bucket}"))
    ff.fit("mahalanobis", split, cluster="threads", workers=1)
    assert set(objects(f"s3://{bucket.bucket}")) == before
    assert list((tmp_path / "home/featfold").iterdir())
    assert [p.name for p in tmp_path.iterdir()] == ["home"]
    bucket.reset()
    ff.fit("mahalanobis", split, cluster="threads", workers=1)
    assert not bucket.chunks()  # nothing is read twice


def test_a_store_is_never_erased_before_there_is_another(bucket):
    fill(bucket.store)
    with pytest.raises(ExistsRefusedError, match="a store already"):
        Store.create(bucket.store)
    store = Store.create(bucket.store, overwrite=True)
    assert store.splits() == ()
    kept = [key for key in objects(f"s3://{bucket.bucket}") if ".replaced-" in key]
    assert len(kept) > 20
    fill(bucket.store, seed=1)
    check(store.split("id/train", verify=True), seed=1)
    assert not [key for key in objects(f"s3://{bucket.bucket}") if ".replaced-" in key]


def test_what_is_no_store_is_left_alone(bucket):
    (place.at(bucket.store) / "notes.txt").write_bytes(b"mine")
    with pytest.raises(ExistsRefusedError, match="not a featfold store"):
        Store.create(bucket.store, overwrite=True)
    with pytest.raises(MissingInputError, match="not there, or is not a zarr group"):
        Store.open(bucket.store)
    assert list(objects(bucket.store).values()) == [b"mine"]


def test_blocks_are_removed_overwritten_and_missed(bucket):
    store = fill(bucket.store)
    writer = store.writer("id/train")
    pinned = store.split("id/train")
    block = store.remove_block("id/train", 1)
    assert not [key for key in objects(bucket.store) if "features/c/3/" in key]
    assert store.split("id/train").schema.rows == 83 - block.rows
    with pytest.raises(ff.errors.DataError, match="removed after the split was opened"):
        list(pinned.read(block, frozenset(SPECS)))
    writer.write(1, rows_of(block.start, block.stop), overwrite=True)
    check(store.split("id/train", verify=True))
    with pytest.raises(ExistsRefusedError, match="committed already"):
        writer.write(1, rows_of(block.start, block.stop))
    other = store.create_split("id/val", SPECS, classes=K, rows=83, **SIZES)
    other.write(2, rows_of(48, 72))
    assert [block.index for block in other.missing()] == [0, 1, 3]
    with pytest.raises(IncompleteError, match="rows 0-48, 72-83"):
        store.split("id/val")


def test_damage_is_found_and_named(bucket):
    store = fill(bucket.store)
    split = store.split("id/train")
    features = place.at(bucket.store) / "id/train/features/c"
    chunk = features / "4/0/0"
    whole = bytes(chunk.read_bytes())
    damaged = bytearray(whole)
    damaged[100] ^= 1
    chunk.write_bytes(bytes(damaged))
    (features / "5/0/0").write_bytes(whole[:-9])
    (features / "9/0/0").unlink()
    found = split.verify()
    assert Counter(one.array for one in found) == {"features": 3}
    assert [one.start for one in found] == [32, 40, 72]
    words = ("checksum", "bytes", "missing")
    assert all(word in one.what for one, word in zip(found, words, strict=True))
    assert bucket.store in found[0].file
    for block in (1, 3):
        with pytest.raises(CorruptError, match=rf"{bucket.store}.*features.*rows"):
            list(split.read(split.blocks[block], frozenset(SPECS)))
    read(split, ("labels", "halves"))  # what is whole can be read
    last = place.at(bucket.store) / "id/train/halves/c/3/0"
    last.write_bytes(b"")  # shorter than where the rows that are asked for begin
    assert [one.what for one in split.verify(["halves"])] == [
        f"the object has 0 bytes, expected {24 * D * 2 + 4}"
    ]


def test_of_two_writers_of_one_block_the_first_is_kept(bucket):
    store = Store.create(bucket.store)
    one = store.create_split("id/train", SPECS, classes=K, rows=20, **SIZES)
    records = manifest.Record.of(one.blocks[0], 0, {"features": manifest.Stored(1, "aa")})
    manifest.write_record(one._split, records, new=True)
    manifest.write_record(one._split, records, new=True)  # the same rows: nothing is lost
    other = manifest.Record.of(one.blocks[0], 0, {"features": manifest.Stored(1, "bb")})
    with pytest.raises(ExistsRefusedError, match=r"one writer at a time.*overwrite=True"):
        manifest.write_record(one._split, other, new=True)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("s3://me:hunter2@bucket/feats.zarr", "holds no user, password or query"),
        ("https://host/feats.zarr?X-Amz-Signature=hunter2", "holds no user, password or query"),
        ("s3a://bucket/hunter", "s3://, gs://, az://"),
        ("ftp://u:hunter2@host/x", "expected a folder, or"),
        ("s3://", "expected s3://BUCKET/NAME"),
        ("s3://bucket/a//b", "without empty or dot names"),
        ("s3://bucket/../b", "without empty or dot names"),
    ],
)
def test_a_url_that_cannot_name_a_store_is_refused_and_its_secret_not_told(url, why):
    for call in (Store.open, Store.create, Store.is_at):
        with pytest.raises(ConfigError, match=why) as refused:
            call(url)
        assert "hunter2" not in str(refused.value)


def test_a_whole_bucket_can_be_read_and_not_written(bucket):
    with pytest.raises(ConfigError, match=r"name a place in it, such as s3://.*/feats\.zarr"):
        Store.create(f"s3://{bucket.bucket}/")
    with pytest.raises(MissingInputError):
        Store.open(f"s3://{bucket.bucket}")


def test_an_empty_prefix_is_no_store(bucket):
    assert not Store.is_at(bucket.store)
    with pytest.raises(MissingInputError, match=f"{bucket.store} is not there"):
        Store.open(bucket.store)


def test_chunks_of_nothing_but_fill_values_are_written_as_well(bucket):
    writer = Store.create(bucket.store).create_split("ood/val", SPECS, classes=K, rows=20, **SIZES)
    rows = rows_of(0, 20) | {"labels": np.full(20, -1), "ids": np.full(20, -1)}
    rows["features"] = np.full_like(rows["features"], np.nan)
    writer.write(0, rows)
    keys = objects(bucket.store)
    assert f"{bucket.store}/ood/val/labels/c/0" in keys
    found = read(Store.open(bucket.store).split("ood/val", verify=True))
    assert (found["labels"] == -1).all()
    assert np.isnan(found["features"]).all()


def test_metadata_of_two_formats_is_refused_and_nothing_written(bucket):
    fill(bucket.store)
    (place.at(bucket.store) / ".zgroup").write_bytes(b'{"zarr_format": 2}')
    before = objects(bucket.store)
    with pytest.raises(ConfigError, match="zarr format 2"):
        Store.open(bucket.store)
    assert objects(bucket.store) == before


def test_reading_needs_no_right_to_write(bucket):
    fill(bucket.store)
    bucket.refuse = {"PUT": 403, "POST": 403, "DELETE": 403}
    split = Store.open(bucket.store).split("id/train", verify=True)
    ff.fit("mahalanobis", split, cluster="threads", workers=1)
