"""Small disks and read-only folders, for real: mounts of this machine, where it lets us."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mount(*arguments: object) -> None:
    """Mount something; skips the test, with the reason, where that is not possible."""
    try:
        done = subprocess.run(
            ["mount", *map(str, arguments)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        pytest.skip(f"nothing can be mounted here ({error})")
    if done.returncode:
        pytest.skip(f"nothing can be mounted here ({done.stderr.strip()})")


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)


class Disk:
    """A file system of its own, in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, nbytes: int) -> None:
        """Make it larger or smaller, but not smaller than its files."""
        _mount("-o", f"remount,size={nbytes}", self.path)

    def fill(self, leaving_nbytes: int = 0) -> None:
        """Make it as small as its files and some more bytes."""
        found = os.statvfs(self.path)
        self.resize((found.f_blocks - found.f_bfree) * found.f_frsize + leaving_nbytes)


@contextmanager
def small_disk(path: Path, nbytes: int) -> Iterator[Disk]:
    """Mount a disk of ``nbytes`` at ``path``, and unmount it at the end."""
    path.mkdir(parents=True)
    _mount("-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", path)
    try:
        yield Disk(path)
    finally:
        _unmount(path)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Let nobody, root included, write below ``path``: a read-only bind mount."""
    _mount("--bind", path, path)
    try:
        _mount("-o", "remount,bind,ro", path)
        with pytest.raises(OSError, match="Read-only"):
            (path / "written").touch()
        yield
    finally:
        _unmount(path)
