"""What a run tells, as lines of JSON: beside its runs while it lasts, afterwards in its directory.

Every line has the ``time`` and a ``kind``: ``run`` (host, pid, command), ``begin``, ``advance`` and
``end`` of a stage (bytes or rows, blocks), ``say`` (text), and ``ended`` (exit code, error). A run
that is killed leaves no last line, and a lock that nobody holds.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

from pipeline.errors import FeatfoldError
from pipeline.locks import Held

FILE_NAME = "events.jsonl"
EVERY_SECONDS = 2.0
"""How often a stage that advances is written down."""
INTERRUPTED = 130
_UNFINISHED = ".run*.events.jsonl"


class Told(Protocol):
    """Who is told of the progress of a run."""

    def begin(self, name: str, total: int, unit: str = "bytes") -> None: ...
    def advance(self, amount: int) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str) -> None: ...


class Journal:
    """Passes progress on, and writes it down from when the run holds its outputs.

    That is when its first stage begins, or somebody asks for :meth:`alone`: a job that is refused
    before leaves nothing. A disk that takes no events stops no run.
    """

    def __init__(
        self,
        told: Told,
        outputs: AbstractContextManager[Held],
        family: Path,
        part: tuple[int, int] | None,
        command: str,
    ) -> None:
        self._told, self._outputs, self._family = told, outputs, family
        which = "" if part is None else f".part-{part[0]}-of-{part[1]}"
        self.path = family / _UNFINISHED.replace("*", which)
        self._about = {"host": socket.gethostname(), "pid": os.getpid(), "command": command}
        self._said: list[dict[str, Any]] = []
        self._lock, self._stack = threading.Lock(), ExitStack()
        self._held: Held | None = None
        self._file: TextIO | None = None
        self._done = self._blocks = 0
        self._wrote = 0.0

    def __enter__(self) -> Journal:
        self._note("run", **self._about)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if error is not None:
            self._note("ended", exit_code=_exit_code(error), error=str(error))
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        return self._stack.__exit__(kind, error, trace)

    def alone(self) -> Held:
        """Hold the outputs of the job until the end, and write down what was told so far."""
        if self._held is None:
            self._held = self._stack.enter_context(self._outputs)
            with suppress(OSError), self._lock:
                self._file = self.path.open("w", encoding="utf-8")
                self._file.writelines(map(_line, self._said))
                self._file.flush()
        return self._held

    def begin(self, name: str, total: int, unit: str = "bytes", *, blocks: int = 0) -> None:
        """Begin a stage; ``blocks`` is how many there are to read, each of which advances once."""
        self.alone()
        self._done = self._blocks = 0
        self._wrote = time.monotonic()
        self._note("begin", stage=name, total=total, unit=unit, blocks=blocks)
        self._told.begin(name, total, unit)

    def advance(self, amount: int) -> None:
        """Count what was done of a stage, by blocks."""
        with self._lock:
            self._done += amount
            self._blocks += 1
            due = time.monotonic() - self._wrote >= EVERY_SECONDS
            if due:
                self._wrote = time.monotonic()
        if due:
            self._note("advance", done=self._done, blocks=self._blocks)
        self._told.advance(amount)

    def end(self) -> None:
        """End a stage."""
        self._note("end", done=self._done, blocks=self._blocks)
        self._told.end()

    def say(self, text: str) -> None:
        """Tell something in words."""
        self._note("say", text=text)
        self._told.say(text)

    def done(self, directory: Path) -> None:
        """Move the events into the directory of the run that is finished; its parts have ended."""
        self._note("ended", exit_code=0, directory=str(directory))
        with suppress(OSError):
            self.path.replace(directory / FILE_NAME)
            for part in unfinished(self._family):
                part.unlink(missing_ok=True)

    def _note(self, kind: str, **figures: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        event = {"time": now, "kind": kind, **figures}
        with self._lock:
            if self._held is None:
                self._said.append(event)
            elif self._file is not None:
                with suppress(OSError, ValueError):  # full, or closed
                    self._file.write(_line(event))
                    self._file.flush()


def unfinished(family: Path) -> list[Path]:
    """Return the events of runs of a job that are on their way, or did not finish."""
    return sorted(family.glob(_UNFINISHED))


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file; a line that is not whole, as a kill leaves it, is left out."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            yield json.loads(line)


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False) + "\n"


def _exit_code(error: BaseException) -> int:
    """Return what the command line ends with."""
    if isinstance(error, FeatfoldError):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
