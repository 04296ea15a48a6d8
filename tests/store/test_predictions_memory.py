"""Memory of metrics of masks in files does not grow with their number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

SCRIPT = """
import json, sys
import pipeline as ff
from pipeline.machine import peak_rss_nbytes, reset_peak, rss_nbytes

def measure(folder):
    each = [f"{folder}/{side}" for side in ("predictions", "labels")]
    intervals = ff.metrics.ImageIntervals(ignore=255, replicates=50)
    metrics = {"iou": "iou", "image_iou": "image_iou", "intervals": intervals}
    found = ff.measure(metrics, *each, classes=21, ignore=255, cluster="threads", workers=1)
    return {key: repr(number) for key, number in found.items()}

measure(sys.argv[1])
before = rss_nbytes()
reset_peak()
numbers = measure(sys.argv[2])
print(json.dumps({"peak": peak_rss_nbytes() - before, "numbers": numbers}))
"""


def made(folder: Path, images: int) -> Path:
    random = np.random.default_rng(0)
    for side in ("predictions", "labels"):
        array = zarr.create_array(
            folder / side, shape=(images, 224, 224), chunks=(25, 224, 224), dtype="u1"
        )
        for start in range(0, images, 25):
            array[start : start + 25] = random.integers(0, 21, (25, 224, 224))
    return folder


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_peak_is_that_of_an_eighth_of_the_masks(tmp_path: Path) -> None:
    few, many = made(tmp_path / "few", 250), made(tmp_path / "many", 2000)

    def run(folder: Path) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(few), str(folder)],
            capture_output=True, text=True, check=True, timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return json.loads(done.stdout)

    peaks = {folder: min(run(folder)["peak"] for _ in range(2)) for folder in (few, many)}
    assert peaks[many] <= peaks[few] + 12 * 2**20  # of 200 MB
