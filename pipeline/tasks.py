"""What a task is, which is declared, and which labels of it do not count: checked in one place."""

from __future__ import annotations

from typing import Any

from pipeline.errors import ConfigError

TASKS = ("multiclass", "binary", "multilabel")


def check_task(task: str, tasks: tuple[str, ...] = TASKS) -> None:
    """Raise :class:`ConfigError` for a task that is none of those known."""
    if task not in tasks:
        raise ConfigError(f"task: {task!r} is unknown; choose {', '.join(tasks)}")


def ignored(given: Any) -> tuple[int, ...]:
    """Return labels that do not count, one or several, in ascending order.

    Raises :class:`ConfigError` for what is not a whole number.
    """
    labels = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(c, int) and not isinstance(c, bool) for c in labels):
        raise ConfigError(f"ignore: {given!r}; expected a label such as 255, or several: (0, 255)")
    return tuple(sorted(set(labels)))
