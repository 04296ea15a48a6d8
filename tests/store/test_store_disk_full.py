"""A disk that is full, for real, at any moment of writing a store: one clear error, nothing torn.

With room again, the store is completed to the same bytes and no committed block is written anew.
"""

import numpy as np
import pytest
from mounts import small_disk

from pipeline.chunk import ArraySpec
from pipeline.content import Const
from pipeline.errors import FeatfoldError
from pipeline.store import Store, artifacts, manifest

ROWS, WIDTH, CLASSES = 60, 512, 100
SPECS = {"features": ArraySpec((WIDTH,), "float32", "D"), "labels": ArraySpec((), "int64")}
KB = 1024
ENOUGH_NBYTES = 4_000 * KB
FULL = (
    r"^the disk of .* is full: .* could not be written \(.*[\d,]+ are free\); free space, or move"
)


def rows_of(block):
    rng = np.random.default_rng(block.index)
    features = rng.standard_normal((block.rows, WIDTH)).astype("f4")
    return {"features": features, "labels": np.arange(block.start, block.stop)}


def write(path):
    """Write what is missing; return the indexes of those blocks."""
    store = Store.open(path) if (path / "zarr.json").exists() else Store.create(path)
    writer = store.create_split(
        "id/train", SPECS, classes=CLASSES, rows=ROWS, chunk_nbytes=5 * WIDTH * 4,
        block_nbytes=10 * (WIDTH * 4 + 8), exist_ok=True,
    )  # fmt: skip
    missing = writer.missing()
    for block in missing:
        writer.write(block.index, rows_of(block))
    return [block.index for block in missing]


def committed(path):
    split = path / "id/train"
    return set(manifest.committed(manifest.read_records(split))) if split.exists() else set()


def contents(disk):
    """Return what is on the disk, without what records say of their writer."""
    files = (p for p in disk.path.rglob("*") if p.is_file())
    return {
        p.relative_to(disk.path).as_posix(): b"" if "manifest" in p.parts else p.read_bytes()
        for p in files
    }


# From no room for the store itself, by way of groups, arrays, chunks and records, to the last one.
@pytest.mark.parametrize("size_nbytes", [n * KB for n in (*range(4, 72, 4), 100, 128, 164)])
def test_a_full_disk_is_one_clear_error_and_the_write_goes_on_with_room(tmp_path, size_nbytes):
    with small_disk(tmp_path / "disk", size_nbytes) as disk:
        path = disk.path / "store.zarr"
        with pytest.raises(FeatfoldError, match=FULL) as caught:
            write(path)
        if "id/train, block" in str(caught.value):
            assert "(20,560 bytes are needed, " in str(caught.value)
        assert not [p for p in contents(disk) if ".partial" in p or p.startswith(".")]
        kept = committed(path)
        if kept:
            split = Store.open(path).split("id/train", allow_partial=True, verify=True)
            assert {block.index for block in split.blocks} == kept
        disk.resize(ENOUGH_NBYTES)
        assert set(write(path)) == set(range(ROWS // 10)) - kept
        resumed = contents(disk)
    with small_disk(tmp_path / "other", ENOUGH_NBYTES) as disk:
        write(disk.path / "store.zarr")
        assert resumed == contents(disk)


def test_appended_rows_that_do_not_fit_leave_the_others_as_they_were(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"features": rng.random((40, WIDTH), "f4"), "labels": np.arange(40)}
    with small_disk(tmp_path / "disk", ENOUGH_NBYTES) as disk:
        store = Store.create(disk.path / "store.zarr")
        writer = store.create_split("id/train", SPECS, classes=CLASSES, chunk_nbytes=16 * KB)
        writer.append(rows)
        disk.fill(leaving_nbytes=24 * KB)
        with pytest.raises(FeatfoldError, match=r"40 rows to append .*\(82,240 bytes are needed"):
            writer.append(rows)
        assert store.split("id/train", verify=True).schema.rows == 40
        disk.resize(ENOUGH_NBYTES)
        writer.append(rows)
        assert store.split("id/train", verify=True).schema.rows == 80


def test_an_artifact_that_does_not_fit_is_not_there_at_all(tmp_path):
    value = {"mean": Const(np.random.default_rng(0).random(30_000))}
    with small_disk(tmp_path / "disk", 64 * KB) as disk:
        target = disk.path / "fitted"
        with pytest.raises(FeatfoldError, match=r"is full: fitted .*\(240,\d+ bytes are needed"):
            artifacts.save(value, target, {})
        assert not list(disk.path.iterdir())
        disk.resize(ENOUGH_NBYTES)
        artifacts.save(value, target, {})
        assert artifacts.load(target)[0] == value
