"""Rows in memory as files: the same rows, small to send, gone at the end."""

import pickle

import numpy as np
import pytest
import torch
from mounts import small_disk

from pipeline.errors import FeatfoldError, MissingInputError
from pipeline.store import ArraySplit
from pipeline.store.shared import shared_rows

ROWS = 1000
FIELDS = frozenset(("features", "labels", "mask"))


def arrays_of(kind, path):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((ROWS, 6, 16))
    made = {
        "float16": lambda: features.astype("f2"),
        "float32": lambda: features.astype("f4"),
        "float64": lambda: features,
        "big-endian": lambda: features.astype(">f4"),
        "strided": lambda: features[::-1, ::2],
        "bfloat16": lambda: torch.from_numpy(features).to(torch.bfloat16),
        "torch": lambda: torch.from_numpy(features),
        "mapped": lambda: mapped(path, features),
        "part of a mapped": lambda: mapped(path, np.tile(features, (2, 1, 1)))[ROWS:],
    }[kind]()
    labels = rng.integers(-1, 7, ROWS).astype("i4")
    return {"features": made, "labels": labels, "mask": rng.random((ROWS, made.shape[1])) < 0.5}


def mapped(path, array):
    np.save(path / "features.npy", array)
    return np.load(path / "features.npy", mmap_mode="r")


def rows_of(split, step_rows):
    """Return the bytes of every array, read block by block as a worker does."""
    parts = dict.fromkeys(FIELDS, b"")
    for block in split.blocks:
        part = pickle.loads(pickle.dumps(split.only(block)))
        for chunk in part.read(block, FIELDS, step_rows):
            for name in FIELDS:
                parts[name] += chunk[name].tobytes()
    return parts


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize(
    "kind",
    ["float16", "float32", "float64", "big-endian", "strided", "bfloat16", "torch", "mapped",
     "part of a mapped"],
)  # fmt: skip
def test_rows_are_the_same_and_small_to_send(tmp_path, kind, here):
    split = ArraySplit(arrays=arrays_of(kind, tmp_path), block_rows=130, chunk_rows=40)
    folder = tmp_path / "cache"
    with shared_rows(folder, here) as shared:
        found = shared.of(split)
        assert shared.of(split) is found
        for step_rows in (None, 1, 7):
            assert rows_of(found, step_rows) == rows_of(split, step_rows)
        assert len(pickle.dumps(found.only(split.blocks[1]))) < 3_000
        shared.of(found)  # nothing of it is written again
        written = [path for path in folder.rglob("*") if path.is_file()]
        assert len(written) == (2 if here and kind == "mapped" else 3)
    assert not list(folder.iterdir())
    with pytest.raises(MissingInputError, match="lacks rows 0-1"):
        rows_of(found, 1)


def test_rows_that_do_not_fit_the_disk_are_told_of_and_leave_nothing(tmp_path):
    split = ArraySplit(np.ones((1000, 100)))
    with small_disk(tmp_path / "disk", 65_536) as disk:
        with (
            pytest.raises(
                FeatfoldError, match=r"full: a copy of features of id/train .*800,000 .*threads"
            ),
            shared_rows(disk.path) as shared,
        ):
            shared.of(split)
        assert not list(disk.path.iterdir())
