"""Feeding: the chunks of a block are brought to where a worker computes, ahead of the computing.

On a device a chunk goes through a slot: page-locked memory of the host, and as much on the device.
While one slot is computed with, the next is copied and the one after it is read, so that a device
never holds more than a few chunks, and waits for the slowest of the three alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from pipeline.arrays import Array, Place, devices
from pipeline.arrays.devices import Device, Event
from pipeline.chunk import Arena, Chunk

ALIGNMENT_NBYTES = 256
"""Where an array may begin: kernels read whole lines of memory."""
THREADS = 4
"""Threads that write to page-locked memory: one alone is slower than a bus."""
THREAD_NBYTES = 2 * 2**20
"""Bytes that are worth a thread."""

Host = np.ndarray[Any, Any]


def fed(
    chunks: Iterator[Chunk], place: Place, arena: Arena, *, ahead: bool = True
) -> Generator[Chunk, None, None]:
    """Yield chunks with their arrays at ``place``, and scratch buffers there.

    A chunk is valid until the next is asked for. To a device its bytes go as they were read, once;
    unless ``ahead`` is false, a thread reads chunks while others are computed with. What reading
    raises is raised here, and the thread has ended when the iterator is exhausted or closed.
    """
    device = devices.of(place)
    if device is None:
        for chunk in chunks:
            chunk.move({name: place.put(rows) for name, rows in chunk.arrays.items()}, arena)
            yield chunk
            del chunk
        return
    read = _read_ahead if ahead else _read_in_turn
    with ThreadPoolExecutor(THREADS, thread_name_prefix="featfold-feed") as writers:
        slots = [_Slot(device, writers) for _ in range(devices.SLOTS)]
        try:
            with closing(read(chunks, slots)) as filled:
                for slot in filled:
                    yield slot.take(arena)
                    slot.leave()
        finally:
            for slot in slots:
                slot.settle()


class _Part(NamedTuple):
    """Where the rows of an array are in a slot."""

    bytes: slice
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _Slot:
    """Memory on both sides of the bus for the arrays of one chunk."""

    def __init__(self, device: Device, writers: ThreadPoolExecutor) -> None:
        self.device, self.writers = device, writers
        self.nbytes = 0
        self.pinned: Any = None
        self.buffer: Array = None
        self.parts: dict[str, _Part] = {}
        self.chunk: Chunk | None = None
        self.copies: list[Event] = []
        self.left: Event | None = None
        """When the chunk before this one is done with."""

    def fill(self, chunk: Chunk) -> None:
        """Take the rows of a chunk, and have them copied; the host's need not be kept."""
        self.settle()
        self.parts.clear()
        end = 0
        for name, rows in chunk.arrays.items():
            start = -(-end // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
            end = start + rows.nbytes
            self.parts[name] = _Part(slice(start, end), rows.shape, rows.dtype)
        self._grow(max(1, end))
        if self.left is not None:
            self.device.after(self.left)
        for name, part in self.parts.items():
            host = self.pinned[part.bytes]
            self._write(host.view(part.dtype).reshape(part.shape), chunk.arrays[name])
            self.copies.append(self.device.copy(host, self.buffer[part.bytes]))
        chunk.arrays.clear()
        self.chunk = chunk

    def _write(self, host: Host, rows: Host) -> None:
        step = max(1, math.ceil(len(rows) * THREAD_NBYTES / max(1, rows.nbytes)))
        parts = [slice(start, start + step) for start in range(0, len(rows), step)]
        if len(parts) < 2:
            np.copyto(host, rows)
            return
        for written in [self.writers.submit(np.copyto, host[p], rows[p]) for p in parts]:
            written.result()

    def _grow(self, nbytes: int) -> None:
        if nbytes <= self.nbytes:
            return
        if self.left is not None:
            self.left.synchronize()
        self.pinned = self.buffer = None
        self.nbytes = nbytes
        self.pinned, self.buffer = self.device.pinned(nbytes), self.device.empty(nbytes)
        # The library hands out memory in the order of the computing stream alone.
        self.device.after(self.device.mark())

    def take(self, arena: Arena) -> Chunk:
        """Return the chunk with its arrays on the device: what computes next waits for them."""
        assert self.chunk is not None
        chunk, self.chunk = self.chunk, None
        for event in self.copies:
            self.device.hold(event)
        views = {
            name: self.device.view(self.buffer[part.bytes], part.shape, part.dtype)
            for name, part in self.parts.items()
        }
        chunk.move(views, arena)
        return chunk

    def leave(self) -> None:
        """Say that nobody computes with the chunk any more."""
        self.left = self.device.mark()

    def settle(self) -> None:
        """Wait for the copies: their memory may be written to again."""
        for event in self.copies:
            event.synchronize()
        self.copies.clear()


def _read_in_turn(chunks: Iterator[Chunk], slots: Sequence[_Slot]) -> Generator[_Slot, None, None]:
    """Yield the slot of each chunk, filled by this thread when it is asked for."""
    for turn, chunk in enumerate(chunks):
        slot = slots[turn % len(slots)]
        slot.fill(chunk)
        del chunk
        yield slot


def _read_ahead(chunks: Iterator[Chunk], slots: Sequence[_Slot]) -> Generator[_Slot, None, None]:
    """Yield the slot of each chunk, which a thread fills as soon as one is free."""
    free: SimpleQueue[_Slot | None] = SimpleQueue()
    ready: SimpleQueue[_Slot | BaseException | None] = SimpleQueue()

    def read() -> None:
        try:
            for chunk in chunks:
                slot = free.get()
                if slot is None:
                    return
                slot.fill(chunk)
                del chunk  # its rows, before the next are read
                ready.put(slot)
            ready.put(None)
        except BaseException as error:  # for the thread that computes to raise
            ready.put(error)

    for slot in slots:
        free.put(slot)
    thread = threading.Thread(
        target=copy_context().run, args=(read,), name="featfold-feed", daemon=True
    )
    thread.start()
    try:
        while (filled := ready.get()) is not None:
            if isinstance(filled, BaseException):
                raise filled
            yield filled
            free.put(filled)
    finally:
        free.put(None)
        thread.join()
