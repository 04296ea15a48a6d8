"""A small split with every kind of array, and the arrays that go into it."""

import os
import tempfile
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from pipeline.chunk import ArraySpec
from pipeline.store import Store, reader

SPECS = {
    "features": ArraySpec((3, 4), "float32", "TD"),
    "logits": ArraySpec((5,), "float32", "K"),
    "labels": ArraySpec((), "int64"),
}
ROW_NBYTES = 3 * 4 * 4 + 5 * 4 + 8
CHUNK_ROWS = 4
BLOCK_ROWS = 8


class Sample:
    """What the tests of the store write and compare with."""

    specs = SPECS
    layout = MappingProxyType(
        {"chunk_nbytes": CHUNK_ROWS * 48, "block_nbytes": BLOCK_ROWS * ROW_NBYTES}
    )

    @staticmethod
    def rows(start, stop):
        index = np.arange(start, stop)
        return {
            "features": np.sin(index[:, None] * 12.0 + np.arange(12))
            .reshape(-1, 3, 4)
            .astype("f4"),
            "logits": np.cos(index[:, None] * 5.0 + np.arange(5)).astype("f4"),
            "labels": index % 5,
        }

    @classmethod
    def writer(cls, path: Path, name="id/train", rows=20):
        store = Store.open(path) if path.exists() else Store.create(path)
        return store.create_split(
            name, cls.specs, classes=5, rows=rows, exist_ok=True, **cls.layout
        )

    @classmethod
    def filled(cls, path: Path, name="id/train", rows=20):
        """Write a complete split and return its store."""
        writer = cls.writer(path, name, rows)
        for block in writer.blocks:
            writer.write(block.index, cls.rows(block.start, block.stop))
        return Store.open(path)

    @staticmethod
    def read(split, fields=("features", "logits", "labels"), step_rows=None):
        """Read a whole split, as arrays by name."""
        parts = {name: [] for name in fields}
        for block in split.blocks:
            for chunk in split.read(block, frozenset(fields), step_rows):
                for name, kept in parts.items():
                    kept.append(chunk[name].copy())
        return {name: np.concatenate(kept) for name, kept in parts.items()}


@pytest.fixture
def sample():
    reader.reset_reads()
    return Sample


@pytest.fixture
def path(tmp_path):
    """Where a store may be made: in memory if possible, as every fsync of a disk takes its time."""
    memory = Path("/dev/shm")
    folder = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=folder) as made:
        yield Path(made) / "store.zarr"
