"""Imports that were killed, stopped or damaged: what is committed stays, the rest is written."""

import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kills import Moments, kills

import pipeline as ff
from pipeline.errors import DataError, ExistsRefusedError, IncompleteError, LockedError
from pipeline.importing import Silent
from pipeline.store import Store

KILLS = kills(usual=3)
N, D, K = 600, 256, 7
BLOCKS = 20
SIZES = {"chunk_nbytes": 10 * D * 4, "block_nbytes": 30 * (D * 4 + 8)}
CONTEXT = multiprocessing.get_context("forkserver")
ROOT = Path(__file__).parents[2]


def make(folder):
    """Save rows in deflated shards, and labels in one file; return the sources."""
    rows = np.random.default_rng(7).standard_normal((N, D)).astype("f4")
    for i, (start, stop) in enumerate([(0, 100), (100, 101), (101, 420), (420, N)]):
        np.savez_compressed(folder / f"rows_{i}.npz", features=rows[start:stop])
    np.save(folder / "labels.npy", np.arange(N) % K)
    return rows, [f"{folder}/rows_*.npz", f"{folder}/labels.npy"]


def bring(store, sources):
    ff.import_split(store, "id/train", sources, classes=K, resume=True, **SIZES)


def chunks(store):
    """Return the bytes of every chunk."""
    found = store.glob("id/train/*/c/**/*")
    return {file.relative_to(store): file.read_bytes() for file in found if file.is_file()}


def generations(store):
    writer = Store.open(store).writer("id/train")
    return {i: writer._records()[i].generation for i in sorted(writer.committed)}


