"""``featfold export``: a split in files that the libraries of the formats read."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

import pipeline as ff
from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, ExistsRefusedError
from pipeline.store import Store, layout
from pipeline.store.exporters import formats

N, T, D = 23, 3, 4
BITS = np.random.default_rng(0).integers(0, 2**16, (N, T, D)).astype("u2")
BITS[(BITS & 0x7F80) == 0x7F80] &= 0xFFC0  # of what is not a number, one
ROWS = {
    "features": np.random.default_rng(1).standard_normal((N, T, D)).astype("f4"),
    "half": np.random.default_rng(2).standard_normal((N, D)).astype("f2"),
    "double": np.random.default_rng(3).standard_normal((N, D)),
    "brain": BITS,
    "labels": np.arange(N) % 5 - 1,
    "ids": 2**40 + np.arange(N)[::-1].copy(),
    "mask": np.random.default_rng(4).random((N, T)) > 0.3,
    "bytes": np.random.default_rng(5).integers(0, 256, (N, 2)).astype("u1"),
}
ROWS["features"][3] = np.nan
ROWS["half"][5, 1] = np.inf
DTYPES = {"brain": "bfloat16"}
LAYOUTS = {"features": "TD", "brain": "TD"}


@pytest.fixture
def store(tmp_path):
    specs = {
        name: ArraySpec(x.shape[1:], DTYPES.get(name, x.dtype.name), LAYOUTS.get(name, ""))
        for name, x in ROWS.items()
    }
    made = Store.create(tmp_path / "feats.zarr")
    writer = made.create_split(
        "id/train", specs, classes=4, rows=N, chunk_nbytes=5 * 48, block_nbytes=10 * 240
    )
    assert len(writer.blocks) > 1
    for block in writer.blocks:
        writer.write(block.index, {name: x[block.start : block.stop] for name, x in ROWS.items()})
    return made


def place(tmp_path, to):
    return tmp_path / ("npys" if to == "npy" else f"out.{to}")


def widened(bits):
    return (bits.astype("u4") << 16).view("f4")


def read_npy(path):
    return {file.stem: np.load(file, allow_pickle=False) for file in path.iterdir()}


def read_parquet(path):
    def rows(column):
        while hasattr(column, "flatten") and "list" in str(column.type):
            column = column.flatten()
        return column.to_numpy(zero_copy_only=False)

    table = pq.read_table(path).combine_chunks()
    return {
        name: rows(table.column(name).chunk(0)).reshape(ROWS[name].shape)
        for name in table.column_names
    }


def read_safetensors(path):
    found = safetensors.torch.load_file(path)
    return {n: (x.view(torch.uint16) if n == "brain" else x).numpy() for n, x in found.items()}


READ = {"npy": read_npy, "parquet": read_parquet, "safetensors": read_safetensors}


@pytest.mark.parametrize("to", READ)
def test_the_library_of_the_format_reads_the_same_bits(cli, tmp_path, store, to):
    code, out, err = cli(
        "export", store.path, place(tmp_path, to), "--split", "id/train", "--to", to, "--json"
    )
    assert code == 0, err
    told = json.loads(out)
    assert (told["split"], told["rows"], set(told["arrays"])) == ("id/train", N, set(ROWS))
    found = READ[to](place(tmp_path, to))
    assert set(found) == set(ROWS)
    for name, rows in ROWS.items():
        wanted = widened(rows) if name == "brain" and to != "safetensors" else rows
        assert found[name].dtype == wanted.dtype
        assert found[name].tobytes() == wanted.tobytes(), name
    for path, nbytes in told["files"].items():
        assert os.path.getsize(path) == nbytes
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("to", READ)
def test_imported_again_every_bit_is_there(tmp_path, store, to):
    ff.export_split(store, "id/train", place(tmp_path, to), to=to)
    source = str(place(tmp_path, to)) + ("/*.npy" if to == "npy" else "")
    ff.import_split(
        tmp_path / "again.zarr", "id/train", source, classes=4,
        layouts={"features": "NTD", "brain": "NTD"}, dtype={"brain": "bfloat16"},
    )  # fmt: skip
    again = Store.open(tmp_path / "again.zarr")
    first, second = store.split("id/train"), again.split("id/train")
    assert dict(first.schema.arrays).keys() == dict(second.schema.arrays).keys()
    for name, spec in first.schema.arrays.items():
        assert second.schema.arrays[name].dtype == spec.dtype, name
    whole = [
        {n: layout.encode(np.concatenate([chunk[n].copy() for b in s.blocks for chunk in s.read(
            b, frozenset(ROWS))]), s.schema.arrays[n]).tobytes() for n in ROWS}
        for s in (first, second)
    ]  # fmt: skip
    assert whole[0] == whole[1]
    ff.export_split(again, "id/train", tmp_path / "b.safetensors", to="safetensors")
    ff.export_split(store, "id/train", tmp_path / "a.safetensors", to="safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_named_arrays_alone(cli, tmp_path, store):
    code, _, err = cli("export", store.path, tmp_path / "o", "--split", "id/train", "--to", "npy",
                       "--array", "labels", "--array", "half")  # fmt: skip
    assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["half.npy", "labels.npy"]


@pytest.mark.parametrize("to", READ)
def test_what_is_there_is_replaced_only_when_asked(cli, tmp_path, store, to):
    out = place(tmp_path, to)
    asked = ("export", store.path, out, "--split", "id/train", "--to", to)
    assert cli(*asked).code == 0
    file = out / "labels.npy" if to == "npy" else out
    before = file.read_bytes()
    file.write_bytes(b"mine")
    code, _, err = cli(*asked)
    assert code == 2
    assert "there already" in err
    assert "--overwrite" in err
    assert file.read_bytes() == b"mine"
    assert cli(*asked, "--overwrite").code == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--split", "id/trian", "--to", "npy"), 2, "is not the name of a split"),
        (("--split", "id/val", "--to", "npy"), 4, "has no split 'id/val'; it has id/train"),
        (("--split", "id/train", "--to", "nyp"), 2, "choose npy, parquet, safetensors"),
        (("--split", "id/train", "--to", "parquet"), 2, "name it NAME.parquet"),
        (("--split", "id/train", "--to", "npy", "--array", "labls"), 2, "did you mean labels?"),
        (("--to", "npy"), 2, "Missing option '--split'"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(cli, tmp_path, store, words, code, says):
    ended = cli("export", store.path, tmp_path / "out", *words)
    assert ended.code == code
    assert says in ended.err
    assert not (tmp_path / "out").exists()


def test_other_places_that_cannot_be(tmp_path, store):
    (tmp_path / "file").touch()
    for out, to, says in (
        (tmp_path / "file", "npy", "needs a folder"),
        (tmp_path, "safetensors", "is one file"),
        ("s3://bucket/x.parquet", "parquet", "local disk"),
    ):
        with pytest.raises(ConfigError, match=says):
            ff.export_split(store, "id/train", out, to=to)
    with pytest.raises(ConfigError, match="leave it out"):
        ff.export_split(store, "id/train", tmp_path / "o", to="npy", arrays=[])
    with pytest.raises(FileNotFoundError, match="make the folder first"):
        ff.export_split(store, "id/train", tmp_path / "no" / "x.parquet", to="parquet")


def test_a_damaged_block_leaves_nothing_behind(cli, tmp_path, store):
    file = next(path for path in (store.path / "id/train/double/c").rglob("*") if path.is_file())
    content = bytearray(file.read_bytes())
    content[9] ^= 1
    file.write_bytes(content)
    code, _, err = cli("export", store.path, tmp_path / "o", "--split", "id/train", "--to", "npy")
    assert code == 4
    assert "double" in err
    assert list((tmp_path / "o").iterdir()) == []


def test_a_full_disk_is_refused_beforehand(tmp_path, store, monkeypatch):
    monkeypatch.setattr("pipeline.files.free_nbytes", lambda _: 1000)
    with pytest.raises(ff.errors.FeatfoldError, match="1,000 are free"):
        ff.export_split(store, "id/train", tmp_path / "o", to="npy")
    assert not (tmp_path / "o").exists()


def test_a_file_that_appears_meanwhile_is_kept(tmp_path, store):
    class Meanwhile:
        def begin(self, *_):
            (tmp_path / "o.safetensors").write_bytes(b"theirs")

        def advance(self, _): ...
        def end(self): ...

    with pytest.raises(ExistsRefusedError):
        ff.export_split(
            store, "id/train", tmp_path / "o.safetensors", to="safetensors", progress=Meanwhile()
        )
    assert (tmp_path / "o.safetensors").read_bytes() == b"theirs"
    assert not list(tmp_path.glob(".*.partial"))


KILLED = """
import sys, time
import pipeline as ff
class Slow:
    def begin(self, *_): print("begun", flush=True)
    def advance(self, _): time.sleep(60)
    def end(self): ...
