"""``featfold gc``: what goes and what stays, and that a kept run still reads nothing afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline import files, locks
from pipeline.chunk import ArraySpec
from pipeline.store import Store

SPECS = {"features": ArraySpec((8,), "float64", "D"), "labels": ArraySpec((), "int64")}
JOB = """\
name: small
store: {place}/feats.zarr
detectors: [msp, {{name: mahalanobis, covariance: pinvh}}]
evaluate: {{near: [ood/near/a]}}
resources: {{cluster: threads, workers: 2}}
report: {{directory: {place}/runs}}
"""


@pytest.fixture
def place(tmp_path) -> Path:
    """A job over a store whose splits have several blocks, with a cache of its own beside it."""
    store = Store.create(tmp_path / "feats.zarr")
    for name, rows in (("id/train", 90), ("id/test", 40), ("ood/near/a", 30)):
        rng = np.random.default_rng(rows)
        labels = np.arange(rows) % 4 if name.startswith("id") else np.full(rows, -1)
        contents = {"features": rng.standard_normal((rows, 8)), "labels": labels}
        writer = store.create_split(name, SPECS, classes=4, rows=rows, block_nbytes=9 * 72)
        for block in writer.blocks:
            rows_of = slice(block.start, block.stop)
            writer.write(block.index, {n: array[rows_of] for n, array in contents.items()})
    (tmp_path / "job.yaml").write_text(JOB.format(place=tmp_path))
    return tmp_path


@pytest.fixture
def gc(cli, place):
    """Collect the garbage of the store, and return what is said of it."""

    def collected(*options):
        ended = cli(
            "gc", place / "feats.zarr", "--keep-last", 1, "--runs", place / "runs",
            "--unused", "0s", "--json", *options,
        )  # fmt: skip
        assert ended.code == 0, ended.err
        return json.loads(ended.out)

    return collected


@pytest.fixture
def ran(cli, place):
    """Run the job with options set; return the bytes that it has read."""

    def run(*options):
        words = (word for option in options for word in ("--set", option))
        ended = cli("run", place / "job.yaml", "--json", *words)
        assert ended.code == 0, ended.err
        return json.loads(ended.out)["verdict"]["bytes_read"]

    return run


def tree(folder: Path) -> set[Path]:
    """Return every file below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}


def runs_of(place: Path, name: str = "small") -> list[str]:
    """Return the names of the run directories of a job."""
    return sorted(path.name for path in (place / "runs" / name).glob("2*"))


def kinds(found) -> set[str]:
    """Return what is to go."""
    return {one["what"] for one in found["garbage"]}


def test_nothing_goes_before_it_is_told_to_and_then_what_was_shown(cli, place, gc, ran):
    ran("detectors.1.covariance=oas")
    ran("detectors.1.covariance=ridge", "nonfinite=skip")
    ran()
    before = tree(place)
    shown = gc()
    assert not shown["deleted"]
    assert tree(place) == before
    assert kinds(shown) == {"run", "partials"}
    going = {Path(path) for one in shown["garbage"] for path in one["paths"]}
    sizes = [path.stat().st_size for path in before if {path, *path.parents} & going]
    assert shown["nbytes"] == sum(sizes)

    done = gc("--yes")
    assert done["deleted"]
    assert done["garbage"] == shown["garbage"]
    assert tree(place) == {path for path in before if not {path, *path.parents} & going}
    assert len(runs_of(place)) == 1
    assert (place / "runs" / "small" / "LATEST").read_text().strip() in runs_of(place)
    assert gc("--yes") == {"deleted": False, "nbytes": 0, "garbage": [], "left": []}

    assert ran() == 0  # all that the kept run needs is there
    assert ran("detectors.1.covariance=oas", "nonfinite=skip") > 0


