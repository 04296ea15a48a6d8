"""A wish to stop: work in flight is finished and kept, nothing new begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import StoppedError

_HEEDED, _ASKED = threading.Event(), threading.Event()


@contextmanager
def heeded() -> Iterator[None]:
    """Heed a wish to stop within: what runs here calls :func:`check` now and then."""
    _HEEDED.set()
    try:
        yield
    finally:
        _HEEDED.clear()
        _ASKED.clear()


def request() -> bool:
    """Ask the run of this process to stop; False where nobody heeds it, or for a second time."""
    if not _HEEDED.is_set() or requested():
        return False
    _ASKED.set()
    return True


def requested() -> bool:
    """Tell whether the run was asked to stop."""
    return _ASKED.is_set()


def check() -> None:
    """Raise :class:`StoppedError` if the run was asked to stop."""
    if requested():
        raise StoppedError(
            "stopped as asked, after the blocks in flight; what was finished is kept: run the "
            "same again to go on"
        )
