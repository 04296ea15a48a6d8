"""Starting processes that Ctrl-C and SIGTERM do not reach: whoever started them stops them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

_OF_THE_GROUP = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def shielded() -> Iterator[None]:
    """Start processes, and the threads that start more of them, that no Ctrl-C or SIGTERM reaches.

    Both are sent to whole process groups: this process gets them too, lets the work in flight end
    and stops the others in order. Blocked signals stay blocked in what is started; SIGKILL cannot
    be. What arrives meanwhile takes effect at the end.
    """
    resource_tracker.ensure_running()  # started later, it would unblock them
    arrived: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_GROUP)
    usual: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # other threads may be sent them
        for number in map(int, _OF_THE_GROUP):
            usual[number] = signal.signal(number, lambda which, _: arrived.append(which))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in usual.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
