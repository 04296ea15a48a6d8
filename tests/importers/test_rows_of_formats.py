"""What all formats of other libraries promise: rows bit for bit, in any order, or a clear error."""

import contextlib
import os
import pickle
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
import zarr

from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.store import open_predictions
from pipeline.store.importers import Unreadable, format_of, logical_dtype

N, T, D = 103, 3, 4
rng = np.random.default_rng(0)
ARRAYS = {
    "features": rng.standard_normal((N, T, D)).astype("f4"),
    "half": rng.standard_normal((N, D)).astype("f2"),
    "double": rng.standard_normal((N, D)),
    "labels": np.arange(N) % 5 - 1,
    "small": rng.integers(0, 200, (N, 2)).astype("u1"),
    "flags": rng.random(N) > 0.5,
}
ARRAYS["features"][3] = np.nan
ARRAYS["half"][5, 1] = np.nan


def columns():
    def column(x):
        made = pa.array(x.reshape(-1))
        for length in reversed(x.shape[1:]):
            made = pa.FixedSizeListArray.from_arrays(made, length)
        return made

    return pa.table({name: column(x) for name, x in ARRAYS.items()})


def ragged_columns():
    lists = {
        "features": ARRAYS["features"].tolist(), "double": ARRAYS["double"].tolist(),
        "labels": ARRAYS["labels"],
    }  # fmt: skip
    kinds = {"features": pa.list_(pa.list_(pa.float32())), "double": pa.large_list(pa.float64())}
    return pa.table({name: pa.array(x, kinds.get(name)) for name, x in lists.items()})


def write_hdf5(path, **options):
    with h5py.File(path, "w") as file:
        for name, x in ARRAYS.items():
            chunks = (10, *x.shape[1:-1], min(3, x.shape[-1])) if x.ndim > 1 else (10,)
            file.create_dataset(name, data=x, **(options and {**options, "chunks": chunks}))


def write_torch(path):
    torch.save({name: torch.from_numpy(x) for name, x in ARRAYS.items()}, path)


def write_zarr(path, zarr_format=3, codecs="auto"):
    group = zarr.create_group(path, zarr_format=zarr_format)
    for name, x in ARRAYS.items():
        group.create_array(name, data=x, chunks=(10, *x.shape[1:]), compressors=codecs)


def write_stream(path):
    table = columns()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=20)


FORMATS = {
    "hdf5": ("a.h5", write_hdf5),
    "hdf5 in chunks": ("a.hdf5", lambda p: write_hdf5(p, compression="gzip", fletcher32=True)),
    "torch": ("a.pt", write_torch),
    "zarr 3": ("a.zarr", write_zarr),
    "zarr 2": ("b", lambda p: write_zarr(p, zarr_format=2)),
    "parquet": ("a.parquet", lambda p: pa.parquet.write_table(columns(), p, row_group_size=40)),
    "parquet lists": ("b.pq", lambda p: pa.parquet.write_table(ragged_columns(), p)),
    "arrow": ("a.arrow", write_stream),
    "feather": ("a.feather", lambda p: pa.feather.write_feather(columns(), p, chunksize=30)),
}


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    name, write = FORMATS[request.param]
    write(tmp_path / name)
    return tmp_path / name


def same(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == np.ascontiguousarray(wanted).tobytes()


def opened(path):
    return format_of(path).arrays(path)


def test_rows_are_the_same_bits_whatever_is_sliced(path):
    arrays = opened(path)
    assert set(arrays) == set(ARRAYS) & set(arrays)
    assert len(arrays) >= 3
    for name, rows in arrays.items():
        wanted = ARRAYS[name]
        assert (rows.shape, logical_dtype(rows)) == (wanted.shape, wanted.dtype.name)
        for step in (1, 7, 10, N - 1, N):
            for start in range(0, N, step):
                same(rows[start : start + step], wanted[start : start + step])
        rows.close()
        for start, stop in ((90, N), (0, 3), (38, 45), (38, 45), (45, 46), (50, 50), (7, 95)):
            same(rows[start:stop], wanted[start:stop])
        out = np.empty((20, *wanted.shape[1:]), wanted.dtype)
        rows.read_into(out, 31)
        same(out, wanted[31:51])


def test_rows_go_to_other_processes_and_many_threads(path):
    rows = opened(path)["features"]
    same(rows[5:6], ARRAYS["features"][5:6])
    same(pickle.loads(pickle.dumps(rows))[9:40], ARRAYS["features"][9:40])
    wrong = []

    def read(first):
        for start in range(first, N - 8, 5):
            if rows[start : start + 8].tobytes() != ARRAYS["features"][start : start + 8].tobytes():
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_file_stays_open_after_looking_or_closing(path):
    def held():
        links = Path("/proc/self/fd").iterdir()
        with contextlib.suppress(FileNotFoundError):
            return [os.readlink(link) for link in links if str(path) in os.readlink(link)]
        return []

    arrays = opened(path)
    assert held() == []
    for rows in arrays.values():
        rows[0:3]
        rows.close()
    assert held() == []


def test_what_was_removed_is_missing(path):
    rows = opened(path)["features"]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError, match=str(path)):
        rows[0:5]
    with pytest.raises(MissingInputError, match="is not there"):
        format_of(path)


