"""Folders of runs that cannot be made: the job is wrong (exit 2), or the disk is (exit 1)."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from pipeline import config, job
from pipeline.__main__ import main
from pipeline.chunk import ArraySpec
from pipeline.content import Const
from pipeline.errors import ConfigError, ExistsRefusedError, FeatfoldError
from pipeline.store import Store, artifacts

K, D = 3, 6
FULL = (errno.ENOSPC, errno.EDQUOT)
BROKEN = (errno.EIO, errno.EMFILE)
UNUSABLE = (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


@pytest.fixture
def path(tmp_path):
    store = Store.create(tmp_path / "s.zarr")
    random = np.random.default_rng(0)
    specs = {"features": ArraySpec((D,), "float32", "D"), "labels": ArraySpec((), "int64")}
    y = random.integers(0, K, 60)
    contents = {"features": random.standard_normal((60, D)).astype("f4"), "labels": y}
    writer = store.create_split("id/train", specs, classes=K, rows=60)
    for block in writer.blocks:
        rows = slice(block.start, block.stop)
        writer.write(block.index, {name: array[rows] for name, array in contents.items()})
    written = tmp_path / "job.yaml"
    written.write_text(
        f"name: a\nstore: {store.path}\ndetectors: [mahalanobis]\n"
        f"report: {{directory: {tmp_path / 'runs'}}}\nresources: {{cluster: threads, workers: 1}}\n"
    )
    return written


def fail(monkeypatch, number, of):
    """Let the making of folders fail whose path ``of`` picks."""
    make = Path.mkdir

    def mkdir(self, *args, **options):
        if of(self):
            raise OSError(number, os.strerror(number), str(self))
        return make(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)


def is_family(folder):
    return folder.name == "a" and folder.parent.name == "runs"


def is_run(folder):
    return folder.parent.name == "a" and folder.parent.parent.name == "runs"


@pytest.mark.parametrize("of", [is_family, is_run])
@pytest.mark.parametrize("number", [*FULL, *BROKEN])
def test_a_disk_that_is_full_or_broken_is_no_fault_of_the_job(
    path, monkeypatch, capsys, of, number
):
    fail(monkeypatch, number, of)
    with pytest.raises(FeatfoldError) as refused:
        job.run(config.load(path))
    assert not isinstance(refused.value, ConfigError)
    message = str(refused.value)
    assert "runs" in message
    assert "name another report.directory" in message
    if number in FULL:
        assert "is full" in message
        assert "are free" in message
    assert main(["run", str(path), "-q"]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("of", [is_family, is_run])
@pytest.mark.parametrize("number", UNUSABLE)
def test_a_folder_that_cannot_be_one_is(path, monkeypatch, of, number):
    fail(monkeypatch, number, of)
    with pytest.raises(ConfigError, match=r"report\.directory: no run can be written there"):
        job.run(config.load(path))
    assert main(["run", str(path), "-q"]) == 2


def test_a_full_disk_at_the_very_end_is_told_as_well(path, monkeypatch):
    rename = Path.replace

    def full(self, target):
        if Path(target).name == "LATEST":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(FeatfoldError, match="is full: LATEST could not be written"):
        job.run(config.load(path))


@pytest.mark.parametrize(
    ("number", "error", "says"),
    [
        (errno.ENOSPC, FeatfoldError, "is full"),
        (errno.ENOTEMPTY, ExistsRefusedError, "by somebody else"),
    ],
)
def test_an_artifact_that_finds_no_room_was_not_written_by_others(
    tmp_path, monkeypatch, number, error, says
):
    def rename(self, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(error, match=says):
        artifacts.save(Const(np.ones(3)), tmp_path / "one", {})