def test_what_a_merge_was_made_of_stays_for_an_appended_block(place, gc, ran):
    ran("nonfinite=skip")
    ran()
    gc("--yes")
    cached = place / "feats.zarr.cache" / "partials"
    several = [key for key in cached.iterdir() if len(list(key.iterdir())) > 8]
    assert several
    for key in several:  # the roots are the youngest of their trees
        newest = max(key.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        newest.unlink()
    assert ran() == 0


def test_while_a_job_runs_its_runs_and_all_partials_stay(place, gc, ran):
    ran("nonfinite=skip")
    ran()
    (place / "runs" / "small" / "20300101T000000Z-0123abcd").mkdir()
    before = tree(place)
    with locks.hold_family(place / "runs" / "small"):
        found = gc("--yes")
    assert found["garbage"] == []
    assert "the runs of" in found["left"][0]
    assert f"process {os.getpid()}" in found["left"][0]
    assert "partials and constants" in found["left"][1]
    assert tree(place) == before


def test_runs_that_never_finished_and_files_of_dead_processes_go(place, gc, ran):
    ran()
    dead = place / "runs" / "small" / "20250101T000000Z-0123abcd"
    (dead / "detectors").mkdir(parents=True)
    (dead / "detectors" / "some.npy").write_bytes(bytes(100))
    code = "from pipeline import files; print(files.unfinished('x.npz'))"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    stray = place / "feats.zarr.cache" / name.stdout.strip()
    stray.write_bytes(bytes(10))
    mine = place / "feats.zarr.cache" / files.unfinished("x.npz")
    mine.write_bytes(bytes(10))
    ours = place / "runs" / "20250101T000000Z-0a1b2c"  # of a training, not of a job
    ours.mkdir()
    found = gc("--yes")
    assert kinds(found) == {"run", "unfinished"}
    assert found["nbytes"] == 110
    assert not dead.exists()
    assert not stray.exists()
    assert mine.exists()
    assert ours.exists()
    assert len(runs_of(place)) == 1


def test_what_was_used_lately_and_runs_of_other_stores_stay(cli, place, gc, ran):
    shutil.copytree(place / "feats.zarr", place / "other.zarr")
    other = (f"store={place / 'other.zarr'}", f"resources.cache={place / 'other.cache'}")
    for _ in range(2):
        ran("name=other", *other)
    ran("nonfinite=skip")
    ran()
    constants = place / "feats.zarr.cache" / "constants"
    constants.mkdir()
    old, new = constants / "old.npy", constants / "new.npy"
    for path in (old, new):
        path.write_bytes(bytes(5))
    os.utime(old, (time.time() - 7200,) * 2)
    found = gc("--unused", "1h", "--yes")
    assert kinds(found) == {"run", "constants"}
    assert not old.exists()
    assert new.exists()
    assert len(runs_of(place, "other")) == 2
    assert kinds(gc()) == {"partials", "constants"}


def test_partials_stay_where_a_kept_run_cannot_be_read(place, gc, ran):
    ran("nonfinite=skip")
    ran()
    ran()
    last = place / "runs" / "small" / runs_of(place)[-1] / "results.json"
    text = last.read_text()
    last.write_text("{")
    found = gc("--yes")
    assert kinds(found) == {"run"}
    assert "not a JSON document" in found["left"][0]
    last.write_text(text.replace("name: mahalanobis", "name: mahalanobiss"))
    found = gc("--yes")
    assert "mahalanobiss" in found["left"][0]
    assert "partials" not in kinds(found)


def test_people_are_told_what_would_go_and_mistakes_what_to_name(cli, place, ran):
    ran("nonfinite=skip")
    ran()
    options = ("--keep-last", 1, "--runs", place / "runs", "--unused", "0s")
    code, out, _ = cli("gc", place / "feats.zarr.cache", *options)
    assert code == 0
    assert "older than the last 1 of its job" in out
    assert "partials" in out
    assert "nothing was deleted; --yes deletes" in out
    assert len(runs_of(place)) == 2
    code, _, err = cli("gc", place / "runs", *options)
    assert code == 4
    assert "expected a store, or a cache" in err
    code, _, err = cli("gc", place / "feats.zarr", "--keep-last", 1, "--unused", "soon")
    assert code == 2
    assert "write 12h, 1d or 0s" in err
    assert cli("gc", place / "feats.zarr").code == 2
