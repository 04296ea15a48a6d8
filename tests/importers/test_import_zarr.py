"""zarr of both formats: opened read-only, chunks read once, mixed metadata and holes refused."""

import json
from collections import Counter

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import pipeline as ff
from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, DataError
from pipeline.store import Store
from pipeline.store.importers import Unreadable, format_of
from pipeline.store.importers.zarr_arrays import FORMAT

X = np.random.default_rng(0).standard_normal((53, 4, 6)).astype("f4")
FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@FORMATS
def test_groups_and_arrays_by_path_and_nothing_is_written(tmp_path, zarr_format):
    group = zarr.create_group(tmp_path / "g", zarr_format=zarr_format)
    group.create_array("deep/er/features", data=X, chunks=(10, 2, 6))
    group.create_array("number", shape=(), dtype="f4")
    group.create_array("labels", data=np.arange(53, dtype=">i8") % 3, chunks=(53,))
    before = files(tmp_path)
    assert format_of(tmp_path / "g") is FORMAT
    found = FORMAT.arrays(tmp_path / "g")
    assert sorted(found) == ["deep/er/features", "labels"]
    assert found["labels"].dtype == np.dtype("i8")
    np.testing.assert_array_equal(found["labels"][5:50], np.arange(5, 50) % 3)
    (alone,) = FORMAT.arrays(tmp_path / "g/deep/er/features").items()
    assert alone[0] == "features"
    assert alone[1][3:30].tobytes() == X[3:30].tobytes()
    assert files(tmp_path) == before


def test_it_becomes_a_split(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    group.create_array("feats", data=X.astype("f2"), chunks=(10, 4, 6))
    group.create_array("labels", data=np.zeros(53, "i4"), chunks=(10,))  # no chunk is written
    ff.import_split(tmp_path / "s", "id/train", tmp_path / "g", classes=1,
                    arrays={"features": "feats"}, layouts={"features": "NTD"})  # fmt: skip
    split = Store.open(tmp_path / "s").split("id/train")
    (chunk,) = split.read(split.blocks[0], frozenset({"features", "labels"}))
    assert chunk["features"].tobytes() == X.astype("f2").tobytes()
    assert not chunk["labels"].any()


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 2, "chunks": (10, 2, 3)},
        {"chunks": (10, 2, 3)},
        {"chunks": (5, 2, 6), "shards": (10, 4, 6)},
        {"chunks": (1, 4, 6)},
    ],
)
def test_front_to_back_every_chunk_is_read_once(tmp_path, monkeypatch, options):
    zarr.create_array(tmp_path / "a", data=X, **options)
    asked = Counter()
    get = LocalStore.get

    async def counted(self, key, prototype=None, byte_range=None):
        asked[key, str(byte_range)] += 1
        return await get(self, key, prototype, byte_range)

    monkeypatch.setattr(LocalStore, "get", counted)
    (rows,) = FORMAT.arrays(tmp_path / "a").values()
    asked.clear()
    for start in range(0, 53, 7):
        assert rows[start : start + 7].tobytes() == X[start : start + 7].tobytes()
    heads = [key for key in asked if "zarr" in key[0] or "Suffix" in key[1]]  # and shards' indexes
    assert {count for key, count in asked.items() if key not in heads} <= {1}


@pytest.mark.parametrize("below", [".", "features"])
def test_metadata_of_both_formats_are_refused_and_stay(tmp_path, below):
    group = zarr.create_group(tmp_path / "g", zarr_format=3)
    group.create_array("features", data=X)
    (tmp_path / "g" / below / ".zgroup").write_text(json.dumps({"zarr_format": 2}))
    before = files(tmp_path)
    with pytest.raises(ConfigError, match=r"format 3 \(zarr.json\) and of format 2 \(.zgroup\)"):
        FORMAT.arrays(tmp_path / "g")
    assert files(tmp_path) == before


@FORMATS
def test_floats_that_were_never_written_are_refused(tmp_path, zarr_format):
    array = zarr.create_array(
        tmp_path / "a", shape=(50, 2), chunks=(10, 2), dtype="f4", zarr_format=zarr_format
    )
    array[:20] = 1
    (rows,) = FORMAT.arrays(tmp_path / "a").values()
    assert isinstance(rows, Unreadable)
    assert "lacks 3 of 5 chunks, whose rows read as the fill value 0.0" in rows.why


@pytest.mark.parametrize("location", ["start", "end"])
def test_floats_that_a_shard_lacks_are_refused(tmp_path, location):
    from zarr.core.array import ShardsConfigParam

    shards: ShardsConfigParam = {"shape": (20, 4), "index_location": location}
    for name, written in (("some", [slice(0, 10), slice(40, 50)]), ("all", [slice(0, 50)])):
        array = zarr.create_array(
            tmp_path / name, shape=(50, 3), chunks=(10, 2), shards=shards, dtype="f4"
        )
        for rows in written:
            array[rows] = 1
    (some,) = FORMAT.arrays(tmp_path / "some").values()
    assert isinstance(some, Unreadable)
    assert "lacks 6 of 10 chunks" in some.why
    (all_,) = FORMAT.arrays(tmp_path / "all").values()
    assert (all_[0:50] == 1).all()


def test_consolidated_metadata_that_are_old_are_not_believed(tmp_path):
    group = zarr.create_group(tmp_path / "g", zarr_format=2)
    array = group.create_array("x", data=np.ones((10, 2)), chunks=(5, 2))
    zarr.consolidate_metadata(tmp_path / "g", zarr_format=2)
    array.append(np.full((10, 2), 2.0))
    rows = FORMAT.arrays(tmp_path / "g")["x"]
    assert rows.shape == (20, 2)
    assert rows[15:].tolist() == [[2, 2]] * 5


def test_packed_numbers_and_stores_of_this_package(tmp_path):
    zarr.create_array(tmp_path / "a", data=np.ones(5, "i2"), attributes={"add_offset": 3})
    (rows,) = FORMAT.arrays(tmp_path / "a").values()
    assert "packed by scale_factor and add_offset" in rows.why
    store = Store.create(tmp_path / "s")
    writer = store.create_split("id/train", {"x": ArraySpec((2,), "float32")}, classes=0, rows=3)
    writer.write(0, {"x": np.ones((3, 2), "f4")})
    for below in (".", "id", "id/train", "id/train/x"):
        path = store.path / below
        with pytest.raises(ConfigError, match="is a store of featfold"):
            FORMAT.arrays(path)


def test_damaged_metadata_and_groups_without_arrays(tmp_path):
    zarr.create_group(tmp_path / "g")
    with pytest.raises(DataError, match="without arrays"):
        FORMAT.arrays(tmp_path / "g")
    for text in ("{", "{}", '{"node_type": "array", "zarr_format": 3}'):
        (tmp_path / "g/zarr.json").write_text(text)
        with pytest.raises(DataError, match=str(tmp_path / "g")):
            FORMAT.arrays(tmp_path / "g")
