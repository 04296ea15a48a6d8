"""The memory that this process may use: what the machine has, or its control groups allow."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_LIMITS = {
    "cgroup": ("memory.limit_in_bytes",),
    "cgroup2": ("memory.max", "memory.high"),  # above the second, the kernel stalls a process
}


def memory_limit_nbytes(process: Path = Path("/proc/self")) -> int:
    """Return the least of the RAM and the limits of the control groups that hold a process.

    Both versions of control groups count, and every group above the process's own.
    """
    limits = [_limit(group / name) for group, names in _groups(process) for name in names]
    return min([int(psutil.virtual_memory().total), *(x for x in limits if x is not None)])


def give_back() -> None:
    """Hand memory that was freed back to the system, where the C library would keep it."""
    with suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def _limit(file: Path) -> int | None:
    """Return the bytes in a file; None where it is missing or says ``max``."""
    try:
        nbytes = int(file.read_text())
    except (OSError, ValueError):
        return None
    return nbytes if nbytes > 0 else None


def _groups(process: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the directories of a process's memory groups, the innermost first, and their files."""
    own = _own_groups(process)
    for root, top, kind in _mounts(process):
        if kind not in own:
            continue
        # Inside a container the mount shows a part of the tree only, often the own group alone.
        inner = own[kind].removeprefix(root.rstrip("/")).strip("/")
        directory = top / inner
        if ".." in directory.parts or not directory.is_dir():
            directory = top
        while directory.is_relative_to(top):
            yield directory, _LIMITS[kind]
            directory = directory.parent


def _own_groups(process: Path) -> dict[str, str]:
    """Return the path of the memory group of a process per version, as the kernel names it."""
    found = {}
    for line in _lines(process / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            found["cgroup2"] = path
        elif "memory" in controllers.split(","):
            found["cgroup"] = path
    return found


def _mounts(process: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (root within the tree, mount point, kind) of the mounted trees of memory groups."""
    for line in _lines(process / "mountinfo"):
        before, dash, after = line.partition(" - ")
        if not dash:
            continue
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            yield root, Path(point.replace("\\040", " ")), kind


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # no Linux
        return []


def rss_nbytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def peak_rss_nbytes() -> int:
    """Return the peak resident memory of this process since it started, or since its reset.

    Read from the kernel's own high-water mark: ``getrusage`` counts the parent's before ``exec``.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    marks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return marks[0] if marks else rss_nbytes()


def reset_peak() -> None:
    """Start the high-water mark of this process anew, where the kernel allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
