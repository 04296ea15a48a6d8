"""Names of rows: kept with the store, whatever they are made of, and never mixed up."""

import warnings

import numpy as np
import pytest
import zarr

from pipeline.chunk import ArraySpec
from pipeline.errors import CorruptError, ExistsRefusedError, MissingInputError
from pipeline.store import Store

NAMES = ["a/1.png", "b\nc.jpg", "käse.png", "\udcff.png", ""]


@pytest.fixture
def store(tmp_path):
    store = Store.create(tmp_path / "f.zarr")
    specs = {"features": ArraySpec((2,), "float32", "D")}
    writer = store.create_split("id/train", specs, classes=1, rows=5)
    writer.write(0, {"features": np.ones((5, 2), "f4")})
    return store


def test_names_come_back_as_they_were(store):
    assert store.names("id/train") is None
    store.write_names("id/train", NAMES)
    store.write_names("id/train", NAMES)
    assert Store.open(store.path).names("id/train") == NAMES
    assert store.splits() == ("id/train",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {"id", "names"} <= set(zarr.open_group(store.path, mode="r").group_keys())
    with pytest.raises(MissingInputError, match="no split 'id/test'"):
        store.names("id/test")


def test_other_names_are_refused_and_damage_is_found(store):
    store.write_names("id/train", NAMES)
    with pytest.raises(ExistsRefusedError, match="rows of id/train have other names"):
        store.write_names("id/train", NAMES[::-1])
    (path,) = (p for p in (store.path / "names/id/train/text/c").rglob("*") if p.is_file())
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="names of id/train"):
        store.names("id/train")
