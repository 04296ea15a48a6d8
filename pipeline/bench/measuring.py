"""What every bench does alike: take turns, take medians, name the machine, show tables."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Group
from rich.table import Table
from rich.text import Text
from threadpoolctl import threadpool_info, threadpool_limits

from pipeline.facts import installed

Say = Callable[[str], None]
Side = Callable[[], float]


def alternate(
    sides: Mapping[str, Side], repeat: int, say: Say = lambda text: None
) -> dict[str, list[float]]:
    """Run all sides in turn, ``repeat`` times over; return the seconds of each, in order.

    So that whatever else the machine does falls on every side alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(repeat):
        for name, side in sides.items():
            taken[name].append(side())
        latest = ", ".join(f"{name} {seconds[-1]:.3g} s" for name, seconds in taken.items())
        say(f"{number + 1}/{repeat}: {latest}")
    return taken


def medians(taken: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each side."""
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def machine() -> dict[str, Any]:
    """Return what results depend on: the processor, its cores, memory, versions and the date."""
    blas = [entry for entry in threadpool_info() if entry["user_api"] == "blas"]
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_nbytes": psutil.virtual_memory().total,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": [
            {key: entry.get(key) for key in ("internal_api", "version", "architecture")}
            for entry in blas
        ],
        "versions": {name: installed(name) for name in ("featfold", "dask", "zarr")},
        "load_before": list(os.getloadavg()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


class Processes:
    """Worker processes of one BLAS thread each, in which floors are measured."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._stack = ExitStack()

    def __enter__(self) -> Processes:
        self._each = [
            self._stack.enter_context(
                ProcessPoolExecutor(1, get_context("spawn"), initializer=_one_thread)
            )
            for _ in range(self.count)
        ]
        self.seconds(_nothing, [()] * self.count)  # they are up
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def seconds(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> float:
        """Call ``function`` in every process at once; return the time from first to last."""
        started = [
            process.submit(_timed, function, given)
            for process, given in zip(self._each, arguments, strict=True)
        ]
        spans = [done.result() for done in started]
        return max(end for _, end in spans) - min(begin for begin, _ in spans)

    def each(self, function: Callable[..., float], given: Sequence[tuple[Any, ...]]) -> float:
        """Call ``function``, which returns seconds, in every process at once; return the most."""
        started = [p.submit(function, *a) for p, a in zip(self._each, given, strict=True)]
        return max(done.result() for done in started)


def _one_thread() -> None:
    threadpool_limits(1)


def _nothing() -> None:
    """Do nothing: a process that answers is up."""


def _timed(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float]:
    """Return begin and end on a clock that all processes of a machine share."""
    begin = time.monotonic()
    function(*arguments)
    return begin, time.monotonic()


@dataclass
class Outcome:
    """The result of a bench: numbers for programs, and tables of them for people."""

    name: str
    numbers: dict[str, Any]
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Tables by their titles."""
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine)

    def to_dict(self) -> dict[str, Any]:
        """Return one JSON object."""
        return {
            "bench": self.name, "machine": self.machine, **self.numbers, "notes": self.notes,
        }  # fmt: skip

    def __rich__(self) -> Group:
        here = self.machine
        blas = ", ".join(f"{b['internal_api']} {b['version']}" for b in here["blas"])
        head = f"{here['cpu']}, {here['cores']} cores, numpy {here['numpy']}, {blas}"
        lines: list[Text | Table] = [Text(f"{head}, {here['date']}", style="dim")]
        for title, shown in self.tables.items():
            lines += [Text(), Text(title, style="bold cyan"), shown]
        lines += [Text(), *(Text(note, style="dim") for note in self.notes)]
        return Group(*lines)


def table(*columns: str) -> Table:
    """Return a table whose first column is words, and all others numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    made.add_column(columns[0], overflow="fold")
    for name in columns[1:]:
        made.add_column(name, justify="right")
    return made


def spread(seconds: Sequence[float]) -> str:
    """Return the lowest and the highest, for people."""
    return f"{min(seconds):.3g} to {max(seconds):.3g}"
