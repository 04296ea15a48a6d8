"""Reading ahead: right data for fast and slow callers, errors in their turn, no thread left."""

import threading
import time

import numpy as np
import pytest

from pipeline.store.prefetch import SLOTS, prefetched


def helpers():
    return [t for t in threading.enumerate() if t.name.startswith("featfold-read")]


@pytest.mark.parametrize("jobs", [0, 1, 2, 3, 17])
@pytest.mark.parametrize(("caller", "reader"), [(0, 0), (0.002, 0), (0, 0.002)])
def test_every_job_is_seen_in_order_in_its_slot(jobs, caller, reader):
    memory = [np.zeros(1000) for _ in range(SLOTS)]

    def fill(slot, job):
        for start in range(0, 1000, 100):
            memory[slot][start : start + 100] = job
            time.sleep(reader / 10)

    seen = []
    for slot in prefetched(list(range(jobs)), fill):
        before = memory[slot].copy()
        time.sleep(caller)
        assert (memory[slot] == before).all()
        assert (before == before[0]).all()
        seen.append(int(before[0]))
    assert seen == list(range(jobs))
    assert not helpers()


def test_the_next_slot_is_filled_while_the_caller_computes():
    begun = [threading.Event() for _ in range(3)]
    slots = prefetched([0, 1, 2], lambda _, job: begun[job].set())
    next(slots)
    assert begun[1].wait(30)
    assert not begun[2].is_set()  # its memory is still the caller's
    slots.close()


@pytest.mark.parametrize("bad", [0, 1, 4])
def test_an_error_is_raised_in_its_turn_and_nothing_is_read_behind_it(bad):
    filled = []

    def fill(slot, job):
        filled.append(job)
        if job == bad:
            raise ValueError(f"job {job}")

    slots = prefetched(list(range(9)), fill)
    for _ in range(bad):
        next(slots)
    with pytest.raises(ValueError, match=f"job {bad}"):
        next(slots)
    assert max(filled) <= bad + 1
    assert not helpers()


def test_a_caller_that_leaves_early_leaves_no_thread():
    slots = prefetched(list(range(9)), lambda *_: time.sleep(0.005))
    next(slots)
    assert helpers()
    slots.close()
    assert not helpers()
    with pytest.raises(KeyError):
        fail_in_the_middle()
    assert not helpers()


def fail_in_the_middle():
    for _ in prefetched(list(range(9)), lambda *_: None):
        raise KeyError
