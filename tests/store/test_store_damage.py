"""Bytes that went missing or changed are found and named, and reading never writes."""

import json
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from pipeline.chunk import ArraySpec
from pipeline.errors import CorruptError, DataError
from pipeline.store import Store


def truncate(file):
    file.write_bytes(file.read_bytes()[:-3])


def empty(file):
    file.write_bytes(b"")


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def remove(file):
    file.unlink()


@pytest.mark.parametrize("damage", [truncate, empty, flip, remove])
@pytest.mark.parametrize(
    ("name", "file", "rows"), [("features", "c/2/0/0", "8-12"), ("labels", "c/1", "8-16")]
)
def test_a_damaged_chunk_is_found_and_named(path, sample, damage, name, file, rows):
    store = sample.filled(path)
    split = store.split("id/train")
    damage(path / "id/train" / name / file)
    expected = f"split id/train, array {name}, rows {rows}"
    with pytest.raises(CorruptError, match=expected):
        sample.read(split)
    with pytest.raises(CorruptError, match=expected):
        store.split("id/train", verify=True)
    store.writer("id/train").write(1, sample.rows(8, 16), overwrite=True)
    assert store.split("id/train", verify=True).schema.rows == 20


def test_a_chunk_that_is_valid_but_not_the_one_written_is_found(path, sample):
    store = sample.filled(path)
    chunks = path / "id/train/features/c"
    (chunks / "2/0/0").write_bytes((chunks / "1/0/0").read_bytes())
    with pytest.raises(CorruptError, match="array features, rows 8-16: checksum"):
        store.split("id/train", verify=True)


@pytest.mark.parametrize("damage", [truncate, empty, remove])
def test_damaged_metadata_of_an_array(path, sample, damage):
    split = sample.filled(path).split("id/train")
    damage(path / "id/train/labels/zarr.json")
    with pytest.raises(CorruptError, match="array labels is committed but cannot be opened"):
        sample.read(split)


@pytest.mark.parametrize("damage", [truncate, empty])
@pytest.mark.parametrize(
    "file", ["zarr.json", "id/train/zarr.json", "id/train/manifest/block-00001/zarr.json"]
)
def test_damaged_metadata_of_groups_and_records(path, sample, damage, file):
    sample.filled(path)
    damage(path / file)
    with pytest.raises(CorruptError, match=re.escape(f"{path / file} is damaged")):
        Store.open(path).split("id/train")


def test_a_record_or_a_declaration_that_lacks_entries(path, sample):
    store = sample.filled(path)
    for file in ("id/train/manifest/block-00001/zarr.json", "id/train/zarr.json"):
        group = json.loads((path / file).read_text())
        attributes = group["attributes"].get("featfold", group["attributes"])
        del attributes["arrays"]
        (path / file).write_text(json.dumps(group))
        with pytest.raises(CorruptError, match="is damaged"):
            store.split("id/train")


def test_a_record_removed_by_hand_makes_its_rows_missing(path, sample):
    store = sample.filled(path)
    (path / "id/train/manifest/block-00001/zarr.json").unlink()
    with pytest.raises(DataError, match="rows 8-16"):
        store.split("id/train")


WATCH = """
import os, sys
opened, changed = [], []
def watch(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        (changed if writes else opened).append(os.fsdecode(args[0]))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.link", "os.truncate", "shutil.rmtree"):
        changed.append(str(args[0]))
sys.addaudithook(watch)
from pipeline.store import Store
split = Store.open(sys.argv[1]).split("id/train")
for block in split.blocks:
    for chunk in split.read(block, frozenset({"labels", "logits"})):
        chunk["labels"].sum()
inside = [path for path in opened if path.startswith(sys.argv[1])]
print(sum("/logits/c/" in path for path in inside), sum("/features/" in path for path in inside),
      sum(path.startswith(sys.argv[1].rsplit("/", 1)[0]) for path in changed))
"""


def test_reading_opens_no_other_array_and_writes_nothing(path, sample):
    sample.filled(path)
    for entry in [*path.rglob("*"), path]:
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    before = {entry: entry.stat().st_mtime_ns for entry in [path.parent, *path.rglob("*")]}
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(path)], capture_output=True, text=True, check=True
    )
    logits, features, changed = (int(word) for word in done.stdout.split())
    for entry in [path, *path.rglob("*")]:
        entry.chmod(0o755 if entry.is_dir() else 0o644)
    assert (logits, features, changed) == (3, 0, 0)
    assert before.keys() == {path.parent, *path.rglob("*")}
    assert all(entry.stat().st_mtime_ns == time for entry, time in before.items())


def test_a_store_without_write_permission_refuses_to_be_written_in_words(path, sample):
    sample.filled(path)
    lock = path.with_name(f".{path.name}.id+train.lock")
    lock.mkdir()  # stands in for a place where no file can be made, for any user
    with pytest.raises(Exception, match="cannot be written to"):
        Store.open(path).writer("id/train").append(sample.rows(20, 21))
    assert Store.open(path).split("id/train").schema.rows == 20


def test_two_chunks_that_changed_places_are_noticed(tmp_path):
    """Each passes its own checksum; that of the block does not."""
    store = Store.create(tmp_path / "swapped.zarr")
    rows = np.arange(64, dtype=np.float32).reshape(16, 4)
    writer = store.create_split(
        "id/train", {"features": ArraySpec((4,), "float32", "D")}, classes=0, rows=16,
        chunk_nbytes=64,
    )  # fmt: skip
    writer.write(0, {"features": rows})
    folder = store.path / "id/train/features/c"
    first, second = (folder / name / "0" for name in ("0", "1"))
    swapped = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(swapped)
    split = store.split("id/train")
    with pytest.raises(CorruptError, match="array features, rows 0-16: checksum"):
        list(split.read(split.blocks[0], frozenset({"features"})))


@pytest.mark.parametrize("overwrite", [False, True])
def test_lost_metadata_of_an_array_keep_its_committed_chunks(path, sample, overwrite):
    store = sample.filled(path)
    writer = store.writer("id/train")
    write = partial(writer.append, sample.rows(20, 24))
    if overwrite:
        write = partial(writer.write, 1, sample.rows(8, 16), overwrite=True)
    lost = path / "id/train/features/zarr.json"
    lost.unlink()
    chunks = sorted((path / "id/train/features/c").rglob("*"))
    with pytest.raises(CorruptError, match=f"{re.escape(str(lost))} is lost"):
        write()
    assert sorted((path / "id/train/features/c").rglob("*")) == chunks
