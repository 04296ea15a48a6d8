"""Locks in an object store: an object that its holder renews, and others take over once stale.

The service creates it for one taker only (``If-None-Match``) and replaces it only for who has seen
its latest version (``If-Match``). How old it is is told by the clock of the service alone: beside
the time of the lock stands that of an object written now.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from pipeline.errors import ConfigError, ExistsRefusedError, FeatfoldError, LockedError
from pipeline.locks import LEASE_SECONDS, MARGIN_SECONDS
from pipeline.store.object_place import ObjectPlace, Seen

_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.2, 2.0
_SAME_SECONDS = 60.0
"""How far the start of one process may seem apart, as the clock of its machine is set."""


@dataclass
class HeldObject:
    """A lock that this process holds."""

    place: ObjectPlace
    what: str
    identity: dict[str, Any] = field(default_factory=lambda: _identity())
    lost: bool = False

    def content(self) -> bytes:
        """Return the next version of the lock: no two are alike, so that each is told apart."""
        self.identity["renewed"] += 1
        return json.dumps(self.identity).encode()

    def is_ours(self, seen: Seen | None) -> bool:
        """Tell whether a lock that was found is this one."""
        return seen is not None and _told_by(seen).get("nonce") == self.identity["nonce"]

    def check(self) -> None:
        """Raise :class:`LockedError` if another process has taken the lock over."""
        if self.lost:
            raise LockedError(
                f"{self.what}: the lock {self.place} was not renewed in time, and another process "
                "has taken over; finished work is kept, run the same again"
            )


def check_service(place: ObjectPlace) -> None:
    """Raise :class:`ConfigError` for a service that writes whatever the condition of a write is.

    Of two takers of a lock, both would hold it there. Tried with an object beside ``place``.
    """
    probe = place.with_name(f".{place.name}.{uuid.uuid4().hex}.probe")
    probe.write_bytes(b"first", new=True)
    try:
        first = probe.seen()
        version = {} if first is None else first.version
        if version:
            probe.write_bytes(b"second", over=version)
        for condition in ({"new": True}, {"over": version or {"e_tag": "none"}}):
            with suppress(ExistsRefusedError):
                probe.write_bytes(b"third", **condition)
                raise ConfigError(
                    f"{place}: the service ignores conditions of writes (If-None-Match, If-Match), "
                    "and without them two writers would hold one lock; write to a folder, or to a "
                    "service that has them"
                )
    finally:
        probe.unlink()


@contextmanager
def hold(place: ObjectPlace, what: str, timeout_seconds: float = 0.0) -> Iterator[HeldObject]:
    """Hold a lock against every other holder, and delete it at the end.

    Raises :class:`LockedError`, which says who holds it, after ``timeout_seconds``, or at the end
    if it was lost meanwhile.
    """
    held = HeldObject(place, what)
    deadline, wait = time.monotonic() + timeout_seconds, _POLL_SECONDS
    while not _take(held):
        if time.monotonic() >= deadline:
            raise LockedError(_held_by(held, timeout_seconds))
        time.sleep(wait)
        wait = min(2 * wait, _LONGEST_POLL_SECONDS)
    with _renewed(held):
        yield held
    held.check()


@contextmanager
def hold_shared(
    stem: ObjectPlace, what: str, part: tuple[int, int] | None = None
) -> Iterator[HeldObject]:
    """Hold ``what`` alone, or as part (i, n) beside the other parts: as
    :func:`pipeline.locks.hold_shared` does.
    """
    whole = stem.with_name(f"{stem.name}.lock")
    if part is None:
        with hold(whole, what) as held:
            _refuse_beside(_parts(stem), what)
            yield held
    else:
        own = stem.with_name(f"{stem.name}.part-{part[0]}-of-{part[1]}.lock")
        with hold(own, f"part {part[0]}/{part[1]} of {what}") as held:
            # Parts of another number may have blocks in common with ours.
            mine = f"-of-{part[1]}.lock"
            crossing = [place for place in _parts(stem) if not place.name.endswith(mine)]
            _refuse_beside([whole, *crossing], what)
            yield held


def _parts(stem: ObjectPlace) -> list[ObjectPlace]:
    """Return the locks of parts, without the objects beside them that only tell the time."""
    names = [name for name in stem.parent.children() if name.startswith(f"{stem.name}.part-")]
    return [stem.with_name(name) for name in names if name.endswith(".lock")]


def _refuse_beside(others: list[ObjectPlace], what: str) -> None:
    for place in others:
        seen = place.seen()
        if seen is not None and not _is_stale(place, seen):
            raise LockedError(_held_by(HeldObject(place, what), 0.0))


def _take(held: HeldObject) -> bool:
    """Create the lock, or replace a stale one; tell whether it is ours now."""
    with suppress(ExistsRefusedError):
        held.place.write_bytes(held.content(), new=True)
        return True
    seen = held.place.seen()
    if seen is None:
        return False  # freed meanwhile: the next try may have it
    if not _is_stale(held.place, seen):
        return False
    with suppress(ExistsRefusedError):
        held.place.write_bytes(held.content(), over=seen.version)
        return True
    return False


def _is_stale(place: ObjectPlace, seen: Seen) -> bool:
    """Tell whether the holder has ended on this machine, or has not renewed its lock in time."""
    known = _told_by(seen)
    if known.get("machine") == _machine() and not _runs(known):
        return True
    probe = place.with_name(f"{place.name}.{uuid.uuid4().hex}.now")
    probe.write_bytes(b"")
    try:
        now = probe.seen()
    finally:
        probe.unlink()
    age = 0.0 if now is None else (now.written - seen.written).total_seconds()
    return age > LEASE_SECONDS + MARGIN_SECONDS


def _held_by(held: HeldObject, timeout_seconds: float) -> str:
    """Say who holds a lock, as it tells itself, and what to do."""
    waited = f" (waited {timeout_seconds:g} s)" if timeout_seconds else ""
    seen = held.place.seen()
    known = {} if seen is None else _told_by(seen)
    who = "another process"
    with suppress(KeyError):
        who = f"process {known['pid']} on {known['host']} since {known['since']}"
    return (
        f"{held.what}: held by {who}{waited}; try again when it has ended; where it was killed, "
        f"that is known {LEASE_SECONDS + MARGIN_SECONDS:.0f} s later (lock: {held.place})"
    )


def _identity() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began": psutil.Process().create_time(),
        "machine": _machine(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "nonce": uuid.uuid4().hex,
        "renewed": 0,
    }


def _machine() -> str:
    """Name what numbers processes: one boot of one machine, and the container in it."""
    names = [socket.gethostname()]
    with suppress(OSError):
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        names.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(names)


def _runs(known: dict[str, Any]) -> bool:
    """Tell whether the process that took a lock on this machine still runs."""
    try:
        found = psutil.Process(int(known["pid"]))
        dead = found.status() == psutil.STATUS_ZOMBIE
        return not dead and abs(found.create_time() - float(known["began"])) < _SAME_SECONDS
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, KeyError, TypeError, ValueError):
        return True


def _told_by(seen: Seen) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(seen.content)
        if isinstance(found, dict):
            return found
    return {}


@contextmanager
def _renewed(held: HeldObject) -> Iterator[None]:
    """Renew a lock from a thread; delete it at the end, unless it was lost."""
    over = threading.Event()

    def renew() -> None:
        while not held.lost and not over.wait(LEASE_SECONDS / 3):
            with suppress(FeatfoldError, OSError):  # not reached now: tried again in a while
                _renew(held)

    thread = threading.Thread(target=renew, name=f"lock {held.place.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if not held.lost:
            _free(held)


def _renew(held: HeldObject) -> None:
    """Write the next version of a lock, or find that it is another's.

    A service that was away for longer than a lease has not lost it: nobody else could take it.
    """
    seen = held.place.seen()
    held.lost = not held.is_ours(seen)
    if seen is not None and not held.lost:
        try:
            held.place.write_bytes(held.content(), over=seen.version)
        except ExistsRefusedError:
            held.lost = True


def _free(held: HeldObject) -> None:
    seen = held.place.seen()
    held.lost = not held.is_ours(seen)
    if not held.lost:
        held.place.unlink()
