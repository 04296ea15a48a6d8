"""Tables with one column a feature: side by side in the order of numbers, in little memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zarr

import pipeline as ff
from pipeline.cli.ending import main
from pipeline.errors import ConfigError, DataError
from pipeline.store import Store
from pipeline.store.importers import wide_parquet
from pipeline.store.importers.shards import gather

N, D = 101, 12
RNG = np.random.default_rng(4)
X = RNG.standard_normal((N, D))
LABELS = np.arange(N) % 3


def columns(x=X, first=0, prefix="f"):
    """Return the columns of features in the order in which names are sorted as text."""
    named = {f"{prefix}{first + i}": x[:, i] for i in range(x.shape[1])}
    return {name: named[name] for name in sorted(named)}


def save(path, found, rows=17):
    table = pa.table(found)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path, "uncompressed", chunksize=rows)
    else:
        datasets = pytest.importorskip("datasets")
        datasets.Dataset(table).save_to_disk(str(path))
    return path


def stored(path, split="id/train"):
    return zarr.open_array(str(path / split / "features"), mode="r")[:]


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "saved"])
@pytest.mark.parametrize(("chunk_rows", "block_rows"), [(1, 7), (10, 50), (N, N)])
@pytest.mark.parametrize("prefix", ["f", "layer4.", ""])
def test_columns_are_stacked_in_the_order_of_their_numbers(
    tmp_path, monkeypatch, name, chunk_rows, block_rows, prefix
):
    monkeypatch.setattr(wide_parquet, "HELD_NBYTES", 5 * 3 * 17 * 8)  # five columns at a time
    path = save(tmp_path / name, {**columns(prefix=prefix), "y": LABELS, "file": ["a"] * N})
    done = ff.import_split(
        tmp_path / "s.zarr", "id/train", path, arrays={"features": f"{prefix}*"}, labels="y",
        classes=3, chunk_nbytes=chunk_rows * D * 8, block_nbytes=block_rows * (D * 8 + 8),
    )  # fmt: skip
    assert done.rows == N
    assert set(done.left_out) == {"file"}
    np.testing.assert_array_equal(stored(tmp_path / "s.zarr"), X)
    rows = gather([path]).arrays[f"{prefix}*"]
    for start, stop in ((90, N), (0, 3), (16, 18), (5, 5)):
        np.testing.assert_array_equal(rows[start:stop], X[start:stop])
    rows.close()


@pytest.mark.parametrize("first", [0, 1])
def test_columns_of_several_files(tmp_path, first):
    for i, part in enumerate((slice(0, 40), slice(40, N))):
        save(tmp_path / f"p_{i}.parquet", columns(X[part], first) | {"labels": LABELS[part]})
    ff.import_split(
        tmp_path / "s.zarr", "id/train", tmp_path / "p_*.parquet", arrays={"features": "f*"},
        classes=3, dtype="float16",
    )  # fmt: skip
    np.testing.assert_array_equal(stored(tmp_path / "s.zarr"), X.astype("f2"))
    save(tmp_path / "p_2.parquet", columns(X, 1 - first) | {"labels": LABELS})
    with pytest.raises(
        DataError, match=r"f\*: .*p_2\.parquet has columns f\d+ to f\d+, .*the same"
    ):
        gather([tmp_path / "p_*.parquet"])


def test_who_did_not_map_them_is_told_the_spelling(tmp_path, capsys):
    def cli(*arguments):
        return main([str(argument) for argument in arguments]), *capsys.readouterr()

    path = save(tmp_path / "a.parquet", {**columns(), "labels": LABELS})
    code, out, _ = cli("import", path, "--peek")
    assert code == 0
    assert f"f* 1 {N} x {D} float64" in " ".join(out.split())
    assert "--map 'f*=features'" in out
    assert "f10" not in out
    code, _, err = cli("import", path, "--store", tmp_path / "s", "--split", "id/train",
                       "--classes", 3)  # fmt: skip
    assert code == 0
    assert "left out f*: no name of an array in a store; map it to one, as in --map 'f*=feat" in err
    code, out, err = cli("import", path, "--store", tmp_path / "t", "--split", "id/train",
                         "--classes", 3, "--map", "f*=features")  # fmt: skip
    assert code == 0, err
    np.testing.assert_array_equal(stored(tmp_path / "t"), X)


def test_one_of_them_can_be_had_by_its_name(tmp_path):
    path = save(tmp_path / "a.parquet", columns())
    ff.import_split(tmp_path / "s", "id/train", path, arrays={"conf": "f10"}, classes=3,
                    scores={"conf": "higher-is-ood"})  # fmt: skip
    ff.import_split(tmp_path / "s", "id/val", path, scores={"f10": "higher-is-ood"})
    for split, name in (("id/train", "conf"), ("id/val", "f10")):
        found = zarr.open_array(str(tmp_path / "s" / split / name), mode="r")[:]
        np.testing.assert_array_equal(found, X[:, 10])
        assert set(Store.open(tmp_path / "s").split(split).schema.arrays) == {name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"f7": X[:, 7].astype("f4")}, "f0 holds float64 and f7 float32; .*one dtype"),
        ({"f7": None}, "number 7 is lacking.*next is f8"),
        ({"f07": X[:, 7]}, "is there twice"),
        ({"f0": None, "f1": None}, "number 1 is lacking"),
    ],
)
def test_columns_that_are_no_array(tmp_path, change, message):
    found = {name: column for name, column in (columns() | change).items() if column is not None}
    path = save(tmp_path / "a.parquet", found)
    with pytest.raises(DataError, match=rf"a\.parquet, columns 'f\*': .*{message}"):
        ff.import_split(tmp_path / "s", "id/train", path, arrays={"features": "f*"}, classes=3)
    with pytest.raises(ConfigError, match=r"f\d+: one float a row"):
        ff.import_split(tmp_path / "s", "id/train", path, classes=3)
    assert not (tmp_path / "s").exists()


def test_a_number_that_is_lacking_is_named(tmp_path):
    column = pa.array(X[:, 3], mask=np.arange(N) == 20)
    path = save(tmp_path / "a.parquet", columns() | {"f3": column})
    with pytest.raises(DataError, match=r"column 'f3' lacks 1 numbers"):
        ff.import_split(tmp_path / "s", "id/train", path, arrays={"features": "f*"}, classes=3)


MEASURED = """\
import sys
import pipeline as ff
from pipeline.machine import peak_rss_nbytes
ff.import_split(sys.argv[1], "id/train", sys.argv[2], arrays={"features": "f*"}, classes=3,
                block_nbytes=2**23, chunk_nbytes=2**21)
print(peak_rss_nbytes())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the kernel's peak")
def test_memory_does_not_depend_on_the_rows(tmp_path):
    """All rows lie in one row group, whose pages are of all rows: 100 MB of them."""
    peaks = []
    for rows in (2_000, 50_000):
        x = np.random.default_rng(0).standard_normal((rows, 512), dtype="f4")
        path = save(tmp_path / f"{rows}.parquet", columns(x), rows)
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(tmp_path / f"{rows}.zarr"), str(path)],
            capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 72 * 2**20
