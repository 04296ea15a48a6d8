"""Reading takes no more memory than it says, measured in a process of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.chunk import ArraySpec
from pipeline.store import Store

MEASURE = """
import sys
from pipeline.store import Store, raw
fields, steps = frozenset({"x"}), [int(word) for word in sys.argv[3:]]
if sys.argv[2] == "zarr":
    raw.checksum_nbytes = lambda *_: None
def status(key):
    text = open("/proc/self/status").read()
    return 1024 * int(text.split(key + ":")[1].split()[0])
small = Store.open(sys.argv[1]).split("id/val")
for block in small.blocks:
    for chunk in small.read(block, fields):
        del chunk
split = Store.open(sys.argv[1]).split("id/train")
for step in steps:
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmRSS")
    for block in split.blocks:
        for chunk in split.read(block, fields, step):
            del chunk
    print(status("VmHWM") - before, split.reading_nbytes(fields, step))
"""
CHUNK = 4 * 2**20
SLACK = 2**20
"""Stacks of threads, and pages that the interpreter takes meanwhile."""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs the kernel's peak")
@pytest.mark.parametrize("how", ["raw", "zarr"])
def test_the_peak_of_reading_is_within_what_it_says(tmp_path, how):
    store = Store.create(tmp_path / "s.zarr")
    x = np.random.default_rng(0).standard_normal((20 * 64, CHUNK // 256)).astype("f4")
    for name, rows in (("id/val", 70), ("id/train", len(x))):
        writer = store.create_split(
            name, {"x": ArraySpec(x.shape[1:], "float32")}, classes=0, rows=rows,
            chunk_nbytes=CHUNK, block_nbytes=10 * CHUNK,
        )  # fmt: skip
        for block in writer.blocks:
            writer.write(block.index, {"x": x[block.start : block.stop]})
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(store.path), how, "5", "64"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    small, whole = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    for measured, projected in (small, whole):
        assert measured <= projected + SLACK
    assert small[1] < whole[1]
    if how == "raw":
        assert whole[1] == 2 * CHUNK