@pytest.mark.timeout(60 + 30 * KILLS)
def test_a_killed_import_goes_on_to_the_same_bytes(folder):
    _, sources = make(folder)
    CONTEXT.set_forkserver_preload(["pipeline.importing", "numpy"])
    whole = folder / "whole.zarr"
    first = CONTEXT.Process(target=bring, args=(whole, sources))
    first.start()
    first.join(60)
    began = time.monotonic()
    bring(folder / "timed.zarr", sources)
    seconds, expected = time.monotonic() - began, chunks(whole)
    moments = Moments("importing", KILLS)
    for share, _ in moments:
        store = folder / f"draw{len(moments.hits) + moments.missed}.zarr"
        process = CONTEXT.Process(target=bring, args=(store, sources))
        process.start()
        while process.is_alive() and not (store / "id/train/manifest/zarr.json").exists():
            time.sleep(0.001)
        time.sleep(share * seconds)
        process.kill()
        process.join(60)
        kept = generations(store)
        if len(kept) == BLOCKS:
            moments.miss()
            continue
        moments.hit(f"at {share * seconds:.3f} s with {len(kept)} of {BLOCKS} blocks")
        before = {file: (store / file).stat().st_mtime_ns for file in chunks(store)}
        done = ff.import_split(store, "id/train", sources, resume=True)
        assert (done.written, done.kept, done.mended) == (BLOCKS - len(kept), len(kept), 0)
        assert chunks(store) == expected
        rows = {int(file.parts[4]) // 3 for file in before if file.parts[2] == "features"}
        for file in before:
            if file.parts[2] == "features" and int(file.parts[4]) // 3 in set(kept) & rows:
                assert (store / file).stat().st_mtime_ns == before[file]


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def cut(file):
    file.write_bytes(file.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_damaged_blocks_alone_are_written_again(folder, damage):
    _, sources = make(folder)
    store = folder / "s.zarr"
    bring(store, sources)
    expected = chunks(store)
    damage(store / "id/train/features/c/4/0")
    damage(store / "id/train/labels/c/7")
    before = {
        file: (store / file).stat().st_mtime_ns for file in expected if (store / file).exists()
    }
    told = []
    watch = Silent()
    watch.say = told.append
    done = ff.import_split(store, "id/train", sources, resume=True, progress=watch)
    assert (done.written, done.mended, done.kept) == (2, 2, 18)
    assert chunks(store) == expected
    assert {i for i, generation in generations(store).items() if generation} == {1, 7}
    same = [file for file, t in before.items() if (store / file).stat().st_mtime_ns == t]
    assert len(same) == len(expected) - 2 * (3 + 1)
    assert any("array features, rows 40-50" in text for text in told)
    assert not Store.open(store).split("id/train").verify()


def test_a_resume_that_was_killed_while_it_mended(folder):
    _, sources = make(folder)
    store = folder / "s.zarr"
    bring(store, sources)
    expected = chunks(store)
    flip(store / "id/train/features/c/4/0")
    writer = Store.open(store).writer("id/train")
    with pytest.raises(ZeroDivisionError):
        writer.write(1, {"features": Broken(), "labels": np.arange(30, 60) % K}, overwrite=True)
    done = ff.import_split(store, "id/train", sources, resume=True)
    assert (done.written, done.kept) == (1, 19)
    assert chunks(store) == expected


def test_files_that_change_meanwhile_are_told(folder):
    _, sources = make(folder)
    watch = Silent()
    watch.advance = lambda amount: (folder / "rows_3.npz").touch()
    with pytest.raises(DataError, match="id/train: files changed while they were imported"):
        ff.import_split(folder / "s.zarr", "id/train", sources, classes=K, progress=watch, **SIZES)
    store = Store.open(folder / "s.zarr")
    assert not store.writer("id/train").missing()
    with pytest.raises(IncompleteError, match="id/train is incomplete"):
        store.split("id/train")
    with pytest.raises(ExistsRefusedError, match="it was never declared whole"):
        ff.import_split(folder / "s.zarr", "id/train", sources, classes=K)
    with pytest.raises(DataError, match="may be of both; replace it with --overwrite"):
        ff.import_split(folder / "s.zarr", "id/train", sources, classes=K, resume=True)
    with pytest.raises(IncompleteError):
        store.split("id/train")


def test_a_split_of_all_blocks_that_was_not_declared_whole_is_so_by_a_resume(folder, monkeypatch):
    _, sources = make(folder)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "finish", Broken.__getitem__)
        with pytest.raises(ZeroDivisionError):
            bring(folder / "s.zarr", sources)
    store = Store.open(folder / "s.zarr")
    with pytest.raises(IncompleteError):
        store.split("id/train")
    done = ff.import_split(folder / "s.zarr", "id/train", sources, resume=True)
    assert (done.written, done.kept) == (0, BLOCKS)
    assert store.split("id/train", verify=True).schema.rows == N


def test_one_import_at_a_time(folder):
    _, sources = make(folder)
    bring(folder / "s.zarr", sources)
    with Store.open(folder / "s.zarr").lock("id/train"), pytest.raises(LockedError):
        bring(folder / "s.zarr", sources)


class Broken:
    """Rows that cannot be read."""

    shape, ndim, dtype = (30, D), 2, np.dtype("f4")

    def __getitem__(self, rows):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("touch", "names, sizes and times"),
        ("rename", "names, sizes and times"),
        ("more", "files: 5 then, 6 now"),
        ("labels", "arrays: "),
        ("dtype", "stored as: .*float32 D.*float16 D"),
        ("classes", "classes: 7 then, 8 now"),
    ],
)
def test_other_files_do_not_go_on_with_a_split(folder, change, what):
    rows, sources = make(folder)
    store = folder / "s.zarr"
    bring(store, sources)
    before = chunks(store)
    options = {}
    if change == "touch":
        time.sleep(0.01)
        (folder / "rows_1.npz").touch()
    elif change == "rename":
        (folder / "rows_1.npz").rename(folder / "rows_1.5.npz")
    elif change == "more":
        np.savez(folder / "rows_4.npz", features=rows[:1])
        np.save(folder / "labels.npy", np.arange(N + 1) % K)
    elif change == "labels":
        options["labels"] = np.arange(N) % K
    elif change == "dtype":
        options["dtype"] = "float16"
    else:
        options["classes"] = K + 1
    with pytest.raises(ExistsRefusedError, match=what):
        ff.import_split(store, "id/train", sources, resume=True, **options)
    assert chunks(store) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_an_import_that_goes_on_later(tmp_path, number, code):
    _, sources = make(tmp_path)
    command = [
        sys.executable, "-m", "pipeline", "import", *sources, "--store", f"{tmp_path}/s.zarr",
        "--split", "id/train", "--classes", str(K), "--block", "3kB",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs these may not
    )  # fmt: skip
    while not list(tmp_path.glob("s.zarr/id/train/manifest/block-*/zarr.json")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "Traceback" not in said
    kept = len(generations(tmp_path / "s.zarr"))
    assert 0 < kept < 300
    again = subprocess.run([*command, "--resume"], capture_output=True, text=True, cwd=ROOT)
    assert again.returncode == 0, again.stderr
    assert f"{kept:,} kept" in again.stdout
    assert not Store.open(tmp_path / "s.zarr").split("id/train").verify()
