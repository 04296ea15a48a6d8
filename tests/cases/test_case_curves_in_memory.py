"""Case A02: curve metrics that keep every prediction, or blow up in their "constant memory" mode.

References: Lightning-AI/torchmetrics#95, #625, #1722, #1492, #3299, #1088.
"""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from pipeline.chunk import ArraySpec
from pipeline.store import Store

SCRIPT = Path(__file__).with_name("rank_in_fresh_process.py")
SMALL, LARGE = 1_600_000, 16_000_000
BLOCK_ROWS = CHUNK_ROWS = SMALL // 40
BINS = 16_384
SPECS = {"scores": ArraySpec((), "float32"), "positive": ArraySpec((), "bool")}
BOUND = 2 / BINS
"""The bounds are as far apart as one bin has pairs: about 1 / bins of them."""
SHARE = 0.05
"""Ten times the rows, in ten times the blocks, may take this much more memory."""


def rows_of(start, stop, rows):
    index = np.arange(start, stop)
    fourth = index % 4 == 0
    return {"scores": index.astype("f4"), "positive": np.where(2 * index < rows, fourth, ~fourth)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    made = {}
    for rows in (SMALL, LARGE):
        path = tmp_path_factory.mktemp("curves") / "scores.zarr"
        writer = Store.create(path).create_split(
            "id/test", SPECS, classes=0, rows=rows, block_nbytes=BLOCK_ROWS * 5,
            chunk_nbytes=CHUNK_ROWS * 4,
        )  # fmt: skip
        assert len(writer.blocks) == rows // BLOCK_ROWS
        for block in writer.blocks:
            writer.write(block.index, rows_of(block.start, block.stop, rows))
        made[rows] = path
    return made


def ranked(path, bins):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(path), str(bins)],
        capture_output=True, text=True, check=False, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    value, lower, upper, exact, peak_nbytes = done.stdout.split()
    return float(value), float(lower), float(upper), exact == "True", int(peak_nbytes)


@pytest.mark.parametrize("rows", [SMALL, LARGE])
def test_the_value_is_three_quarters(rows):
    positive = rows_of(0, rows, rows)["positive"]
    below = int(np.cumsum(~positive)[positive].sum())
    assert Fraction(below, int(positive.sum()) * int((~positive).sum())) == Fraction(3, 4)


@pytest.mark.slow
def test_exact_ranks_give_it_exactly(stores):
    assert ranked(stores[SMALL], 0)[:4] == (0.75, 0.75, 0.75, True)


@pytest.mark.slow
def test_bins_give_it_within_bounds_in_memory_that_does_not_grow(stores):
    peaks = []
    for rows in (SMALL, LARGE):
        value, lower, upper, exact, peak_nbytes = ranked(stores[rows], BINS)
        print(f"{rows} rows: {lower} <= {value} <= {upper}, peak {peak_nbytes:,} bytes")
        assert not exact
        assert lower <= 0.75 <= upper
        assert upper - lower < BOUND
        assert abs(value - 0.75) < BOUND / 2
        peaks.append(peak_nbytes)
    assert peaks[1] < (1 + SHARE) * peaks[0]
