"""Parquet: lists as rows, nulls and ragged lists refused by row, files in natural order."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline as ff
from pipeline.errors import CorruptError, DataError
from pipeline.store import Store
from pipeline.store.importers import Unreadable
from pipeline.store.importers.parquet import FORMAT

X = np.random.default_rng(0).standard_normal((100, 4)).astype("f4")


def written(tmp_path, columns, name="a.parquet", **options):
    pq.write_table(pa.table(columns), tmp_path / name, **options)
    return FORMAT.arrays(tmp_path / name)


def read(rows, step=13):
    return np.concatenate([rows[i : i + step] for i in range(0, rows.shape[0], step)])


def test_several_files_are_one_array_in_natural_order(tmp_path):
    for index in range(12):
        rows = slice(8 * index, 8 * index + 8)
        written(tmp_path, {
            "emb": pa.array(X[rows].tolist(), pa.list_(pa.float32())),
            "label": pa.array(np.arange(8) % 3), "url": pa.array(["u"] * 8),
        }, f"part-{index}.parquet", row_group_size=3)  # fmt: skip
    done = ff.import_split(
        tmp_path / "s", "id/train", str(tmp_path / "part-*.parquet"), classes=3,
        arrays={"features": "emb", "labels": "label"}, block_nbytes=500, chunk_nbytes=100,
    )  # fmt: skip
    assert (done.rows, "url" in done.left_out) == (96, True)
    split = Store.open(tmp_path / "s").split("id/train")
    found = [c["features"].copy() for b in split.blocks for c in split.read(b, {"features"})]
    assert np.concatenate(found).tobytes() == X[:96].tobytes()


def test_lists_within_lists_and_tensors(tmp_path):
    rows = X.reshape(-1, 2, 2)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(rows)
    found = written(tmp_path, {
        "nested": pa.array(rows.tolist(), pa.list_(pa.list_(pa.float32()), 2)), "tensors": tensors,
    }, row_group_size=30)  # fmt: skip
    for array in found.values():
        assert read(array).tobytes() == rows.tobytes()


@pytest.mark.parametrize("row", [1, 59, 60, 99])
def test_ragged_lists_are_refused_by_their_row(tmp_path, row):
    lists = X.tolist()
    lists[row] = lists[row][:3]
    found = written(tmp_path, {"x": pa.array(lists, pa.list_(pa.float32()))}, row_group_size=30)
    with pytest.raises(DataError, match=f"column 'x': row {row} holds a list of 3.* lists of 4"):
        read(found["x"])
    nested = [[row, row] for row in X.tolist()]
    nested[row] = [nested[row][0], nested[row][1][:1]]
    kind = pa.list_(pa.list_(pa.float32()))
    found = written(tmp_path, {"x": pa.array(nested, kind)}, row_group_size=30)
    with pytest.raises(DataError, match=f"row {row} holds a list of 1"):
        read(found["x"])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, None, 3.0]),
        pa.array([[1.0], None, [3.0]], pa.list_(pa.float32())),
        pa.array([[1.0], [None], [3.0]], pa.list_(pa.float32())),
        pa.array([[1.0], None, [3.0]], pa.list_(pa.float32(), 1)),
    ],
)
def test_what_is_lacking_is_refused_and_nan_is_not(tmp_path, column):
    found = written(tmp_path, {"x": column})
    with pytest.raises(DataError, match="column 'x' lacks 1 numbers; fill them in"):
        read(found["x"])
    kept = written(tmp_path, {"x": pa.array([1.0, np.nan], from_pandas=False)})
    np.testing.assert_array_equal(read(kept["x"]), [1, np.nan])


def test_columns_of_other_things_are_listed(tmp_path):
    found = written(tmp_path, {
        "text": pa.array(["a"]), "when": pa.array([0], pa.timestamp("s")),
        "codes": pa.array(["a"]).dictionary_encode(), "pair": pa.array([{"a": 1}]),
        "exact": pa.array([1]).cast(pa.decimal128(19)), "x": pa.array([1], pa.uint16()),
        "by": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
    })  # fmt: skip
    assert [name for name, rows in found.items() if not isinstance(rows, Unreadable)] == ["x"]
    assert "column 'codes' holds dictionary" in found["codes"].why


def test_files_without_rows_and_files_of_something_else(tmp_path):
    with pytest.raises(DataError, match="holds no rows"):
        written(tmp_path, {"x": pa.array([], pa.float32())})
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(CorruptError, match=r"b.parquet cannot be read"):
        FORMAT.arrays(tmp_path / "b.parquet")


def test_row_groups_without_rows_are_passed_over(tmp_path):
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 4)})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for part in (table[:0], table[:40], table[40:40], table[40:]):
            writer.write_table(part)
    rows = FORMAT.arrays(tmp_path / "a.parquet")["x"]
    assert read(rows).tobytes() == X.tobytes()
    assert rows[40:41].tobytes() == X[40:41].tobytes()
