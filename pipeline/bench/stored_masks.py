"""Masks in zarr arrays that worker processes reduce, beside a raw read of the same files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from pipeline import metrics
from pipeline.bench import floor
from pipeline.bench.measuring import Processes, Say, alternate, medians, spread, table
from pipeline.chunk import ArraySpec
from pipeline.cluster import open_cluster, settle
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import FeatfoldError
from pipeline.procedure import TRAIN
from pipeline.store import layout, open_predictions, reads

if TYPE_CHECKING:
    from pipeline.bench.masks import Shape

CHUNK_NBYTES = 8 * 2**20
READ, PASS, ALONE = "raw read", "pass", "pass, one process"
SIDES = ("predictions", "labels")
READ_TWICE = 1.2
"""Times their bytes above which files were not read once: heads are read as well."""
LIBRARIES_NBYTES = 8 * 2**20
"""Bytes of code that workers load in a pass, where they took no part in the one before."""


@dataclass(frozen=True)
class Stored:
    """uint8 masks of both sides, in zarr arrays of a folder that is there for a while."""

    directory: Path
    shape: Shape
    images: int
    workers: int

    @property
    def nbytes(self) -> int:
        """Bytes of both sides, which are as many as their pixels."""
        return 2 * self.images * self.shape.side**2

    def write(self, made: Callable[[int, int], Mapping[str, Any]], say: Say) -> None:
        """Write masks, a stored chunk of them at a time, that do not compress."""
        rows = max(1, CHUNK_NBYTES // self.shape.side**2)
        spec = ArraySpec((self.shape.side,) * 2, "uint8")
        noise = np.random.default_rng(0).integers(0, 255, (1, *spec.shape), np.uint8)
        opened = {}
        for side in SIDES:  # the sample decides on compression: reads of raw chunks are the floor
            layout.create_array(self.directory / side, spec, self.images, rows, noise)
            opened[side] = layout.open_array(self.directory / side, "r+")
        for start in range(0, self.images, rows):
            stop = min(start + rows, self.images)
            for side, masks in made(stop - start, start).items():
                opened[side][start:stop] = masks
        say(f"{self.nbytes / 1e9:.2f} GB of masks written")

    def measured(self, repeat: int, say: Say) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """Time passes over the arrays and raw reads of their files in turn.

        Raises where the integers differ from those of one process, or a chunk was not read once.
        """
        paths = [self.directory / side for side in SIDES]
        split = open_predictions(*paths, classes=self.shape.classes)
        jobs = {"pairs": Job(metrics.ConfusionMatrix(), {TRAIN: (split,)})}
        files = [path for side in paths for path in sorted(side.rglob("c/**/*")) if path.is_file()]
        trace, found = Trace(), []
        with (
            Processes(self.workers) as processes,
            open_cluster(settle("local", self.workers), self.directory / "cache") as running,
        ):

            def one_pass() -> float:
                before = len(trace.seconds)
                found.append(run_jobs(jobs, running.execute, trace=trace)["pairs"].counts)
                return sum(trace.seconds[before:])

            floor.read_seconds(processes, files)  # warm, as after writing
            one_pass()
            running.client.run(reads.reset_reads)
            trace.read_nbytes, before_nbytes = 0, kernel_nbytes(running.client)
            taken = alternate(
                {READ: lambda: floor.read_seconds(processes, files), PASS: one_pass}, repeat, say
            )
            chunks = read_by(running.client)
            kernel = kernel_nbytes(running.client) - before_nbytes
        say("the same in one process")
        alone_trace = Trace()
        alone = run_jobs(jobs, trace=alone_trace)["pairs"].counts
        self._check(found, alone, chunks, len(files), repeat)
        stored_nbytes = sum(path.stat().st_size for path in files)
        most_nbytes = READ_TWICE * stored_nbytes + LIBRARIES_NBYTES
        if kernel and not stored_nbytes <= kernel / repeat <= most_nbytes:
            raise FeatfoldError(
                f"masks in zarr: the kernel counts {kernel // repeat:,} bytes a pass, of files of "
                f"{stored_nbytes:,}"
            )
        middle = {**medians(taken), ALONE: sum(alone_trace.seconds)}
        numbers: dict[str, Any] = {
            "images": self.images,
            "pixels": self.images * self.shape.side**2,
            "nbytes": self.nbytes,
            "files": len(files),
            "workers": self.workers,
            "seconds": taken,
            "median_seconds": middle,
            "ratio": middle[PASS] / middle[READ],
            "pass_bytes_per_second": self.nbytes / middle[PASS],
            "read_nbytes": trace.read_nbytes // repeat,
            "kernel_read_nbytes": kernel // repeat,
            "openings_of_each_chunk": 1,
            "integers_equal_one_process": True,
        }
        shown = table("", "median s", "range s", "GB/s")
        for name, seconds in {**taken, ALONE: alone_trace.seconds}.items():
            rate = f"{self.nbytes / middle[name] / 1e9:.2f}"
            shown.add_row(name, f"{middle[name]:.2f}", spread(seconds), rate)
        shown.add_row("pass / raw read", f"{numbers['ratio']:.2f}", style="bold")
        title = (
            f"{numbers['pixels']:,} pixels of both sides, uint8, in {len(files)} chunks of zarr, "
            f"{self.workers} processes"
        )
        notes = [
            "integers of the pass equal those of one process; every chunk was opened once a pass, "
            f"and the kernel counts {kernel / repeat / stored_nbytes:.3f} times the bytes of files"
        ]
        return numbers, {title: shown}, notes

    def _check(
        self, found: list[Any], alone: Any, chunks: Counter[Any], files: int, repeat: int
    ) -> None:
        pixels = self.images * self.shape.side**2
        if int(alone.sum()) != pixels or any(not np.array_equal(x, alone) for x in found):
            raise FeatfoldError("masks in zarr: integers of processes differ from those of one")
        if len(chunks) != files or set(chunks.values()) != {repeat}:
            raise FeatfoldError(
                f"masks in zarr: {len(chunks)} of {files} chunks were opened, "
                f"{min(chunks.values(), default=0)} to {max(chunks.values(), default=0)} times in "
                f"{repeat} passes"
            )


def kernel_nbytes(client: Any) -> int:
    """Return the bytes that the workers have read so far, as the kernel counts them."""
    return sum(client.run(_read_chars).values())


def _read_chars() -> int:
    counters = getattr(psutil.Process(), "io_counters", None)
    return int(getattr(counters(), "read_chars", 0)) if counters else 0  # Linux alone knows


def read_by(client: Any) -> Counter[Any]:
    """Return how often the workers opened each chunk, all together."""
    total: Counter[Any] = Counter()
    for each in client.run(_reads).values():
        total.update(each)
    return total


def _reads() -> dict[Any, int]:
    return dict(reads.READS)
