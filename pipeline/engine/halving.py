"""Halving: a block that does not fit on its device is folded again, in steps of half the rows.

Grains stay what they are, and so do all bits. What was enough for a block is where the next one
begins.
"""

from __future__ import annotations

import gc
import threading
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pipeline.arrays import Place, devices
from pipeline.chunk import Block, Split
from pipeline.engine.settings import Say, Settings
from pipeline.errors import DeviceMemoryError
from pipeline.fold import AnyStatistic, Partial, fold, step_of
from pipeline.plan import Pass, Work, human, project_device
from pipeline.procedure import Rows


class Halving:
    """Folds the blocks of a pass in one process, and knows how many rows its device has room for.

    Sent to another process, it is the one that this process has for the pass.
    """

    def __init__(
        self, place: Place, settings: Settings, say: Say | None = None, token: str = ""
    ) -> None:
        self.place, self.settings, self.say = place, settings, say
        self.token = token or uuid.uuid4().hex
        self.shrink = settings.shrink
        self.notes: list[str] = []
        """What there was to say: one line at most."""
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_this_process, (self.token, self.place, self.settings)

    def fold(
        self,
        statistics: Sequence[AnyStatistic],
        split: Split,
        block: Block,
        rows: Sequence[Rows] = (),
    ) -> Partial:
        """Fold a block, from its first row again as long as its device has no room for a step.

        Raises :class:`DeviceMemoryError` where it has none for a row.
        """
        device = devices.of(self.place)
        refusals = device.out_of_memory if device else ()
        while True:
            shrink = self.shrink
            try:
                found = fold(statistics, split, block, rows, self.place, shrink=shrink)
            except Exception as error:
                if not _is_behind(error, refusals):
                    raise
                why = str(error)
            else:
                if shrink > self.settings.shrink:
                    self.tell([_halved(split, block, step_of(split, statistics, shrink))])
                return found
            # Only here, where the error is gone, has it let go of the arrays that it was raised by.
            gc.collect()
            if device is not None:
                device.free_unused()
            if step_of(split, statistics, shrink) == 1:
                work = Work(split, tuple(statistics), tuple(rows))
                raise DeviceMemoryError(self._refusal(work, block, why))
            with self.lock:  # other threads may have failed alike
                self.shrink = max(self.shrink, shrink + 1)

    def tell(self, notes: Sequence[str]) -> None:
        """Say the first of some notes, unless anything was said before."""
        with self.lock:
            new = [] if self.notes else list(notes[:1])
            self.notes += new
        if new and self.say is not None:
            self.say(new[0])

    def _refusal(self, work: Work, block: Block, why: str) -> str:
        needed = project_device(Pass("", 0, (work,), {}), self.shrink).nbytes
        allowed = self.settings.device_nbytes
        limit = "" if allowed is None else f", {human(allowed)} are allowed"
        place = f"{self.place.library} {self.place.device}".strip()
        return (
            f"block {block.index} of {work.split.name} does not fit on the device ({place}), not "
            f"even row by row: {human(needed)} were projected{limit}; {why}. End what else runs on "
            "the device, allow more with --device-memory, leave out detectors, or pool their "
            "tokens (pool: mean). Finished blocks are kept"
        )


@lru_cache(maxsize=1)
def _of_this_process(token: str, place: Place, settings: Settings) -> Halving:
    return Halving(place, settings, token=token)


def _halved(split: Split, block: Block, step_rows: int) -> str:
    return (
        f"block {block.index} of {split.name} did not fit on the device: chunks are halved to "
        f"{step_rows} {'row' if step_rows == 1 else 'rows'}"
    )


def _is_behind(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    """Tell whether an error, or what it was raised from, is of some kinds."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__
    return False
