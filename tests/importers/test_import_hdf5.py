"""HDF5: datasets by path, chunks decompressed once, and what is no rows of numbers."""

import subprocess
import sys

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
        x = file.create_dataset("x", (2**20, 256), "u4", chunks=(2**20, 256), compression="gzip")
        x.id.write_direct_chunk((0, 0), b"never unpacked here")
    why = FORMAT.arrays(tmp_path / "huge.h5")["x"].why
    assert "chunks of 1,048,576 rows, 1,073,741,824 bytes" in why


def test_rows_that_lie_elsewhere_or_were_never_written_are_not_made_up(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = X
    virtual = h5py.VirtualLayout(shape=(50, 6), dtype="f4")
    virtual[:] = h5py.VirtualSource(tmp_path / "other.h5", "x", shape=(50, 6))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("virtual", virtual)
        file.create_dataset("raw", (3,), "f4", external=[("/etc/hostname", 0, 12)])
        begun = file.create_dataset("begun", (50, 6), "f4", chunks=(10, 3))
        begun[:30] = 1
        labels = file.create_dataset("labels", (50,), "i8", chunks=(10,), fillvalue=-1)
        labels[:10] = 1
        file.create_dataset("created", (50, 6), "f4")
        file.create_dataset("no_rows", (0, 6), "f4")
    found = FORMAT.arrays(tmp_path / "a.h5")
    assert "lies in other files" in found["virtual"].why
    assert "lies in other files" in found["raw"].why
    assert "lacks 4 of 10 chunks, whose rows read as the fill value 0.0" in found["begun"].why
    assert "lacks 4 of 5 chunks, whose rows read as the fill value -1" in found["labels"].why
    assert "was created and never written" in found["created"].why
    assert found["no_rows"].shape == (0, 6)


WRITING = """
import sys, h5py
with h5py.File(sys.argv[1], "a"):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_file_that_is_being_written_is_waited_for(path):
    command = [sys.executable, "-c", WRITING, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(DataError, match="is open for writing elsewhere; wait"):
            FORMAT.arrays(path)
        process.communicate("")
    assert FORMAT.arrays(path)


def test_labels_of_other_rows_write_nothing(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"], file["labels"] = X, np.arange(49)
    with pytest.raises(DataError, match=r"the same number of rows.*features: 50, labels: 49"):
        ff.import_split(tmp_path / "s", "id/train", tmp_path / "a.h5", classes=50)
    assert not (tmp_path / "s").exists()
