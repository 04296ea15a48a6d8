"""Tar files of samples as a stream: order, labels, ids, and what is damaged."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from sources_of_tests import rows_of

from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.extract.data.webdataset import webdataset
from pipeline.extract.filling import extract_split
from pipeline.store import Store

pytest.importorskip("webdataset", reason="needs featfold[webdataset]")
Image = pytest.importorskip("PIL.Image")


def shard(path, numbers, **fields):
    """Write samples whose images are of one gray, their number."""
    with tarfile.open(path, "w") as file:
        for n in numbers:
            image = io.BytesIO()
            Image.new("RGB", (4, 3), (n, n, n)).save(image, "PNG")
            contents = {"png": image.getvalue(), "cls": str(n % 3).encode()}
            contents |= {name: made(n) for name, made in fields.items()}
            for suffix, data in contents.items():
                info = tarfile.TarInfo(f"{n:04d}.{suffix}")
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path):
    for n in (2, 10, 1):
        shard(tmp_path / f"part-{n}.tar", range(n * 10, n * 10 + 5))
    return f"{tmp_path}/part-*.tar"


EXPECTED = [*range(10, 15), *range(20, 25), *range(100, 105)]


def first(x):
    return x[:, 0, 0, :1].float()


@pytest.mark.parametrize("rows", [1, 4, 15, 99])
def test_samples_come_in_the_natural_order_of_shards(shards, rows):
    batches = list(webdataset(shards).batches(rows))
    assert [len(b.ids) for b in batches[:-1]] == [rows] * (len(batches) - 1)
    assert np.concatenate([b.inputs[:, 0, 0, 0] for b in batches]).tolist() == EXPECTED
    assert np.concatenate([b.labels for b in batches]).tolist() == [n % 3 for n in EXPECTED]
    assert np.concatenate([b.ids for b in batches]).tolist() == list(range(15))


def test_shards_become_a_split(shards, tmp_path):
    store = Store.create(tmp_path / "f.zarr")
    done = extract_split(store, "id/train", first, webdataset(shards, ids="key"), classes=3)
    assert done.rows == 15
    split = store.split("id/train", verify=True)
    assert rows_of(split, "features")[:, 0].tolist() == EXPECTED
    assert rows_of(split, "ids").tolist() == EXPECTED
    again = extract_split(store, "id/train", first, webdataset(shards, ids="key"), classes=3)
    assert again.written == 0


def test_a_shard_that_comes_twice_is_refused(shards, tmp_path):
    store = Store.create(tmp_path / "f.zarr")
    twice = webdataset([shards, f"{tmp_path}/part-1.tar"], ids="key")
    with pytest.raises(DataError, match=r"row 15: id 10 came before, so .*part-1\.tar gives"):
        extract_split(store, "id/train", first, twice, classes=3)


def test_labels_lie_where_they_are_said_to(tmp_path):
    shard(tmp_path / "a.tar", range(3), json=lambda n: json.dumps({"y": n + 5}).encode())
    path = str(tmp_path / "a.tar")
    assert next(webdataset(path, label="json:y").batches(3)).labels.tolist() == [5, 6, 7]
    assert next(webdataset(path, labelled=False).batches(3)).labels.tolist() == [-1] * 3
    with pytest.raises(DataError, match=r"sample 0000 of .*a\.tar has no label in txt"):
        next(webdataset(path, label="txt").batches(3))
    with pytest.raises(DataError, match=r"has no image: expected one of jpg, found png, cls, json"):
        next(webdataset(path, image="jpg").batches(3))


def test_a_transform_and_sizes_are_those_of_folders(shards):
    sized = next(webdataset(shards, size=6, crop=6).batches(2)).inputs
    assert sized.shape == (2, 6, 6, 3)
    made = next(webdataset(shards, transform=lambda x: torch.tensor(x.getpixel((0, 0)))).batches(2))
    assert made.inputs.tolist() == [[10] * 3, [11] * 3]


def test_damage_is_named(tmp_path, shards):
    shard(tmp_path / "a.tar", range(3), png=lambda n: b"no image" if n == 1 else b"")
    with pytest.raises(CorruptError, match=r"sample 0000 of .*a\.tar cannot be decoded"):
        list(webdataset(str(tmp_path / "a.tar")).batches(3))
    (tmp_path / "part-2.tar").write_bytes((tmp_path / "part-2.tar").read_bytes()[:3000])
    with pytest.raises(CorruptError, match=r"part-2\.tar cannot be read \(unexpected end"):
        list(webdataset(shards).batches(3))
    with pytest.raises(MissingInputError, match=r"part-3\.tar is not there"):
        list(webdataset(f"{tmp_path}/part-{{1..3..2}}.tar").batches(3))
    with pytest.raises(MissingInputError, match="finds no file"):
        webdataset(str(tmp_path / "none-*.tar"))
    with pytest.raises(ConfigError, match="expected index or key"):
        webdataset(shards, ids="name")