@contextlib.contextmanager
def somebody_else():
    """Be a user without rights for as long as this lasts, where this process may be anybody."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_may_not_be_read_says_so(path):
    opened(path)  # whatever the library imports at the first use
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        moved = Path(shutil.move(path, folder))
        for file in [moved, *moved.rglob("*")]:
            if file.is_file():
                file.chmod(0)
        with somebody_else(), pytest.raises(DataError, match=r"may not be read .*chmod \+r"):
            opened(moved)


CUT = {"hdf5", "hdf5 in chunks", "torch", "parquet", "arrow"}


@pytest.mark.parametrize("kind", sorted(CUT))
def test_files_that_are_cut_off_are_damaged(tmp_path, kind):
    name, write = FORMATS[kind]
    path = tmp_path / name
    write(path)
    content = path.read_bytes()
    for length in (1, 64, len(content) // 2, len(content) - 9):
        path.write_bytes(content[:length])
        with pytest.raises(DataError, match=str(path)):
            opened(path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptError):
        opened(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=str(path)):
        opened(path)


CHECKED = {
    "hdf5 in chunks": FORMATS["hdf5 in chunks"][1],
    "zarr 3": lambda path: write_zarr(path, codecs=[zarr.codecs.Crc32cCodec()]),
    "parquet": lambda path: pa.parquet.write_table(
        columns(), path, row_group_size=40, write_page_checksum=True
    ),
}


@pytest.mark.parametrize("kind", CHECKED)
def test_a_flipped_byte_names_file_and_rows(tmp_path, kind):
    path = tmp_path / FORMATS[kind][0]
    CHECKED[kind](path)
    file = path / "features/c/4/0/0" if path.is_dir() else path
    content = bytearray(file.read_bytes())
    rows = opened(path)["features"]
    caught = []
    for place in range(len(content) // 8, len(content), max(1, len(content) // 60)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        rows.close()
        try:
            found = rows[0:N]
        except DataError as error:
            caught.append(str(error))
        else:
            same(found, ARRAYS["features"])  # the byte belongs to another array
        file.write_bytes(content)
    assert caught
    assert all(str(path) in error for error in caught)


PACKAGES = {
    "hdf5": ("h5py", "h5"), "parquet": ("pyarrow", "parquet"), "arrow": ("pyarrow", "hf"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PACKAGES)
def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch, kind):
    package, extra = PACKAGES[kind]
    name, write = FORMATS[kind]
    write(tmp_path / name)
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{package}.*pip install 'featfold\[{extra}\]'"):
        opened(tmp_path / name)


def test_text_is_listed_and_refused_by_name(tmp_path):
    table = pa.table({"name": pa.array(["a", "b"]), "x": pa.array([1.0, 2.0])})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    pa.feather.write_feather(table, tmp_path / "a.feather")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["name"], file["x"] = ["a", "b"], [1.0, 2.0]
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    group.create_array("x", data=np.ones(2), write_data=True)
    group.create_array("name", shape=(2,), dtype="<U3")[:] = np.array(["a", "b"])
    for name in ("a.parquet", "a.feather", "a.h5", "a.zarr"):
        arrays = opened(tmp_path / name)
        assert sorted(arrays) == ["name", "x"]
        assert isinstance(arrays["name"], Unreadable)
        with pytest.raises(DataError, match=r"name.*expected numbers"):
            arrays["name"][0:1]


@pytest.mark.parametrize("kind", ["hdf5", "hdf5 in chunks", "torch", "arrow", "feather"])
def test_metrics_read_them_in_place_and_workers_are_sent_names(tmp_path, monkeypatch, kind):
    name, write = FORMATS[kind]
    path = tmp_path / name
    write(path)
    monkeypatch.setattr("pipeline.store.predictions.BLOCK_NBYTES", 640)
    split = open_predictions(f"{path}/labels", f"{path}/labels", classes=5)
    sent = [pickle.dumps(split.only(block)) for block in split.blocks]
    assert len(sent) > 2
    assert max(map(len, sent)) < 2000
    found = [
        chunk["labels"].copy()
        for block, one in zip(split.blocks, sent, strict=True)
        for chunk in pickle.loads(one).read(block, {"labels"}, 10)
    ]
    same(np.concatenate(found), ARRAYS["labels"])
