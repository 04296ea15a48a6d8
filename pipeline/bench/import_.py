"""``featfold bench import``: an import of npy beside a plain copy of the same bytes.

Both read a file that was just written and end when their bytes are on the disk; each import is a
process of its own, whose clock starts when its libraries are loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.bench.measuring import Outcome, Say, alternate, medians, spread, table
from pipeline.errors import FeatfoldError
from pipeline.plan import human

COPIED_NBYTES = 16 * 2**20
POOL_NBYTES = 32 * 2**20
RAW, IMPORT = "raw copy", "import"

# What runs in the process of an import.
_ANSWER = """
import json, sys, time
from pipeline.importing import import_split
from pipeline.machine import peak_rss_nbytes
began = time.perf_counter()
import_split(sys.argv[1], "id/train", sys.argv[2:], classes=1)
print(json.dumps([time.perf_counter() - began, peak_rss_nbytes()]))
"""


def bench(
    rows: int, features: int, dtype: str, repeat: int, scratch: Path, say: Say = lambda text: None
) -> Outcome:
    """Copy and import rows (n, d) of noise with labels in turn; time both, and the import's peak.

    Raises :class:`FeatfoldError` where an import fails.
    """
    peaks: list[int] = []
    with tempfile.TemporaryDirectory(prefix="bench-import-", dir=scratch) as inside:
        folder = Path(inside)
        sources = [folder / "features.npy", folder / "labels.npy"]
        _make(sources[0], rows, features, np.dtype(dtype))
        np.save(sources[1], np.zeros(rows, np.int64))
        nbytes = sum(source.stat().st_size for source in sources)
        say(f"{rows:,} rows, {human(nbytes)}")
        sides = {
            RAW: lambda: _copy_seconds(sources, folder / "copied"),
            IMPORT: lambda: _import_seconds(sources, folder / "s.zarr", peaks),
        }
        taken = alternate(sides, repeat, say)
    shape = {"rows": rows, "features": features, "dtype": dtype}
    return _outcome(shape, nbytes, taken, max(peaks))


def _make(path: Path, rows: int, features: int, dtype: np.dtype[Any]) -> None:
    """Write an npy file of windows into a pool of noise, which does not compress."""
    row_nbytes = features * dtype.itemsize
    step = max(1, POOL_NBYTES // row_nbytes)
    pool = np.random.default_rng(0).standard_normal(2 * step * features).astype(dtype)
    head = {"descr": dtype.str, "fortran_order": False, "shape": (rows, features)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, head)
        for start in range(0, rows, step):
            first = (start // step * 997) % (step * features)
            file.write(pool[first : first + min(step, rows - start) * features].data)
        file.flush()
        os.fsync(file.fileno())


def _copy_seconds(sources: list[Path], target: Path) -> float:
    target.mkdir()
    buffer = memoryview(bytearray(COPIED_NBYTES))
    began = time.perf_counter()
    for source in sources:
        with (
            source.open("rb", buffering=0) as file,
            (target / source.name).open("wb", buffering=0) as copy,
        ):
            while got := file.readinto(buffer):
                left = buffer[:got]
                while len(left):
                    left = left[copy.write(left) :]
            os.fsync(copy.fileno())
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return seconds


def _import_seconds(sources: list[Path], store: Path, peaks: list[int]) -> float:
    command = [sys.executable, "-c", _ANSWER, str(store), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FeatfoldError(f"an import in a fresh process failed:\n{done.stderr.strip()}")
    seconds, peak_nbytes = json.loads(done.stdout)
    shutil.rmtree(store)
    peaks.append(peak_nbytes)
    return float(seconds)


def _outcome(
    shape: Mapping[str, Any], nbytes: int, taken: dict[str, list[float]], peak_nbytes: int
) -> Outcome:
    middle = medians(taken)
    share = middle[RAW] / middle[IMPORT]
    numbers = {
        "shape": dict(shape),
        "nbytes": nbytes,
        "seconds": taken,
        "median_seconds": middle,
        "share_of_raw_speed": share,
        "peak_nbytes": peak_nbytes,
    }
    shown = table("", "median s", "range s", "MB/s")
    for name, seconds in taken.items():
        shown.add_row(
            name, f"{middle[name]:.2f}", spread(seconds), f"{nbytes / middle[name] / 1e6:,.0f}"
        )
    shown.add_section()
    shown.add_row("of the speed of the copy", f"{share:.0%}", style="bold")
    shown.add_row("peak of the import", human(peak_nbytes), style="bold")
    title = f"{shape['rows']:,} x {shape['features']:,} {shape['dtype']}, {human(nbytes)} of npy"
    notes = [
        "the copy reads 16 MiB at a time and ends with one fsync for each file; an import flushes "
        "every chunk, and has a checksum for each and for every block"
    ]
    return Outcome("import", numbers, {title: shown}, notes)
