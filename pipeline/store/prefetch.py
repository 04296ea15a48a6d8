"""Reading ahead: one helper thread fills the next slot while the caller computes on this one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

SLOTS = 2
"""Slots whose memory is used in turn: the caller's, and the one that is being filled."""


def prefetched(jobs: Sequence[T], fill: Callable[[int, T], None]) -> Generator[int, None, None]:
    """Yield the slot (0 or 1) of each job after ``fill(slot, job)`` has run in the helper thread.

    A slot is the caller's until the next one is asked for. What ``fill`` raises is raised here, in
    its turn; the thread has ended when the iterator is exhausted, fails or is closed.
    """
    if len(jobs) < SLOTS:
        for job in jobs:
            fill(0, job)
            yield 0
        return
    with _Helper() as helper:
        filling = helper.submit(fill, 0, jobs[0])
        for turn in range(len(jobs)):
            filled = filling
            if turn + 1 < len(jobs):  # its slot is free: the caller has come back for another
                filling = helper.submit(fill, (turn + 1) % SLOTS, jobs[turn + 1])
            filled.result()
            yield turn % SLOTS


class _Helper(ThreadPoolExecutor):
    """One thread that drops what it has not begun when its user leaves."""

    def __init__(self) -> None:
        super().__init__(max_workers=1, thread_name_prefix="featfold-read")

    def __exit__(self, *_: object) -> None:
        self.shutdown(wait=True, cancel_futures=True)
