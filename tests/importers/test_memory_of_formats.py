"""Rows of a large file are read in the memory of a few: measured in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import zarr

D, STEP = 1024, 512
SMALL, LARGE = 8 * STEP, 32 * STEP  # 16 MiB and 64 MiB
GROWTH_NBYTES = 24 * 2**20
"""Rows of one read, chunks on their way, and pages that stay mapped for a while."""

MEASURE = """
import sys
import numpy as np
from pathlib import Path
from pipeline.store.importers import format_of
small, large, step = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def status(key):
    text = open("/proc/self/status").read()
    return 1024 * int(text.split(key + ":")[1].split()[0])
def read(path):
    (rows,) = format_of(path).arrays(path).values()
    out, total = np.empty((step, rows.shape[1]), rows.dtype), 0.0
    for start in range(0, rows.shape[0], step):
        rows.read_into(out, start)
        total += float(out[:, 0].sum())
    rows.close()
    return total
read(small)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
total = read(large)
print(status("VmHWM") - before, total)
"""


def column(x):
    return pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), D)})


def write_hdf5(path, x):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, chunks=(100, 256), compression="lzf")


def write_stream(path, x):
    table = column(x)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=len(x))  # one batch


def write_dataset(path, x):
    import datasets

    datasets.Dataset(column(x)).save_to_disk(path, num_shards=3)


WRITERS = {
    "hdf5": (".h5", write_hdf5),
    "torch": (".pt", lambda path, x: torch.save(torch.from_numpy(x), path)),
    "zarr": ("", lambda path, x: zarr.create_array(path, data=x, chunks=(100, 256))),
    "parquet": (
        ".parquet",  # one row group
        lambda path, x: pa.parquet.write_table(column(x), path, use_dictionary=False),
    ),
    "arrow": (".arrow", write_stream),
    "huggingface": ("", write_dataset),
}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs the kernel's peak")
@pytest.mark.parametrize("kind", WRITERS)
def test_memory_does_not_depend_on_the_rows(tmp_path, kind):
    suffix, write = WRITERS[kind]
    x = np.random.default_rng(0).standard_normal((LARGE, D), dtype="f4")
    paths = [tmp_path / f"{name}{suffix}" for name in ("small", "large")]
    for path, rows in zip(paths, (SMALL, LARGE), strict=True):
        write(path, x[:rows])
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, paths), str(STEP)],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    grown, total = done.stdout.split()
    assert float(total) == pytest.approx(float(x[:, 0].sum(dtype="f8")), abs=0.1)
    assert int(grown) < GROWTH_NBYTES < x.nbytes // 2
