"""A device for tests, that measures its memory and is as late as a device may be.

Its arrays are those of ``array_api_strict``, whose devices refuse to be mixed with the host.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pipeline.arrays import Array, Place, devices
from pipeline.arrays.devices import HostBytes

PLACE = Place("array_api_strict", "device1")
"""Where the device is."""
STALE = 0xA5
"""What memory holds that nothing was copied to."""

Memory = np.ndarray[Any, Any]


class FakeOutOfMemory(Exception):  # noqa: N818 - as libraries call theirs
    """There is no room on the device."""


class FakeDevice:
    """A device whose computing is done at once, and whose copies when somebody waits for them.

    Copies are then made out of order, the youngest first, as far as what they must come ``after``
    allows. What a device cannot forgive is a fault: pinned memory that changes before its copy is
    known to be done, copies to memory that is computed with, and copies that nobody waits for.
    """

    out_of_memory: tuple[type[BaseException], ...] = (FakeOutOfMemory,)

    def __init__(self, limit_nbytes: int = 2**62) -> None:
        self.limit_nbytes = limit_nbytes
        self.live_nbytes = self.most_nbytes = 0
        self.staged_nbytes = self.put_nbytes = self.fetched_nbytes = 0
        """Bytes that were copied by the copying stream, to the device, and from it, one by one."""
        self.events: list[str] = []
        """What happened, in order: ``copy``, ``hold``, ``mark``, ``after``."""
        self.happened = threading.Condition(threading.RLock())
        self.faults: list[str] = []
        self._owners: dict[int, weakref.ref[Memory]] = {}
        self._pending: list[_Copy] = []
        self._unknown: list[_Copy] = []
        self._marks: list[_Mark] = []
        self._awaited: list[_Mark] = []
        self._in_use: dict[int, list[_Copy]] = {}

    # The protocol of devices

    def pinned(self, nbytes: int) -> HostBytes:
        """Return memory of the host."""
        return np.full(nbytes, STALE, np.uint8)

    def empty(self, nbytes: int) -> Array:
        """Return bytes on the device."""
        return _strict(np.full(nbytes, STALE, np.uint8))

    def view(self, buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the same memory as an array; of float16, which the library lacks, a wide copy."""
        rows = buffer._array.view(dtype).reshape(shape)
        return _strict(rows.astype(np.float32) if dtype == np.float16 else rows)

    def copy(self, host: HostBytes, buffer: Array) -> _Copy:
        """Copy later."""
        copy = _Copy(self, host, buffer, tuple(self._awaited))
        with self.happened:
            self.staged_nbytes += host.nbytes
            self._pending.append(copy)
            self._unknown.append(copy)
            self._say("copy")
        return copy

    def after(self, event: Any) -> None:
        """Have copies wait."""
        with self.happened:
            self._awaited = [mark for mark in self._awaited if mark in self._marks] + [event]
            self._say("after")

    def hold(self, event: Any) -> None:
        """Have a copy made, and computed with by this thread until its next mark."""
        with self.happened:
            self._make(event)
            self._in_use.setdefault(threading.get_ident(), []).append(event)
            self._say("hold")

    def mark(self) -> _Mark:
        """Return when this thread has computed with what it held."""
        with self.happened:
            mark = _Mark(self, self._in_use.pop(threading.get_ident(), []))
            self._marks.append(mark)
            self._say("mark")
        return mark

    def cap(self, nbytes: int) -> None:
        """Limit the memory of the device."""
        self.limit_nbytes = nbytes

    def used_nbytes(self) -> int:
        """Return the bytes of arrays."""
        return self.live_nbytes

    def peak_nbytes(self) -> int:
        """Return the most bytes of arrays."""
        return self.most_nbytes

    def free_unused(self) -> None:
        """Keep nothing, as ever."""

    # What it does when

    def _say(self, what: str) -> None:
        self.events.append(what)
        self.happened.notify_all()

    def _make(self, wanted: _Copy) -> None:
        for copy in (*reversed([c for c in self._pending if c is not wanted]), wanted):
            if copy in self._pending:
                for mark in copy.after:
                    self._pass(mark)
                if any(copy.overlaps(used) for used in self._computed_with()):
                    self.faults.append("memory was copied to while it was computed with")
                copy.make()
                self._pending.remove(copy)

    def _computed_with(self) -> Iterator[_Copy]:
        for copies in (*self._in_use.values(), *(mark.in_use for mark in self._marks)):
            yield from copies

    def _know(self, copy: _Copy) -> None:
        self._make(copy)
        if copy in self._unknown:
            self._unknown.remove(copy)
            if _digest(copy.source) != copy.digest:
                self.faults.append("pinned memory changed before its copy was known to be done")

    def _pass(self, mark: _Mark) -> None:
        """Let the computing stream come to a mark, and to those before it."""
        if mark in self._marks:
            del self._marks[: self._marks.index(mark) + 1]

    def _end(self) -> None:
        if self._unknown:
            self.faults.append(f"{len(self._unknown)} copies were not waited for")
        for copy in list(self._unknown):
            self._know(copy)

    # What is measured

    def reset_peak(self) -> None:
        """Measure the most bytes from now on."""
        self.most_nbytes = self.live_nbytes

    def meter(self, array: Memory) -> None:
        """Count the memory behind an array until it is let go of."""
        array = _owner(array)
        key, nbytes = id(array), array.nbytes
        with self.happened:
            if key in self._owners:
                return
            if self.live_nbytes + nbytes > self.limit_nbytes:
                raise FakeOutOfMemory(
                    f"{nbytes} bytes beside {self.live_nbytes}, of {self.limit_nbytes}"
                )
            self.live_nbytes += nbytes
            self.most_nbytes = max(self.most_nbytes, self.live_nbytes)
            self._owners[key] = weakref.ref(array, lambda _: self._let_go(key, nbytes))

    def _let_go(self, key: int, nbytes: int) -> None:
        with self.happened:
            del self._owners[key]
            self.live_nbytes -= nbytes


