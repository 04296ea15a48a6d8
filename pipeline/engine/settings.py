"""What executors share: the size of the window, and how a pass is cut to a memory allowance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pipeline.chunk import Block
from pipeline.engine.schedule import Schedule
from pipeline.errors import DamagedPartialError, PartDoneError
from pipeline.partials import Partials
from pipeline.plan import WINDOW, Pass, Work

BLAS_THREADS = 1
"""Threads of linear algebra, everywhere: its results differ in bits between thread counts."""
PARTIALS, CONSTANTS = "partials", "constants"
"""Directories of a cache."""
MENDS_LIMIT = 64
T = TypeVar("T")
Finished = Callable[[Pass, Work, Block], None]
"""Told of every block that was folded."""
Say = Callable[[str], None]
"""Told what people should know of a run."""


@dataclass(frozen=True)
class Settings:
    """How passes are run; none of it changes a bit of any result."""

    shrink: int = 0
    """Chunks are read in 2^shrink steps, to hold less at a time."""
    thin: bool = False
    """Drop partials once their merge stands for them."""
    part: tuple[int, int] | None = None
    """(i, n): fold the i-th of n shares of the blocks only, and merge nothing."""
    device_nbytes: int | None = None
    """What a worker may hold on its device, where it has one."""

    def schedule(self, work: Work, cache: Path) -> Schedule:
        """Return what is left to do of a work."""
        return Schedule(work, Partials(cache / PARTIALS), self.thin)

    def schedules(self, work: Work, cache: Path) -> Iterator[Schedule]:
        """Yield what to do one after the other: the own share of the folds, then the rest.

        Raises :class:`PartDoneError` where blocks of other parts are not folded yet.
        """
        whole = self.schedule(work, cache)
        if self.part is not None:
            yield replace(whole, part=self.part)
            whole = self.schedule(work, cache)
            if left := sum(len(step.blocks) for step in whole.folds):
                raise PartDoneError(
                    f"part {self.part[0]}/{self.part[1]} is done; {left} blocks of "
                    f"{work.split.name} are left to the other parts, run again when they are done"
                )
        yield whole


DEFAULTS = Settings()


def log(text: str) -> None:
    """Say something where nobody else listens."""
    logging.getLogger("featfold").warning(text)


def mended(run: Callable[[], T]) -> T:
    """Run again as long as that removes damaged partials: what is missing is computed anew."""
    for _ in range(MENDS_LIMIT):
        with suppress(DamagedPartialError):
            return run()
    return run()


def window(workers: int) -> int:
    """Return how many tasks are in flight: one runs while the next is on its way."""
    return WINDOW * max(1, workers)
