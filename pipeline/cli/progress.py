"""How far a job is: rich bars on a terminal, a log line every 30 seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pipeline.report.text import duration, size

EVERY_SECONDS = 30.0
BYTES = "bytes"

Say = Callable[[str], None]
Clock = Callable[[], float]


class Watched(Protocol):
    """Progress of a job, which may be told from several threads, and its end."""

    def begin(self, name: str, total_nbytes: int, unit: str = BYTES) -> None: ...
    def advance(self, nbytes: int) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class Quiet:
    """Passes messages on, and shows nothing else."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def begin(self, name: str, total_nbytes: int, unit: str = BYTES) -> None:
        """Show nothing."""

    def advance(self, nbytes: int) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


@dataclass
class Stage:
    """A part of a job: what is to be done, in bytes or another unit, and what was done.

    A total of 0 rows is one that nobody knows: rows come from a stream.
    """

    name: str
    total: int
    unit: str
    began: float
    done: int = 0

    @property
    def share(self) -> float:
        """Done of total, from 0 to 1."""
        if self.is_endless:
            return 0.0
        return self.done / self.total if self.total else 1.0

    @property
    def is_endless(self) -> bool:
        """Whether nobody knows the total."""
        return not self.total and self.unit != BYTES

    def amounts(self) -> str:
        """Done of total, for people."""
        if self.is_endless:
            return self._amount(self.done)
        return f"{self._amount(self.done)} of {self._amount(self.total)}"

    def pace(self, now: float) -> str:
        """Rate so far, and the time that is left at this rate."""
        seconds = now - self.began
        if not self.done or seconds <= 0:
            return "starting"
        rate = self.done / seconds
        slow = self.unit != BYTES and rate < 100
        shown = f"{rate:.3g} {self.unit}/s" if slow else f"{self._amount(rate)}/s"
        if self.is_endless:
            return shown
        left = seconds * (1 - self.share) / self.share
        return f"{shown}, {duration(max(0.0, left))} left"

    def verdict(self, now: float) -> str:
        """What was done in which time."""
        return f"{self._amount(self.done)} in {duration(now - self.began)}"

    def _amount(self, count: float) -> str:
        return size(count) if self.unit == BYTES else f"{count:.0f} {self.unit}"


class Lines:
    """Log lines: at the end of every stage, and every 30 seconds within it."""

    def __init__(self, say: Say, clock: Clock = time.monotonic) -> None:
        self.say, self._clock = say, clock
        self._lock = threading.Lock()
        self._stage: Stage | None = None
        self._spoke = 0.0

    def begin(self, name: str, total_nbytes: int, unit: str = BYTES) -> None:
        """Start a stage of so many bytes, or of another unit."""
        with self._lock:
            self._spoke = self._clock()
            self._stage = Stage(name, total_nbytes, unit, self._spoke)

    def advance(self, nbytes: int) -> None:
        """Count what was done; say so now and then."""
        with self._lock:
            now, stage = self._clock(), self._stage
            if stage is None:
                return
            stage.done += nbytes
            if now - self._spoke >= EVERY_SECONDS:
                self._spoke = now
                share = "" if stage.is_endless else f"{stage.share:.0%}, "
                self.say(f"{stage.name}: {share}{stage.amounts()}, {stage.pace(now)}")

    def end(self) -> None:
        """Say how long the stage took."""
        with self._lock:
            if self._stage is not None:
                self.say(f"{self._stage.name}: {self._stage.verdict(self._clock())}")
            self._stage = None

    def close(self) -> None:
        """Lines need no end."""


class Bars:
    """One bar per stage, and messages above them."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[facts]}", style="dim"),
            console=console,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._stage: Stage | None = None
        self._bars.start()

    def begin(self, name: str, total_nbytes: int, unit: str = BYTES) -> None:
        """Start the bar of a stage."""
        with self._lock:
            self._stage = Stage(name, total_nbytes, unit, self._clock())
            total = None if self._stage.is_endless else max(1, total_nbytes)
            self._bars.add_task(name, total=total, facts=self._stage.amounts())

    def advance(self, nbytes: int) -> None:
        """Move the bar."""
        with self._lock:
            if self._stage is not None:
                self._stage.done += nbytes
                facts = f"{self._stage.amounts()}, {self._stage.pace(self._clock())}"
                self._show(self._stage.share, facts)

    def end(self) -> None:
        """Leave the full bar, with the time it took."""
        with self._lock:
            if self._stage is not None:
                self._show(1.0, self._stage.verdict(self._clock()))
            self._stage = None

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._bars.stop()

    def _show(self, share: float, facts: str) -> None:
        task = self._bars.tasks[-1]
        total = task.total if task.total or share < 1 else 1
        self._bars.update(task.id, total=total, completed=share * (total or 0), facts=facts)
