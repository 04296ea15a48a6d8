"""The GPU of this process, as cupy sees it."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from pipeline.arrays.devices import HostBytes
from pipeline.arrays.libraries import Array, Place

Event = Any  # cupy.cuda.Event


class CupyDevice:
    """The current device: copies are made on a stream of their own."""

    out_of_memory: tuple[type[BaseException], ...] = (cupy.cuda.memory.OutOfMemoryError,)

    def __init__(self) -> None:
        self._computing = cupy.cuda.get_current_stream()
        self._copying = cupy.cuda.Stream(non_blocking=True)
        self._pool = cupy.get_default_memory_pool()
        self._peak_nbytes = 0

    def pinned(self, nbytes: int) -> HostBytes:
        """Return page-locked memory, of a pool."""
        return np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def empty(self, nbytes: int) -> Array:
        """Return uninitialised bytes."""
        return cupy.empty((nbytes,), np.uint8)

    def view(self, buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the same memory as an array."""
        return buffer.view(dtype).reshape(shape)

    def copy(self, host: HostBytes, buffer: Array) -> Event:
        """Copy on the copying stream."""
        buffer.set(host, stream=self._copying)
        return _recorded(self._copying)

    def after(self, event: Event) -> None:
        """Have the copying stream wait."""
        self._copying.wait_event(event)

    def hold(self, event: Event) -> None:
        """Have the computing stream wait."""
        self._computing.wait_event(event)

    def mark(self) -> Event:
        """Return an event of the computing stream."""
        return _recorded(self._computing)

    def cap(self, nbytes: int) -> None:
        """Limit the pool of device memory."""
        self._pool.set_limit(size=nbytes)

    def used_nbytes(self) -> int:
        """Return the bytes of the pool that are in use."""
        return int(self._pool.used_bytes())

    def peak_nbytes(self) -> int:
        """Return the most bytes of the pool: it keeps what it took until told to free it."""
        self._peak_nbytes = max(self._peak_nbytes, int(self._pool.total_bytes()))
        return self._peak_nbytes

    def free_unused(self) -> None:
        """Empty both pools of what no array uses."""
        self.peak_nbytes()
        self._pool.free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def _recorded(stream: Any) -> Event:
    event = cupy.cuda.Event(block=True, disable_timing=True)
    event.record(stream)
    return event


def opened(place: Place) -> CupyDevice:
    """Return the device of a place, which for cupy is the current one."""
    return CupyDevice()
