"""The one merge tree: eight neighbours to a node by position, never by who finished first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pipeline.partials import FAN_IN


def tree(leaves: Iterable[Any], join: Callable[[int, Any, Any], Any]) -> Any:
    """Merge leaves in the fixed tree, each as soon as it is there.

    ``join(level, left, right)`` merges two neighbours. Eight siblings are merged from left to
    right, and so are their nodes on the next level: the grouping depends on nothing but the number
    of leaves, and no more than one node of each level waits.
    """
    waiting: list[tuple[Any, int]] = []  # per level: the siblings merged so far, and their number
    for leaf in leaves:
        _add(waiting, 0, leaf, join)
    level = 0
    while level < len(waiting) - 1:
        node, count = waiting[level]
        if count:
            _add(waiting, level + 1, node, join)
        level += 1
    return waiting[level][0]


def _add(
    waiting: list[tuple[Any, int]], level: int, node: Any, join: Callable[[int, Any, Any], Any]
) -> None:
    # No closure of tree(): one that calls itself would keep the last states until a collection.
    if level == len(waiting):
        waiting.append((None, 0))
    left, count = waiting[level]
    node = join(level + 1, left, node) if count else node
    waiting[level] = (node, count + 1)
    if count + 1 == FAN_IN:
        waiting[level] = (None, 0)
        _add(waiting, level + 1, node, join)
