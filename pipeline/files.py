"""Files that appear whole or not at all: written beside their place, flushed, then renamed."""

from __future__ import annotations

import errno
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from pipeline.errors import FeatfoldError

_ENDING = ".partial"
_OLD_SECONDS = 86_400.0
"""Age at which an unfinished file counts as left behind, whoever wrote it."""


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file so that, whatever happens, it is either missing or complete under its name.

    The bytes reach the disk before the name does, and the name before this returns. Raises
    :class:`FeatfoldError` where the disk is full or cannot be written to.
    """
    partial = path.with_name(f".{path.name}.{_writer()}-{uuid.uuid4().hex[:8]}{_ENDING}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    except OSError as error:
        raise FeatfoldError(_why(path, error)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _why(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {path.parent} is full: {path.name} could not be written; free space, or "
            "name another directory with --cache; run the same again to go on from here"
        )
    return f"{path} cannot be written ({error}); name another directory with --cache"


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: Path) -> None:
    """Remove the unfinished files of writers that are gone, in ``directory`` and below it."""
    for stray in directory.rglob(f".*{_ENDING}"):
        with suppress(OSError, ValueError):
            if _abandoned(stray):
                stray.unlink(missing_ok=True)


def _writer() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _abandoned(stray: Path) -> bool:
    """Tell whether the writer that a file names has ended: by its process here, or by age."""
    writer, _, _ = stray.name.removesuffix(_ENDING).rpartition("-")
    host, _, process = writer.rpartition("-")
    if host.endswith(f".{socket.gethostname()}") and not psutil.pid_exists(int(process)):
        return True
    return time.time() - stray.stat().st_mtime > _OLD_SECONDS
