"""A GPU, as torch sees it; or the host, in tests: what is true of copies there is true at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pipeline.arrays.devices import Event, HostBytes
from pipeline.arrays.libraries import Array, Place


def _viewed(buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return buffer.view(getattr(torch, dtype.name)).view(shape)


class TorchGPU:
    """A CUDA device: copies are made on a stream of their own."""

    out_of_memory: tuple[type[BaseException], ...] = (torch.OutOfMemoryError,)

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._computing = torch.cuda.current_stream(device)
        self._copying = torch.cuda.Stream(device)
        torch.set_float32_matmul_precision("highest")  # no TF32: float32 keeps its digits

    def pinned(self, nbytes: int) -> HostBytes:
        """Return page-locked memory, of a pool."""
        host: HostBytes = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
        return host

    def empty(self, nbytes: int) -> Array:
        """Return uninitialised bytes."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def view(self, buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the same memory as a tensor."""
        return _viewed(buffer, shape, dtype)

    def copy(self, host: HostBytes, buffer: Array) -> Event:
        """Copy on the copying stream."""
        with torch.cuda.stream(self._copying):
            buffer.copy_(torch.from_numpy(host), non_blocking=True)
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
        total = torch.cuda.get_device_properties(self._device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total), self._device)

    def used_nbytes(self) -> int:
        """Return the bytes of tensors."""
        return int(torch.cuda.memory_allocated(self._device))

    def peak_nbytes(self) -> int:
        """Return the most bytes of the pool."""
        return int(torch.cuda.max_memory_reserved(self._device))

    def free_unused(self) -> None:
        """Empty the pool of what no tensor uses."""
        torch.cuda.empty_cache()


def _recorded(stream: Any) -> Event:
    event: Event = torch.cuda.Event(blocking=True)
    stream.record_event(event)
    return event


class TorchHost:
    """The memory of the host: a copy is done when it returns, and nothing is measured."""

    out_of_memory: tuple[type[BaseException], ...] = (torch.OutOfMemoryError,)

    def pinned(self, nbytes: int) -> HostBytes:
        """Return memory that is not pinned."""
        return np.empty(nbytes, np.uint8)

    def empty(self, nbytes: int) -> Array:
        """Return uninitialised bytes."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def view(self, buffer: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return the same memory as a tensor."""
        return _viewed(buffer, shape, dtype)

    def copy(self, host: HostBytes, buffer: Array) -> Event:
        """Copy now."""
        buffer.copy_(torch.from_numpy(host))
        return _Done()

    def after(self, event: Event) -> None:
        """Wait for nothing: there is one order."""

    hold = after

    def mark(self) -> Event:
        """Return a moment that has come."""
        return _Done()

    def cap(self, nbytes: int) -> None:
        """Limit nothing."""

    def used_nbytes(self) -> int:
        """Return 0."""
        return 0

    peak_nbytes = used_nbytes

    def free_unused(self) -> None:
        """Keep nothing, as ever."""


class _Done:
    def synchronize(self) -> None:
        pass


def opened(place: Place) -> TorchGPU | TorchHost:
    """Return the device of a place."""
    device = torch.device(place.device or "cpu")
    return TorchGPU(device) if device.type == "cuda" else TorchHost()
