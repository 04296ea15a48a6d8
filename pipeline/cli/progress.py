"""How far a job is: rich bars on a terminal, a log line every 30 seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pipeline.report.text import duration, size

EVERY_SECONDS = 30.0
BYTES = "bytes"


class Watched(Protocol):
    """Progress of a job, and its end; may be told from several threads."""

    def begin(self, name: str, total_nbytes: int, unit: str = BYTES) -> None: ...
    def advance(self, nbytes: int) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class Quiet:
    """Passes messages on, and shows nothing else."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def begin(self, name: str, total_nbytes: int, unit: str = BYTES) -> None:
        """Show nothing."""

    def advance(self, nbytes: int) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


class Lines:
    """Log lines: at the end of a stage, and every 30 seconds within it."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.say, self._clock = say, clock
        self._lock = threading.Lock()
        self._name, self._unit, self._total, self._done = "", BYTES, 0, 0
        self._began = self._spoke = 0.0

    def begin(self, name: str, total_nbytes: int, unit: str = BYTES) -> None:
        """Start a stage of so many bytes, or of another unit."""
        with self._lock:
            self._name, self._unit, self._total, self._done = name, unit, total_nbytes, 0
            self._began = self._spoke = self._clock()

    def advance(self, nbytes: int) -> None:
        """Count what was done; say so now and then."""
        with self._lock:
            self._done += nbytes
            now = self._clock()
            if now - self._spoke >= EVERY_SECONDS:
                self._spoke = now
                self.say(self._line(now - self._began))

    def end(self) -> None:
        """Say how long the stage took."""
        with self._lock:
            seconds = self._clock() - self._began
            done = amount(self._done, self._unit)
            self.say(f"{self._name}: {done} in {duration(seconds)}{_rate(self, seconds)}")

    def close(self) -> None:
        """Lines need no end."""

    @property
    def done(self) -> tuple[int, str]:
        """What was done so far, and its unit."""
        return self._done, self._unit

    def _line(self, seconds: float) -> str:
        share = self._done / self._total if self._total else 1.0
        left = seconds * (1 - share) / share if share else 0.0
        return (
            f"{self._name}: {amount(self._done, self._unit)} of {amount(self._total, self._unit)}, "
            f"{share:.0%}{_rate(self, seconds)}, {duration(left)} left"
        )


class Bars:
    """One bar per stage, and messages above them."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[amount]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._task: TaskID | None = None
        self._done, self._total, self._unit = 0, 0, BYTES
        self._lock = threading.Lock()
        self._bars.start()

    def begin(self, name: str, total_nbytes: int, unit: str = BYTES) -> None:
        """Start the bar of a stage."""
        with self._lock:
            self._done, self._total, self._unit = 0, total_nbytes, unit
            self._task = self._bars.add_task(name, total=total_nbytes, amount=self._amount())

    def advance(self, nbytes: int) -> None:
        """Move the bar."""
        with self._lock:
            if self._task is not None:
                self._done += nbytes
                self._bars.update(self._task, completed=self._done, amount=self._amount())

    def end(self) -> None:
        """Leave the bar full and go on below it."""
        with self._lock:
            if self._task is not None:
                self._bars.update(self._task, completed=self._total, amount=self._amount())
                self._bars.stop_task(self._task)
                self._task = None

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._bars.stop()

    def _amount(self) -> str:
        return f"{amount(self._done, self._unit)} of {amount(self._total, self._unit)}"


def amount(count: int, unit: str) -> str:
    """Return bytes or another unit as people read them."""
    return size(count) if unit == BYTES else f"{count} {unit}"
