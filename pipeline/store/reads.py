"""How often this process read each stored chunk: what tests and reports hold a pass to."""

from __future__ import annotations

from collections import Counter
from threading import Lock

READS: Counter[tuple[str, str, int]] = Counter()
"""Times a stored chunk was opened, by (split, array, chunk index)."""
_COUNTING = Lock()


def reset_reads() -> None:
    """Start counting from zero."""
    READS.clear()


def count(split: str, array: str, index: int) -> None:
    """Count one opening of a stored chunk."""
    with _COUNTING:
        READS[split, array, index] += 1
