"""Datasets of Hugging Face, made and saved here: columns, classes, and streams."""

import numpy as np
import pytest
from sources_of_tests import rows_of

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.extract.data.huggingface import huggingface
from pipeline.extract.filling import extract_split
from pipeline.store import Store

datasets = pytest.importorskip("datasets", reason="needs featfold[hf]")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


@pytest.fixture
def images(tmp_path):
    """Ten images of one gray, their number, in three classes, saved to disk."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
            "key": datasets.Value("int64"),
        }
    )
    rows = {
        "image": [Image.new("L", (4, 3), n) for n in range(10)],
        "label": [n % 3 for n in range(10)],
        "key": [100 - n for n in range(10)],
    }
    made = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": made, "test": made.select(range(4))}).save_to_disk(
        str(tmp_path / "saved")
    )
    return str(tmp_path / "saved")


def first(x):
    return x[:, 0, 0, :1].float()


def test_images_labels_and_ids_are_columns(images):
    rows = huggingface(images, id="key")
    assert len(rows) == 10
    batch = rows.read(3, 6)
    assert batch.inputs.shape == (3, 3, 4, 3)
    assert batch.inputs[:, 0, 0, 0].tolist() == [3, 4, 5]
    assert batch.labels.tolist() == [0, 1, 2]
    assert batch.ids.tolist() == [97, 96, 95]
    assert rows.attributes["class_names"] == ["cat", "dog", "owl"]
    assert huggingface(images, labelled=False).read(0, 2).labels.tolist() == [-1, -1]
    assert len(huggingface(images, split="test")) == 4


def test_a_dataset_becomes_a_split_whose_classes_others_must_share(images, tmp_path):
    store = Store.create(tmp_path / "f.zarr")
    extract_split(store, "id/train", first, huggingface(images, id="key"), classes=3)
    split = store.split("id/train", verify=True)
    assert rows_of(split, "features")[:, 0].tolist() == list(range(10))
    assert rows_of(split, "ids").tolist() == list(range(100, 90, -1))
    with pytest.raises(DataError, match="train has 3 classes, expected 2 at most: cat, dog, owl"):
        extract_split(store, "id/val", first, huggingface(images), classes=2)
    other = huggingface(images, split="test")
    other.attributes["class_names"].reverse()
    with pytest.raises(DataError, match="from label 0 on, labels would stand for other classes"):
        extract_split(store, "id/test", first, other, classes=3)


@pytest.mark.parametrize("streaming", [False, True])
def test_text_and_local_files_are_read_by_name(tmp_path, streaming):
    table = {"input_ids": [[n, 0] for n in range(7)], "mask": [[1, 0]] * 7, "label": [0] * 7}
    datasets.Dataset.from_dict(table).to_parquet(str(tmp_path / "a.parquet"))
    rows = huggingface(
        "parquet", files=str(tmp_path / "a.parquet"), columns=["input_ids", "mask"],
        streaming=streaming,
    )  # fmt: skip
    store = Store.create(tmp_path / "f.zarr")
    model = lambda x: (x["input_ids"] * x["mask"]).float()  # noqa: E731
    extract_split(store, "id/train", model, rows, classes=1, batch_rows=3)
    found = rows_of(store.split("id/train", verify=True), "features")
    np.testing.assert_array_equal(found, [[n, 0] for n in range(7)])


def test_what_is_not_there_is_named(images, tmp_path):
    with pytest.raises(ConfigError, match="no column 'img'; it has image, label, key"):
        huggingface(images, image="img")
    with pytest.raises(ConfigError, match="has no split 'val'; it has train, test"):
        huggingface(images, split="val")
    with pytest.raises((MissingInputError, DataError), match="cannot be opened"):
        huggingface(str(tmp_path / "none"))
    ragged = datasets.Dataset.from_dict({"x": [[1], [1, 2]], "label": [0, 0]})
    ragged.save_to_disk(str(tmp_path / "ragged"))
    rows = huggingface(str(tmp_path / "ragged"), columns=["x"])
    with pytest.raises(DataError, match=r"row 1, x becomes a row of shape \(2,\)"):
        rows.read(0, 2)
