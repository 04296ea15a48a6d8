"""The fake device measures what is there, and notices what a real one would not forgive."""

from __future__ import annotations

import array_api_strict as xp
import numpy as np
import pytest

from pipeline import arrays
from pipeline.arrays import devices
from pipeline.testing.fake_device import PLACE, FakeDevice, FakeOutOfMemory, fake_device


def test_memory_is_counted_once_for_as_long_as_somebody_holds_it() -> None:
    with fake_device() as device:
        x = PLACE.put(np.ones((4, 8)))
        part = xp.reshape(x[1:, ...], (-1,))
        assert device.used_nbytes() == 256
        y = x + x
        assert device.used_nbytes() == 512
        del x, y
        assert device.used_nbytes() == 256  # a part holds the whole
        del part
        assert device.used_nbytes() == 0
        assert device.peak_nbytes() == 512
        device.reset_peak()
        assert device.peak_nbytes() == 0


def test_what_is_on_the_host_does_not_count() -> None:
    with fake_device() as device:
        host = xp.ones((1000,))
        assert arrays.to_host(host + host).sum() == 2000
        assert device.peak_nbytes() == 0
        assert device.fetched_nbytes == 0


def test_bytes_are_counted_each_way() -> None:
    with fake_device() as device:
        x = PLACE.put(np.ones(10))
        arrays.like(np.ones(5), x)
        assert device.put_nbytes == 120
        arrays.to_host(x + x)
        assert device.fetched_nbytes == 80
        assert device.staged_nbytes == 0


def test_there_is_no_more_memory_than_allowed() -> None:
    with fake_device(limit_nbytes=100) as device:
        x = PLACE.put(np.ones(8))
        with pytest.raises(FakeOutOfMemory, match="64 bytes beside 64, of 100"):
            x + x
        device.cap(128)
        assert (x + x).shape == (8,)


def test_the_device_is_there_only_while_it_is_asked_for() -> None:
    assert devices.of(PLACE) is None
    with fake_device() as device:
        assert devices.of(PLACE) is device
    assert devices.of(PLACE) is None
    assert devices.of(arrays.HOST) is None
    assert not arrays.HOST.on_device
    assert PLACE.on_device


def test_a_copy_is_made_when_somebody_waits_for_it_and_the_youngest_first() -> None:
    with fake_device() as device:
        buffer, pinned = device.empty(8), device.pinned(8)
        first = device.copy(pinned[:4], buffer[:4])
        pinned[4:] = 7
        second = device.copy(pinned[4:], buffer[:4])
        first.synchronize()
        np.testing.assert_array_equal(arrays.to_host(buffer), np.full(8, 0xA5, np.uint8))
        second.synchronize()  # made before the first


def test_copies_come_after_what_they_were_told_to_wait_for() -> None:
    with fake_device() as device:
        buffer, pinned = device.empty(4), np.zeros(4, np.uint8)
        device.hold(copy := device.copy(pinned, buffer))
        copy.synchronize()
        device.after(device.mark())
        device.copy(np.ones(4, np.uint8), buffer).synchronize()


def test_memory_that_changes_while_it_is_computed_with_is_a_fault() -> None:
    def copied_twice(device: FakeDevice) -> None:
        buffer = device.empty(4)
        device.hold(copy := device.copy(np.zeros(4, np.uint8), buffer))
        copy.synchronize()
        device.mark()
        device.copy(np.ones(4, np.uint8), buffer).synchronize()

    with pytest.raises(AssertionError, match="computed with"), fake_device() as device:
        copied_twice(device)


def test_copies_that_nobody_waits_for_are_a_fault() -> None:
    with pytest.raises(AssertionError, match="1 copies were not waited for"), fake_device() as d:
        d.copy(np.zeros(4, np.uint8), d.empty(4))
