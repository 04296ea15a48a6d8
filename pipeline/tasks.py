"""What a task is, which is declared, and which labels of it do not count: checked in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.errors import ConfigError

TASKS = ("multiclass", "binary", "multilabel")


def check_task(task: str, tasks: tuple[str, ...] = TASKS) -> None:
    """Raise :class:`ConfigError` for a task that is none of those known."""
    if task not in tasks:
        raise ConfigError(f"task: {task!r} is unknown; choose {', '.join(tasks)}")


def shape_remedy(
    preds: Sequence[int],
    target: Sequence[int],
    *,
    floats: bool,
    task: str,
    classes: int,
    names: tuple[str, str] = ("preds", "target"),
) -> str:
    """Return what brings predictions and labels of some shapes together; "" where it is not known.

    ``floats``: whether predictions are scores. ``names`` are what both are called.
    """
    p, y, (ours, theirs) = tuple(preds), tuple(target), names
    by_class = floats and task == "multiclass"

    def wanted(labels: tuple[int, ...]) -> tuple[int, ...]:
        return (*labels[:1], classes, *labels[1:]) if by_class else labels

    if y[1:2] == (1,) and p == wanted((*y[:1], *y[2:])):
        return f": squeeze the {theirs}, {theirs}[:, 0]"
    if p[1:2] == (1,) and (*p[:1], *p[2:]) == wanted(y):
        return f": squeeze the {ours}, {ours}[:, 0]"
    if by_class and p == (*y, classes):
        return f": scores of classes go along axis 1; give moveaxis({ours}, -1, 1)"
    if task == "multiclass" and len(y) > 1 and (by_class or len(y) == len(p) + 1):
        for axis in (1, -1):
            if y[axis] == classes and p in (y, wanted(_without(y, axis)), _without(y, axis)):
                return f": one-hot {theirs}? Give the classes, {theirs}.argmax({axis})"
    if by_class and p == y:
        return (
            ": floats are scores of every class; cast classes to integers, or declare the task "
            "binary for scores of class 1"
        )
    if by_class and len(p) == len(y) + 1 and (*p[:1], *p[2:]) == y:
        return f": {ours} have scores of {p[1]} classes, {classes} are declared"
    if floats and task == "binary" and len(p) == len(y) + 1:
        return f": give the scores of the positive class alone, {ours}[:, 1]"
    if not floats and len(p) == len(y) + 1:
        return ": give the class of each element, not one-hot rows"
    return ""


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    kept = list(shape)
    del kept[axis]
    return tuple(kept)


def ignored(given: Any) -> tuple[int, ...]:
    """Return labels that do not count, one or several, in ascending order.

    Raises :class:`ConfigError` for what is not a whole number.
    """
    labels = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(c, int) and not isinstance(c, bool) for c in labels):
        raise ConfigError(f"ignore: {given!r}; expected a label such as 255, or several: (0, 255)")
    return tuple(sorted(set(labels)))
