"""The device of cupy: what is asked of the library, as its documentation names it.

cupy computes where there is a GPU alone: a few lines with its names stand for it here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.arrays import Place, devices
from pipeline.chunk import Arena
from pipeline.feeding import fed
from pipeline.testing import recipes


class OutOfMemoryError(MemoryError):
    """As cupy.cuda.memory.OutOfMemoryError."""


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.recorded: Any = None

    def record(self, stream: Any = None) -> None:
        self.recorded = stream

    def synchronize(self) -> None:
        assert self.recorded is not None


class Stream:
    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.non_blocking, self.waited = non_blocking, list[Any]()

    def wait_event(self, event: Event) -> None:
        self.waited.append(event.recorded)


class Array(np.ndarray):  # type: ignore[type-arg]
    def set(self, arr: Any, stream: Any = None) -> None:
        assert stream.non_blocking
        assert (self.dtype, self.shape) == (arr.dtype, arr.shape)
        self[...] = arr


class Pool:
    taken, limit = 1000, 0

    def total_bytes(self) -> int:
        return self.taken

    def used_bytes(self) -> int:
        return self.taken // 2

    def free_all_blocks(self) -> None:
        self.taken = 0

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        assert fraction is None
        self.limit = size or 0


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module, pool, computing = ModuleType("cupy"), Pool(), Stream(null=True)
    names = {
        "empty": lambda shape, dtype: np.empty(shape, dtype).view(Array),
        "get_default_memory_pool": lambda: pool,
        "get_default_pinned_memory_pool": lambda: SimpleNamespace(free_all_blocks=lambda: None),
        "cuda": SimpleNamespace(
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            get_current_stream=lambda: computing,
            alloc_pinned_memory=lambda size: bytearray(size + 100),  # pools round up
            Stream=Stream,
            Event=Event,
        ),
    }
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.delitem(sys.modules, "pipeline.arrays.cupy_device", raising=False)
    monkeypatch.setattr(devices, "OPENED", {})
    yield module
    sys.modules.pop("pipeline.arrays.cupy_device", None)


def test_chunks_are_copied_on_a_stream_of_their_own(cupy: Any) -> None:
    data = recipes.labelled(60)
    split = data.cut([[7] * 8 + [4]])
    for chunk in fed(split.read(split.blocks[0], frozenset(data.arrays)), Place("cupy"), Arena()):
        for name, rows in data.arrays.items():
            found = np.asarray(chunk[name])
            np.testing.assert_array_equal(found, rows[chunk.start : chunk.stop], strict=True)
            assert isinstance(chunk[name], Array)
    computing = cupy.cuda.get_current_stream()
    assert len(computing.waited) == 9 * len(data.arrays)  # every copy is waited for
    assert all(stream.non_blocking for stream in computing.waited)


def test_the_pool_is_capped_and_measured(cupy: Any) -> None:
    device = devices.of(Place("cupy"))
    assert device is not None
    assert device is devices.of(Place("cupy"))
    device.cap(5000)
    assert cupy.get_default_memory_pool().limit == 5000
    assert (device.used_nbytes(), device.peak_nbytes()) == (500, 1000)
    device.free_unused()
    assert (device.used_nbytes(), device.peak_nbytes()) == (0, 1000)
    assert device.out_of_memory == (OutOfMemoryError,)
