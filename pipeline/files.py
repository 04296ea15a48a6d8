"""Files that appear whole or not at all: written beside their place, flushed, then renamed."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from pipeline.errors import FeatfoldError

_ENDING = ".partial"
_OLD_SECONDS = 86_400.0
"""Age at which an unfinished file from another machine counts as left behind."""
_CLOCKS_SECONDS = 60.0
"""How far the clocks of processes and of a file system may be apart."""


def write_whole(
    path: Path,
    write: Callable[[BinaryIO], object],
    nbytes: int = 0,
    remedy: str = "name another directory with --cache",
) -> None:
    """Write a file so that, whatever happens, it is either missing or complete under its name.

    The bytes reach the disk before the name does, and the name before this returns. Raises
    :class:`FeatfoldError` where the disk is full or cannot be written to; ``nbytes`` and
    ``remedy`` are for its message.
    """
    with told(path.name, path.parent, nbytes, remedy):
        partial = path.with_name(unfinished(path.name))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync(path.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def unfinished(name: str) -> str:
    """Return a name, for a file or folder, that :func:`sweep` removes once this process ended."""
    return f".{name}.{_writer()}-{uuid.uuid4().hex[:8]}{_ENDING}"


@contextmanager
def told(what: str, directory: Path, nbytes: int, remedy: str) -> Iterator[None]:
    """Make one clear :class:`FeatfoldError` of a disk that is full, or cannot be written to."""
    try:
        yield
    except FeatfoldError:
        raise
    except OSError as error:
        raise FeatfoldError(_why(what, directory, nbytes, remedy, error)) from error


def _why(what: str, directory: Path, nbytes: int, remedy: str, error: OSError) -> str:
    free = free_nbytes(directory)
    short = error.errno is None and free < nbytes  # numpy's own error has no number
    if short or error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = f"{nbytes:,} bytes are needed, " if nbytes else ""
        return (
            f"the disk of {directory} is full: {what} could not be written ({need}"
            f"{free:,} are free); free space, or {remedy}; then run the same again, which "
            "goes on from here"
        )
    return f"{directory / what} cannot be written ({error}); {remedy}"


def free_nbytes(directory: Path) -> int:
    """Return the free bytes of the disk that holds a directory, which may not be there yet."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return shutil.disk_usage(directory).free


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(directory: Path) -> None:
    """Remove the unfinished files and folders of processes that are gone, wherever below."""
    for stray in abandoned(directory):
        remove(stray)


def abandoned(directory: Path) -> Iterator[Path]:
    """Yield the unfinished files and folders of processes that are gone, wherever below."""
    for folder, folders, names in os.walk(directory):
        for name in filter(_is_unfinished, (*folders, *names)):
            if _abandoned(stray := Path(folder, name)):
                yield stray
        folders[:] = [name for name in folders if not _is_unfinished(name)]


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that is possible; others may do so as well."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sweep_beside(path: Path) -> None:
    """Remove what processes that are gone left of a file, unfinished, in its folder."""
    for stray in path.parent.glob(f".{glob.escape(path.name)}.*{_ENDING}"):
        if _abandoned(stray):
            remove(stray)


def _is_unfinished(name: str) -> bool:
    return name.startswith(".") and name.endswith(_ENDING)


def _writer() -> str:
    return f"{_host()}-{os.getpid()}"


def _host() -> str:
    """Return the name of this machine without the dots that end it within the name of a file."""
    return socket.gethostname().replace(".", "_")


def _abandoned(stray: Path) -> bool:
    """Tell whether the writer that a file names has ended: by its process here, or by age.

    What is gone meanwhile, or names none, is not.
    """
    writer, _, _ = stray.name.removesuffix(_ENDING).rpartition("-")
    host, _, process = writer.rpartition("-")
    with suppress(OSError, ValueError):
        written = stray.stat().st_mtime
        if host.rpartition(".")[2] == _host():
            return not _runs_since(int(process), written)
        return time.time() - written > _OLD_SECONDS
    return False


def _runs_since(process: int, moment: float) -> bool:
    """Tell whether a process runs that did so at a moment; a later one may have its number."""
    if not psutil.pid_exists(process):
        return False
    try:
        found = psutil.Process(process)
        dead = found.status() == psutil.STATUS_ZOMBIE  # orphans stay such where nobody reaps them
        return not dead and found.create_time() <= moment + _CLOCKS_SECONDS
    except psutil.Error:  # somebody else's, whom this process may not look at
        return True
