"""Devices: memory beyond a bus, filled while the arrays that are there already are computed with.

A device has two streams, which do in order what they are given and do not wait for each other
unless told to: the computing one, where the array library runs, and the copying one.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import numpy as np

from pipeline.arrays.libraries import Array, Place

SLOTS = 3
"""Chunks that a fold holds on a device: one computed with, one copied, one read."""

HostBytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Event(Protocol):
    """A moment of a stream: all that it had been given by then is done."""

    def synchronize(self) -> None:
        """Return once the moment has come."""
        ...


class Device(Protocol):
    """The memory of one device, and the copies into it; numbers are those of this process."""

    @property
    def out_of_memory(self) -> tuple[type[BaseException], ...]:
        """What the library raises where the device has no room."""
        ...

    def pinned(self, nbytes: int) -> HostBytes:
        """Return memory of the host that copies may be made from while it computes."""
        ...

    def empty(self, nbytes: int) -> Array:
        """Return bytes (uint8) on the device, uninitialised."""
        ...

    def view(self, buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return bytes on the device as an array, once they are there."""
        ...

    def copy(self, host: HostBytes, buffer: Array) -> Event:
        """Have the copying stream copy pinned memory; return when that is done."""
        ...

    def after(self, event: Event) -> None:
        """Have the copying stream wait."""
        ...

    def hold(self, event: Event) -> None:
        """Have the computing stream wait; the host does not."""
        ...

    def mark(self) -> Event:
        """Return when the computing stream has done what it was given so far."""
        ...

    def cap(self, nbytes: int) -> None:
        """Limit the memory that the library takes of the device."""
        ...

    def used_nbytes(self) -> int:
        """Return the bytes of arrays."""
        ...

    def peak_nbytes(self) -> int:
        """Return the most bytes that the library ever took of the device at once."""
        ...

    def free_unused(self) -> None:
        """Give memory back that no array uses."""
        ...


_LIBRARIES = ("cupy", "torch")
OPENED: dict[Place, Device] = {}
"""Devices in use by this process."""


def of(place: Place) -> Device | None:
    """Return the device of a place, opened when it is first asked for; None where it has none."""
    if place not in OPENED and place.library in _LIBRARIES:
        module = importlib.import_module(f"pipeline.arrays.{place.library}_device")
        OPENED[place] = module.opened(place)
    return OPENED.get(place)
