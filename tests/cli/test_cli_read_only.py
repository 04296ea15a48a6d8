"""Stores that nobody can write to, root included: every command that reads works, nothing is left.

The mount is real: permission bits would not stop root.
"""

import shutil

import pytest
from mounts import read_only

from pipeline.chunk import ArraySpec
from pipeline.errors import FeatfoldError
from pipeline.store import Store

K, SPECS = 4, {"features": ArraySpec((8,), "float32", "D")}


def listing(folder):
    return {p.relative_to(folder): (p.stat().st_mtime_ns, p.stat().st_size)
            for p in folder.rglob("*")}  # fmt: skip


def test_a_job_over_a_read_only_store_writes_beside_it_nowhere(cli, job, tmp_path, monkeypatch):
    """The store's folder is read-only as well, so the cache goes to that of the user."""
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    text = job.read_text()
    folder = tmp_path / "shared"
    folder.mkdir()
    shutil.move(tmp_path / "feats.zarr", folder / "feats.zarr")
    text = text.replace(str(tmp_path / "feats.zarr"), str(folder / "feats.zarr"))
    start = text.index(", cache: ")
    job.write_text(text[:start] + text[text.index("}", start) :])
    before = listing(folder)
    with read_only(folder):
        for command in ("plan", "run", "run"):
            ended = cli(command, job)
            assert ended.code == 0, ended.err
        assert "nothing to read" in ended.err + ended.out
        for options in ((), ("--verify",)):
            ended = cli("inspect", folder / "feats.zarr", *options)
            assert ended.code == 0, ended.err
        assert listing(folder) == before
    assert list(home.rglob("partials/*/*.npz"))


def test_writing_to_a_read_only_store_is_one_clear_error(job, tmp_path):
    store = Store.open(tmp_path / "feats.zarr")
    with read_only(store.path):
        for write in (
            lambda: store.remove_block("id/train", 0),
            lambda: store.create_split("id/val", SPECS, classes=K, rows=9),
            lambda: Store.create(store.path / "inner"),
        ):
            with pytest.raises(FeatfoldError, match=r"cannot be written.*Read-only file system"):
                write()
