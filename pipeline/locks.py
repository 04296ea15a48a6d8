"""Locks between processes: freed by the kernel when their holder dies, or leases that run out.

A lock is a file held by ``flock``. Where that is refused, as on some shared file systems, it is a
lease: a file that its holder touches while it lives, and that others take over once it is stale.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.errors import FeatfoldError, LockedError

LEASE_SECONDS = 30.0
"""A lease that was not renewed for this long has run out; it is renewed three times as often."""
MARGIN_SECONDS = 5.0
"""Others wait this much longer: the holder has stopped by then."""
_GRACE_SECONDS = 0.2  # a look at a lock holds it for a moment
_POLL_SECONDS = 0.02
_REFUSED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_LEASE, _TAKING = ".lease", ".taking"
_FAMILY = ".run"


@dataclass
class Held:
    """A lock that this process holds."""

    path: Path
    what: str
    lost: bool = False

    def check(self) -> None:
        """Raise :class:`LockedError` if the lock was lost: its lease ran out while unrenewed."""
        if self.lost:
            raise LockedError(
                f"{self.what}: the lease {self.path}{_LEASE} ran out before it could be renewed, "
                "so another process may have taken over; finished work is kept, run the same again"
            )


@contextmanager
def hold(path: Path, what: str, timeout_seconds: float = 0.0) -> Iterator[Held]:
    """Hold the lock of a file against every other holder, and remove the file at the end.

    ``what`` names the thing locked, for messages. Raises :class:`LockedError`, which says who
    holds it, after ``timeout_seconds``, or at the end if a lease was lost meanwhile.
    """
    deadline = time.monotonic() + max(timeout_seconds, _GRACE_SECONDS)
    while True:
        try:
            handle, leased = _acquire(path)
        except OSError as error:
            raise FeatfoldError(
                f"{what}: {path.parent} cannot be written to, no lock file {path} ({error}); make "
                "it writable or free space, then run the same again"
            ) from error
        if handle is not None:
            break
        if time.monotonic() >= deadline:
            raise LockedError(_held_by(path, what, timeout_seconds))
        time.sleep(_POLL_SECONDS)
    held = Held(path, what)
    try:
        with _renewed(handle, held) if leased else _released(handle, path):
            yield held
        held.check()
    finally:
        os.close(handle)


@contextmanager
def hold_family(directory: Path, part: tuple[int, int] | None = None) -> Iterator[Held]:
    """Hold the outputs of a job: alone, or as part (i, n) beside the other parts."""
    directory.mkdir(parents=True, exist_ok=True)
    what = f"the runs of {directory}"
    with hold_shared(directory / _FAMILY, what, part, disjoint=False) as held:
        yield held


def holder_of_family(directory: Path) -> str:
    """Return who holds the outputs of a job now, in words; nothing where nobody does."""
    held = _locks_held(directory)
    return _held_by(held[0], f"the runs of {directory}", 0.0) if held else ""


def holders_of_family(directory: Path) -> list[dict[str, Any]]:
    """Return the processes that hold the outputs of a job now, or parts: host, pid, since."""
    return [_holder(path) for path in _locks_held(directory)]


def _locks_held(directory: Path) -> list[Path]:
    stem = directory / _FAMILY
    return [p for p in (stem.with_name(f"{_FAMILY}.lock"), *_parts(stem)) if _is_held(p)]


@contextmanager
def hold_shared(
    stem: Path, what: str, part: tuple[int, int] | None = None, *, disjoint: bool = True
) -> Iterator[Held]:
    """Hold ``what``, by lock files whose names begin with ``stem``: alone, or as part (i, n).

    Everybody takes its own lock first and looks for the others then, so that of a whole run and a
    part that start together at least one is refused. Parts of another number n are, too, where
    parts must be ``disjoint``. Raises :class:`LockedError`.
    """
    whole = stem.with_name(f"{stem.name}.lock")
    if part is None:
        with hold(whole, what) as held:
            _refuse_beside(_parts(stem), what)
            yield held
    else:
        i, n = part
        own = stem.with_name(f"{stem.name}.part-{i}-of-{n}.lock")
        with hold(own, f"part {i}/{n} of {what}") as held:
            crossing = [path for path in _parts(stem) if not path.name.endswith(f"-of-{n}.lock")]
            _refuse_beside([whole, *(crossing if disjoint else ())], what)
            yield held


def _parts(stem: Path) -> list[Path]:
    names = stem.parent.glob(f"{glob.escape(stem.name)}.part-*.lock*")
    return sorted({path.with_name(path.name.removesuffix(_LEASE)) for path in names})


def _refuse_beside(others: list[Path], what: str) -> None:
    for path in others:
        if _is_held(path):
            raise LockedError(_held_by(path, what, 0.0))


def _held_by(path: Path, what: str, timeout_seconds: float) -> str:
    """Say who holds a lock, as its file tells, and what to do."""
    waited = f" (waited {timeout_seconds:g} s)" if timeout_seconds else ""
    who, known = "another process", _holder(path)
    if known:
        who = f"process {known['pid']} on {known['host']} since {known['since']}"
    return f"{what}: held by {who}{waited}; try again when it has ended (lock file: {path})"


def _holder(path: Path) -> dict[str, Any]:
    """Return what the file of a lock tells of its holder: host, pid and since, or nothing."""
    for file in (_lease(path), path):
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(file.read_text(encoding="utf-8"))
            return {key: known[key] for key in ("host", "pid", "since")}
    return {}


def _identity() -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    who = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    return json.dumps(who | {"nonce": uuid.uuid4().hex}).encode()


def _acquire(path: Path) -> tuple[int | None, bool]:
    """Return an open handle of the lock file, or None if it is held; and whether it is a lease."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(handle, path):  # else its last holder removed it meanwhile
            os.ftruncate(handle, 0)
            os.pwrite(handle, _identity(), 0)
            return handle, False
    except BlockingIOError:
        pass
    except OSError as error:
        if not os.fstat(handle).st_size:  # nobody's, or this one's that found no room
            path.unlink(missing_ok=True)
        os.close(handle)
        if error.errno not in _REFUSED:
            raise
        return _take_lease(_lease(path)), True
    os.close(handle)
    return None, False


