"""Datasets of Hugging Face that were saved to disk, and files of Arrow by themselves."""

import json

import datasets
import numpy as np
import pyarrow as pa
import pytest

import pipeline as ff
from pipeline.errors import CorruptError, DataError, MissingInputError
from pipeline.store import Store
from pipeline.store.importers import Unreadable, format_of
from pipeline.store.importers.hf_datasets import FORMAT

N = 60
X = np.random.default_rng(0).standard_normal((N, 3, 4)).astype("f4")


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()


def dataset(rows=N):
    features = datasets.Features({
        "features": datasets.Array2D((3, 4), "float32"),
        "pooled": datasets.Sequence(datasets.Value("float16")),
        "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
        "text": datasets.Value("string"),
    })  # fmt: skip
    return datasets.Dataset.from_dict({
        "features": list(X[:rows]), "pooled": list(X[:rows, 0].astype("f2")),
        "label": [i % 3 for i in range(rows)], "text": ["words"] * rows,
    }, features=features)  # fmt: skip


def test_a_saved_dataset_becomes_a_split(tmp_path):
    shuffled = dataset().shuffle(seed=1)
    shuffled.save_to_disk(tmp_path / "ds", num_shards=3)
    done = ff.import_split(
        tmp_path / "s", "id/train", tmp_path / "ds", classes=3, labels="label",
        layouts={"features": "NTD"},
    )  # fmt: skip
    assert (done.rows, list(done.left_out)) == (N, ["text"])
    split = Store.open(tmp_path / "s").split("id/train")
    (chunk,) = split.read(split.blocks[0], frozenset({"features", "pooled", "labels"}))
    wanted = shuffled.with_format("numpy")
    assert chunk["features"].tobytes() == np.stack(wanted["features"]).astype("f4").tobytes()
    assert chunk["labels"].tolist() == list(shuffled["label"])
    order = [int(np.nonzero((row == X).all((1, 2)))[0][0]) for row in chunk["features"]]
    assert chunk["pooled"].tobytes() == X[order, 0].astype("f2").tobytes()


def test_splits_of_a_dictionary_keep_apart(tmp_path):
    parts = {"train": dataset(), "test": dataset(20)}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "dd")
    assert format_of(tmp_path / "dd") is FORMAT
    found = FORMAT.arrays(tmp_path / "dd")
    assert found["train/features"].shape == (N, 3, 4)
    assert found["test/features"].shape == (20, 3, 4)
    assert isinstance(found["test/text"], Unreadable)
    assert found["test/label"][17:].tolist() == [2, 0, 1]


def test_a_file_of_the_dataset_alone_and_one_that_is_gone(tmp_path):
    dataset().save_to_disk(tmp_path / "ds", num_shards=2)
    second = sorted((tmp_path / "ds").glob("*.arrow"))[1]
    assert FORMAT.arrays(second)["features"][:].tobytes() == X[30:].tobytes()
    second.unlink()
    with pytest.raises(MissingInputError, match=second.name):
        FORMAT.arrays(tmp_path / "ds")


def test_a_state_that_names_files_elsewhere_or_none(tmp_path):
    dataset().save_to_disk(tmp_path / "ds")
    state = tmp_path / "ds/state.json"
    for entries, says in (
        ([{"filename": "../other.arrow"}], "lies elsewhere"),
        ([{"filename": "/etc/hostname"}], "lies elsewhere"),
        ([], "holds no rows"),
    ):
        state.write_text(json.dumps({"_data_files": entries}))
        with pytest.raises(DataError, match=says):
            FORMAT.arrays(tmp_path / "ds")
    for text in ("{", "{}", "[]"):
        state.write_text(text)
        with pytest.raises(CorruptError, match=r"state.json"):
            FORMAT.arrays(tmp_path / "ds")


def test_arrays_of_any_first_length_are_rows_where_they_agree(tmp_path):
    kind = datasets.Features({"x": datasets.Array2D((None, 4), "float32")})
    rows = datasets.Dataset.from_dict({"x": list(X)}, features=kind)
    rows.save_to_disk(tmp_path / "ds")
    assert FORMAT.arrays(tmp_path / "ds")["x"][:].tobytes() == X.tobytes()


def test_classes_that_are_not_known_stay_below_zero(tmp_path):
    rows = datasets.Dataset.from_dict(
        {"label": [0, -1, 1]},
        features=datasets.Features({"label": datasets.ClassLabel(names=["a", "b"])}),
    )
    rows.save_to_disk(tmp_path / "ds")
    assert FORMAT.arrays(tmp_path / "ds")["label"][:].tolist() == [0, -1, 1]


def test_a_writer_that_was_killed_between_batches_left_no_end(tmp_path):
    table = pa.table({"x": pa.array(np.arange(90.0))})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptError, match="the end of the stream is missing"):
        FORMAT.arrays(path)


def test_categories_are_refused(tmp_path):
    table = pa.table({"c": pa.array(["a", "b"]).dictionary_encode(), "x": pa.array([1.0, 2.0])})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"holds categories \(c\).*codes as integers"):
        FORMAT.arrays(path)


def test_ragged_lists_are_refused_by_their_row(tmp_path):
    lists = [[1.0, 2.0]] * 50
    lists[41] = [1.0]
    datasets.Dataset.from_dict({"x": lists}).save_to_disk(tmp_path / "ds", num_shards=2)
    rows = FORMAT.arrays(tmp_path / "ds")["x"]
    with pytest.raises(DataError, match=r"00001-of-00002.arrow, column 'x': row 16 holds a list"):
        rows[0:50]
