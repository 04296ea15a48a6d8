"""Control groups with a memory limit for child processes, where this process may make them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
LEAVING_SECONDS = 10


@contextmanager
def memory_cgroup(limit_nbytes: int) -> Iterator[Callable[[], None]]:
    """Yield a ``preexec_fn`` that puts a child into a new group of ``limit_nbytes``, without swap.

    The group lies below that of this process, and is gone at the end. Skips the test, with the
    reason, where no group can be made.
    """
    parent, limit, swap, no_swap = _parent()
    group = parent / f"featfold-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made below {parent} ({error})")
    try:
        try:
            (group / limit).write_text(str(limit_nbytes))
        except OSError as error:
            pytest.skip(f"the memory of {group} cannot be limited ({error})")
        if (group / swap).exists():
            (group / swap).write_text(str(limit_nbytes if no_swap is None else no_swap))
        members = group / "cgroup.procs"

        def enter() -> None:
            members.write_text(str(os.getpid()))

        yield enter
        deadline = time.monotonic() + LEAVING_SECONDS
        while members.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)  # helpers of a process end shortly after it
        assert members.read_text() == "", "processes were left in the group"
    finally:
        group.rmdir()


def _parent() -> tuple[Path, str, str, int | None]:
    """Return where to make a group, its files for memory and swap, and the swap to write."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") and V1.is_dir():
            return (
                V1 / path.strip("/"),
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                None,
            )
        if not controllers and (V2 / "cgroup.controllers").exists():
            # A group with processes hands no controller to groups below it: look further up.
            own = V2 / path.strip("/")
            for parent in (own, *own.parents):
                handed = parent / "cgroup.subtree_control"
                if handed.exists() and "memory" in handed.read_text().split():
                    return parent, "memory.max", "memory.swap.max", 0
    pytest.skip("this system has no control groups of memory that a process may make")