def _is_at(handle: int, path: Path) -> bool:
    """Tell whether ``path`` is still the name of the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


@contextmanager
def _released(handle: int, path: Path) -> Iterator[None]:
    """Remove the file of a lock before it is freed."""
    try:
        yield
    finally:
        with suppress(OSError):
            if _is_at(handle, path):
                path.unlink()


def _is_held(path: Path) -> bool:
    """Tell whether somebody holds a lock now."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return _is_alive(_lease(path))
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
    finally:
        os.close(handle)
    return _is_alive(_lease(path))


def _lease(path: Path) -> Path:
    return path.with_name(path.name + _LEASE)


def _is_alive(lease: Path) -> bool:
    """Tell whether a lease is there and was renewed lately, by the clock of its file system."""
    try:
        renewed = lease.stat().st_mtime
    except FileNotFoundError:
        return False
    with tempfile.TemporaryFile(dir=lease.parent) as file:
        now = os.fstat(file.fileno()).st_mtime
    return now <= renewed + LEASE_SECONDS + MARGIN_SECONDS


def _take_lease(lease: Path) -> int | None:
    """Create a lease, or put one in the place of a stale one; None if it is alive.

    Only who has made the ``.taking`` file beside it may do so: of several takers one wins, and
    what it finds stale cannot become another's lease before it is replaced.
    """
    taking = lease.with_name(lease.name + _TAKING)
    try:
        os.close(os.open(taking, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        if not _is_alive(taking):  # its maker was killed within these few lines
            taking.unlink(missing_ok=True)
        return None
    try:
        return None if _is_alive(lease) else _write_lease(lease)
    finally:
        taking.unlink(missing_ok=True)


def _write_lease(lease: Path) -> int:
    made = lease.with_name(f"{lease.name}.{uuid.uuid4().hex}")
    handle = os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    try:
        os.pwrite(handle, _identity(), 0)
        made.replace(lease)
    except OSError:
        os.close(handle)
        made.unlink(missing_ok=True)
        raise
    return handle


@contextmanager
def _renewed(handle: int, held: Held) -> Iterator[None]:
    """Renew a lease from a thread; remove it at the end, unless it was lost."""
    lease = _lease(held.path)
    over = threading.Event()
    keep = _keeper(handle, lease, held)

    def renew() -> None:
        while not held.lost and not over.wait(LEASE_SECONDS / 3):
            keep()

    thread = threading.Thread(target=renew, name=f"lease {lease.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        keep()
        if not held.lost:
            lease.unlink(missing_ok=True)


def _keeper(handle: int, lease: Path, held: Held) -> Callable[[], None]:
    """Return what renews a lease, or finds that it was lost.

    The open file is touched, not the name: a lease of another in its place stays as it is.
    """
    renewed = time.monotonic()

    def keep() -> None:
        nonlocal renewed
        now = time.monotonic()
        held.lost = held.lost or now - renewed > LEASE_SECONDS or not _is_at(handle, lease)
        if not held.lost:
            with suppress(OSError):  # not reached now: tried again until the lease has run out
                os.utime(handle)
                renewed = now

    return keep