ff.export_split(sys.argv[1], "id/train", sys.argv[2], to=sys.argv[3], progress=Slow())
"""


@pytest.mark.parametrize("to", ["npy", "parquet"])
def test_killed_it_leaves_no_file_of_that_name_and_the_next_sweeps(tmp_path, store, to):
    out = place(tmp_path, to)
    command = [sys.executable, "-c", KILLED, str(store.path), str(out), to]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "begun\n"
    while not (strays := list(tmp_path.rglob(".*.partial"))):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert strays
    assert not (list(out.glob("*.npy")) if to == "npy" else out.exists())
    ff.export_split(store, "id/train", out, to=to)
    assert not list(tmp_path.rglob(".*.partial"))
    assert set(READ[to](out)) == set(ROWS)


def test_without_pyarrow_it_says_what_to_install(cli, tmp_path, store, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for module in ("csv", "ipc", "parquet"):
        monkeypatch.setitem(sys.modules, f"pyarrow.{module}", None)
    code, _, err = cli(
        "export", store.path, tmp_path / "o.parquet", "--split", "id/train", "--to", "parquet"
    )
    assert code == 2
    assert "pip install 'featfold[parquet]'" in err


MEASURE = """
import sys
import pipeline as ff
ff.export_split(sys.argv[1], "id/val", sys.argv[2] + "0", to=sys.argv[3]) if sys.argv[3] == "npy" \\
    else ff.export_split(sys.argv[1], "id/val", "0." + sys.argv[2], to=sys.argv[3])
def status(key):
    text = open("/proc/self/status").read()
    return 1024 * int(text.split(key + ":")[1].split()[0])
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
ff.export_split(sys.argv[1], "id/train", sys.argv[2], to=sys.argv[3])
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs the kernel's peak")
@pytest.mark.parametrize("to", sorted(formats()))
def test_memory_does_not_depend_on_the_rows(tmp_path, to):
    store = Store.create(tmp_path / "s.zarr")
    x = np.random.default_rng(0).standard_normal((1024, 1024)).astype("f4")
    for name, blocks in (("id/val", 4), ("id/train", 16)):  # 16 MiB and 64 MiB
        writer = store.create_split(
            name, {"x": ArraySpec((1024,), "float32")}, classes=0, rows=1024 * blocks,
            chunk_nbytes=2**22, block_nbytes=2**22,
        )  # fmt: skip
        for block in writer.blocks:
            writer.write(block.index, {"x": x})
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(store.path), "o" if to == "npy" else f"o.{to}", to],
        capture_output=True, text=True, check=True, cwd=tmp_path, env={
            **os.environ, "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )  # fmt: skip
    assert int(done.stdout) < 24 * 2**20
