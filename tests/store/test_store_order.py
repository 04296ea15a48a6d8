"""The order of a write, as the process does it: flush, rename, flush the directory, record."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.store import Store

TRACE = """
import os, sys
log = []
def traced(name, place):
    plain = getattr(os, name)
    def call(*args, **more):
        done = plain(*args, **more)
        log.append((name, *place(*args)))
        return done
    setattr(os, name, call)
opened = os.path.realpath
traced("fsync", lambda handle: (opened(f"/proc/self/fd/{handle}"),))
traced("replace", lambda old, new: (os.fspath(old), os.fspath(new)))
traced("rename", lambda old, new: (os.fspath(old), os.fspath(new)))
sys.path.insert(0, sys.argv[2])
from conftest import Sample
from pipeline.store import Store
writer = Store.open(sys.argv[1]).writer("id/train")
if sys.argv[3] == "append":
    writer.append(Sample.rows(20, 27))
else:
    writer.write(1, Sample.rows(8, 16), overwrite=sys.argv[3] == "overwrite")
for event in log:
    print(*event, sep="\\t")
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the names of open files")
@pytest.mark.parametrize("how", ["write", "append", "overwrite"])
def test_data_is_flushed_then_renamed_then_its_directory_then_the_record(
    tmp_path, sample, request, how
):
    path = tmp_path.resolve() / "store.zarr"
    if how == "write":
        sample.writer(path).write(0, sample.rows(0, 8))
    else:
        sample.filled(path)
    done = subprocess.run(
        [sys.executable, "-c", TRACE, str(path), str(request.path.parent), how],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    events = [tuple(line.split("\t")) for line in done.stdout.splitlines()]
    index = 3 if how == "append" else 1
    record = f"{path}/id/train/manifest/block-{index:05d}/zarr.json"
    renamed = {event[2]: i for i, event in enumerate(events) if event[0] == "replace"}
    committed = renamed[record]
    chunks = [name for name in renamed if "/c/" in name]
    assert len(chunks) == (6 if how == "append" else 4)
    for name in chunks:
        partial = events[renamed[name]][1]
        flushed = events.index(("fsync", partial))
        directory = os.path.dirname(name)
        named = [i for i, event in enumerate(events) if event == ("fsync", directory)]
        assert flushed < renamed[name] < max(i for i in named if i < committed)
    partial = events[committed][1]
    assert events.index(("fsync", partial)) < committed
    assert ("fsync", os.path.dirname(record)) in events[committed + 1 :]
    if how == "overwrite":  # the old record is taken back before its bytes change
        first = next(i for i, e in enumerate(events) if e[0] == "replace" and e[2] == record)
        assert first < min(renamed[name] for name in chunks)


READ = """
import os, sys
from pipeline.store import Store
Store.open(sys.argv[1]).split("id/train", verify=True)  # loads the modules that reading needs
os.setgid(65534)
os.setuid(65534)
store = Store.open(sys.argv[1])
split = store.split("id/train", verify=True)
print(sum(float(c["labels"].sum()) for b in split.blocks
          for c in split.read(b, frozenset({"labels", "features"}))))
try:
    open(os.path.join(sys.argv[1], "x"), "w")
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can drop its privileges")
def test_somebody_who_may_not_write_reads_everything_and_writes_nothing(path, sample):
    sample.filled(path)
    path.parent.chmod(0o555)
    for entry in [path, *path.rglob("*")]:
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    before = {entry: entry.stat().st_mtime_ns for entry in path.parent.rglob("*")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", READ, str(path)], capture_output=True, text=True,
        env={**os.environ, "HOME": "/nonexistent"},
    )  # fmt: skip
    path.parent.chmod(0o755)
    for entry in [path, *path.rglob("*")]:
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    assert done.stderr == ""
    assert done.stdout.split() == [str(float(np.sum(np.arange(20) % 5))), "refused"]
    assert {entry: entry.stat().st_mtime_ns for entry in path.parent.rglob("*")} == before
    assert Store.open(path).split("id/train").schema.rows == 20
