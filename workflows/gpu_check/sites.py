"""The device that is checked, the sizes that suit it, and what it is asked for in every part."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pipeline.arrays import Place
from pipeline.engine import Job, Threads, run_jobs
from pipeline.inputs import as_split, choose_head, detectors_by_id, fit_jobs


class CannotShow(Exception):  # noqa: N818 - no error: a part that is skipped
    """A part that cannot be shown here, and why."""


@dataclass(frozen=True)
class Site:
    """Where the parts run: a GPU, or the CPU that stands in for one in a rehearsal."""

    place: Place
    torch_device: str
    out: Path
    rehearsal: bool

    def size(self, full: int, small: int) -> int:
        """Return how much of something to take."""
        return small if self.rehearsal else full

    def wait(self) -> None:
        """Wait until the device has done what it was given."""
        import torch

        if self.torch_device != "cpu":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], repeat: int = 3) -> float:
        """Return the median time of a call, the first one apart."""
        call()
        found = []
        for _ in range(repeat):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            found.append(time.perf_counter() - start)
        return median(found)


def fits(names: Any, data: Any, place: Place) -> Mapping[str, Any]:
    """Return what detectors fitted at a place come to, by id."""
    return run_jobs(jobs_of(names, data), Threads(1, place=place))


def jobs_of(names: Any, data: Any) -> dict[str, Job]:
    """Return the jobs of a fit."""
    split = as_split(data)
    return fit_jobs(detectors_by_id(names), split, choose_head(None, split.schema, split))
