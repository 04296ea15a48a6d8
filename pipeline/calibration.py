"""What this machine reads, sums and multiplies in a second: plans tell hours from it."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from threadpoolctl import threadpool_limits

from pipeline import files

FILE = "calibration.json"
FEATURES = 1024
"""Width d of the rows that are multiplied."""
IMAGES, TOKENS = 80, 49
ROWS = IMAGES * TOKENS
"""Rows of a product: 16 MB of float32."""
READ_NBYTES = 128 * 2**20
BUFFER_NBYTES = 16 * 2**20
PRODUCT_SECONDS = 0.3
SUM_SECONDS = 0.1


@dataclass(frozen=True)
class Calibration:
    """Rates of a machine."""

    read_bytes_per_second: float
    """From disk, not from memory: all workers together."""
    float32_flops: float
    """Of one BLAS thread forming X'X of float32 rows (n, d): counted as 2 n d^2 per product."""
    float64_flops: float
    """The same of float64 rows."""
    sum_bytes_per_second: float
    """Of one thread adding up the float32 tokens (n, t, d) of images in float64."""
    write_bytes_per_second: float
    """To disk, flushed: all workers together."""

    @classmethod
    def load(cls, directory: Path) -> Calibration | None:
        """Return what :meth:`save` left in ``directory``; None if there is nothing usable."""
        try:
            known = json.loads((directory / FILE).read_text(encoding="utf-8"))
            made = cls(**{name: float(known[name]) for name in cls.__dataclass_fields__})
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return made if all(0 < rate < float("inf") for rate in asdict(made).values()) else None

    def save(self, directory: Path) -> Path:
        """Write the rates to ``calibration.json`` in ``directory``, and return its path."""
        path = directory / FILE
        files.write_whole(path, self._write)
        return path

    def _write(self, file: BinaryIO) -> None:
        file.write(json.dumps(asdict(self), indent=1).encode() + b"\n")


def measure(directory: Path) -> Calibration:
    """Measure the rates in about two seconds, with a file of 128 MiB in ``directory``."""
    with threadpool_limits(1):
        read_rate, write_rate = _disk_rates(directory)
        flops = (_flops(np.float32), _flops(np.float64))
        return Calibration(read_rate, *flops, _sum_rate(), write_rate)


def drop_from_memory(path: Path) -> None:
    """Ask the kernel to forget the pages of a file, where it can: the next read is from disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)  # pages that are not written yet would stay
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def read_through(paths: list[Path], buffer: memoryview) -> int:
    """Read files into a buffer, over and over the same; return the bytes."""
    nbytes = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                nbytes += count
    return nbytes


def product_seconds(rows: int, features: int, dtype: Any, products: int) -> float:
    """Return the time of ``products`` times S += X'X, X (rows, features) of ``dtype``, S float64.

    numpy forms X'X as a symmetric product: half the multiplications of a general one.
    """
    x = np.random.default_rng(0).standard_normal((rows, features)).astype(dtype)
    total = np.zeros((features, features))
    total += x.T @ x  # the first product starts threads and faults pages in
    began = time.perf_counter()
    for _ in range(products):
        total += x.T @ x
    return time.perf_counter() - began


def _disk_rates(directory: Path) -> tuple[float, float]:
    """Return the bytes per second of reading a file that is not in memory, and of writing it."""
    directory.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".calibration-", dir=directory)
    path = Path(name)
    try:
        noise = np.random.default_rng(0).bytes(BUFFER_NBYTES)
        began = time.perf_counter()
        with os.fdopen(handle, "wb") as file:
            for _ in range(READ_NBYTES // BUFFER_NBYTES):
                file.write(noise)
            file.flush()
            os.fsync(file.fileno())
        writing = time.perf_counter() - began
        drop_from_memory(path)
        buffer = memoryview(bytearray(BUFFER_NBYTES))
        began = time.perf_counter()
        nbytes = read_through([path], buffer)
        return nbytes / (time.perf_counter() - began), nbytes / writing
    finally:
        with suppress(OSError):
            path.unlink()


def _flops(dtype: Any) -> float:
    products, seconds = 1, 0.0
    while seconds < PRODUCT_SECONDS / 2:
        products *= 2
        seconds = product_seconds(ROWS, FEATURES, dtype, products)
    return 2.0 * ROWS * FEATURES**2 * products / seconds


def _sum_rate() -> float:
    x = np.random.default_rng(0).standard_normal((IMAGES, TOKENS, FEATURES), np.float32)
    sums, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < SUM_SECONDS or not sums:
        np.sum(x, axis=1, dtype=np.float64)
        sums += 1
    return x.nbytes * sums / seconds
