"""HDF5: datasets by path, chunks decompressed once, and what is no rows of numbers."""

import h5py
import numpy as np
import pytest

import pipeline as ff
from pipeline.errors import ConfigError, DataError
from pipeline.store import Store
from pipeline.store.importers import Unreadable
from pipeline.store.importers.hdf5 import FORMAT
from pipeline.store.importers.sliced import Bands

X = np.random.default_rng(0).standard_normal((50, 6)).astype("f4")


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("train/deep/features", data=X, chunks=(7, 4), compression="gzip")
        file["train/labels"] = np.arange(50) % 3
        file["big_endian"] = X.astype(">f8")
        file["number"] = 3.0
        file["link"] = h5py.SoftLink("/train/labels")
        file["names"] = ["a"] * 50
        file["outside"] = h5py.ExternalLink("/etc/hostname", "/x")
        packed = file.create_dataset("packed", data=np.arange(50, dtype="i2"))
        packed.attrs["scale_factor"] = 0.01
        file["records"] = np.zeros(50, [("a", "f4"), ("b", "i4")])
    return tmp_path / "a.h5"


def test_datasets_are_called_by_their_path_and_no_link_is_followed(path):
    found = FORMAT.arrays(path)
    assert sorted(found) == [
        "big_endian", "names", "packed", "records", "train/deep/features", "train/labels",
    ]  # fmt: skip
    bad = {name: rows.why for name, rows in found.items() if isinstance(rows, Unreadable)}
    assert sorted(bad) == ["names", "packed", "records"]
    assert "holds text" in bad["names"]
    assert "scale_factor" in bad["packed"]
    assert found["big_endian"].dtype == np.dtype("f8")
    np.testing.assert_array_equal(found["big_endian"][3:9], X[3:9].astype("f8"))


def test_it_becomes_a_split(tmp_path, path):
    ff.import_split(
        tmp_path / "s.zarr", "id/train", path, classes=3,
        arrays={"features": "train/deep/features", "labels": "train/labels"},
    )  # fmt: skip
    split = Store.open(tmp_path / "s.zarr").split("id/train")
    (chunk,) = split.read(split.blocks[0], frozenset({"features", "labels"}))
    assert chunk["features"].tobytes() == X.tobytes()
    assert chunk["labels"].tolist() == [i % 3 for i in range(50)]


def test_names_that_are_not_there(tmp_path, path):
    with pytest.raises(ConfigError, match="did you mean 'train/labels'"):
        ff.import_split(tmp_path / "s", "id/train", path, classes=3, labels=False,
                        arrays={"features": "train/label"})  # fmt: skip
    with pytest.raises(DataError, match="holds text; expected numbers"):
        ff.import_split(tmp_path / "s", "id/train", path, classes=3, arrays={"x": "names"})
    assert not (tmp_path / "s").exists()


def test_every_chunk_is_decompressed_once(path, monkeypatch):
    asked = []
    fill = h5py.Dataset.read_direct

    def counted(self, out, rows):
        asked.append((rows.start, rows.stop))
        return fill(self, out, rows)

    monkeypatch.setattr(h5py.Dataset, "read_direct", counted)
    rows = FORMAT.arrays(path)["train/deep/features"]
    assert isinstance(rows.source, Bands)
    for start in range(0, 50, 3):
        rows[start : start + 3]
    bands = [first // 7 for first, stop in asked for first in range(first, stop, 7)]
    assert bands == list(range(8))


def test_without_datasets_or_with_one_huge_chunk(tmp_path):
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file["number"] = 1
    with pytest.raises(DataError, match="holds no datasets with rows"):
        FORMAT.arrays(tmp_path / "empty.h5")
    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("x", (2**20, 256), "f4", chunks=(2**20, 256))
    why = FORMAT.arrays(tmp_path / "huge.h5")["x"].why
    assert "chunks of 1,048,576 rows, 1,073,741,824 bytes" in why
