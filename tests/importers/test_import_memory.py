"""The peak of an import does not grow with its rows, whatever is done to them: fresh processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MEASURE = """
import sys
from pipeline.importing import import_split
from pipeline.machine import peak_rss_nbytes
store, rows, labels, layout, dtype = sys.argv[1:]
import_split(store, "id/train", [rows, labels], arrays={"features": "x"}, labels="y", classes=9,
             layouts={"features": layout}, dtype=dtype or None, chunk_nbytes=2**20,
             block_nbytes=2**22)
print(peak_rss_nbytes())
"""
SHAPE = (16, 8, 8)
FEW, MANY = 2048, 8 * 2048
ALLOWED_NBYTES = 12 * 2**20
"""What the peaks may differ by, with 8 and with 64 MiB of rows."""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the kernel's peak")
@pytest.mark.parametrize(
    ("kind", "layout", "dtype"),
    [("noise", "NCHW", ""), ("noise", "NHWC", "float16"), ("deflated", "NCHW", "")],
)
def test_the_peak_of_an_import_does_not_grow_with_its_rows(folder, kind, layout, dtype):
    rng = np.random.default_rng(0)
    peaks = []
    for count in (FEW, MANY):
        if kind == "noise":
            rows = rng.standard_normal((count, *SHAPE)).astype("f4")
            np.savez(folder / "rows.npz", x=rows)
        else:
            rows = np.broadcast_to(rng.integers(0, 9, (1, *SHAPE)).astype("f4"), (count, *SHAPE))
            np.savez_compressed(folder / "rows.npz", x=rows)
        np.save(folder / "y.npy", np.zeros(count, "i4"))
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(folder / f"{count}.zarr"),
             str(folder / "rows.npz"), str(folder / "y.npy"), layout, dtype],
            capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < ALLOWED_NBYTES