class _Copy:
    """A copy to be made, as an event; once made it keeps no memory of the device."""

    def __init__(
        self, device: FakeDevice, source: HostBytes, buffer: Array, after: tuple[_Mark, ...]
    ) -> None:
        self.device, self.source, self.after = device, source, after
        self.digest = _digest(source)
        self.target: Memory | None = buffer._array
        whole = _owner(buffer._array)
        self.whole = weakref.ref(whole)
        self.start = buffer._array.ctypes.data - whole.ctypes.data

    def make(self) -> None:
        """Copy now."""
        assert self.target is not None
        self.target[...] = self.source
        self.target = None

    def overlaps(self, other: _Copy) -> bool:
        """Tell whether both go to the same memory."""
        first, second = sorted((self, other), key=lambda copy: copy.start)
        near = second.start < first.start + first.source.nbytes
        return near and self.whole() is other.whole() is not None

    def synchronize(self) -> None:
        """Make it, and know that it is done."""
        with self.device.happened:
            self.device._know(self)


class _Mark:
    """A moment of the computing stream, and the copies that were computed with before it."""

    def __init__(self, device: FakeDevice, in_use: list[_Copy]) -> None:
        self.device, self.in_use = device, in_use

    def synchronize(self) -> None:
        """Let it come."""
        with self.device.happened:
            self.device._pass(self)


def _owner(memory: Memory) -> Memory:
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    return memory


def _digest(memory: Memory) -> int:
    return zlib.crc32(memory.tobytes())


def _strict(memory: Memory) -> Array:
    import array_api_strict

    empty = array_api_strict.empty(0, device=array_api_strict.Device(PLACE.device))
    return empty._new(memory, device=empty.device)


@contextmanager
def fake_device(limit_nbytes: int = 2**62) -> Iterator[FakeDevice]:
    """Yield the device at :data:`PLACE`: all arrays there are measured, and chunks fed to it.

    Raises AssertionError at the end for its faults.
    """
    import array_api_strict as strict

    fake, home = FakeDevice(limit_nbytes), strict.Device(PLACE.device)
    kind: Any = type(strict.empty(0))
    new, to_device, asarray = kind._new, kind.to_device, strict.asarray

    def metered(memory: Any, /, device: Any) -> Array:
        array = new(memory, device)
        if array.device == home:
            fake.meter(array._array)
        return array

    def put(x: Any, /, **named: Any) -> Array:
        if isinstance(x, np.ndarray) and named.get("device") == home:
            fake.put_nbytes += x.nbytes
            x = x.copy()
        return asarray(x, **named)

    def fetched(array: Array, device: Any, /, **named: Any) -> Array:
        if array.device == home and device != home:
            fake.fetched_nbytes += array._array.nbytes
            return new(array._array.copy(), device)
        return to_device(array, device, **named)

    kind._new, kind.to_device, strict.asarray = staticmethod(metered), fetched, put
    devices.OPENED[PLACE] = fake
    try:
        yield fake
    finally:
        kind._new, kind.to_device, strict.asarray = new, to_device, asarray
        del devices.OPENED[PLACE]
    with fake.happened:
        fake._end()
    assert not fake.faults, f"the device was misused: {fake.faults}"
