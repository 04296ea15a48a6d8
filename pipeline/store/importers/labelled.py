"""Labels of rows that will be stored, looked at before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.store import layout
from pipeline.store.importers.mapping import Target
from pipeline.store.importers.prepared import Prepared

STEP_NUMBERS = 2**20
MOST_SHOWN = 5
LEAVE_OUT = "leave labels out with --labels none (labels=False)"
WITHOUT = (
    "no labels: detectors that are fitted by labels (mahalanobis, knn, vim and all others whose "
    "needs list labels) cannot be fitted on it, and it has no accuracy or calibration; add them by "
    "importing again with --labels FILE (labels=) and --overwrite"
)


def check_labels(
    targets: Mapping[str, Target], classes: int, split: str, say: Callable[[str], object]
) -> None:
    """Read all labels, if there are any; raise :class:`DataError` for what cannot be right.

    See :func:`check_rows`. Rows of training without a class are said; there must be others.
    """
    if "labels" not in targets:
        return
    target = targets["labels"]
    ood, rows = 0, int(target.rows.shape[0])
    for start in range(0, rows, STEP_NUMBERS):
        labels = target.read(start, min(start + STEP_NUMBERS, rows))
        ood += check_rows(labels, classes, split, start, LEAVE_OUT)
    if layout.is_ood(split) or not ood:
        return
    if ood == rows and split.startswith("id/"):
        raise DataError(
            f"{split}: all {rows:,} labels are below 0, and fits leave out such rows; give them "
            f"their classes from 0 on, or {LEAVE_OUT}"
        )
    say(f"{split}: {ood:,} of {rows:,} rows have labels below 0; they are left out of fits")


def say_without(found: Prepared, split: str, say: Callable[[str], object]) -> None:
    """Say what follows where an in-distribution split has no labels, and what may be them."""
    if "labels" in found.targets or not split or layout.is_ood(split):
        return
    likely = [
        name for name in (*(t.found for t in found.targets.values()), *found.left_out)
        if "label" in name.lower() or name.lower() in ("y", "target", "targets", "classes")
    ]  # fmt: skip
    hint = f" ({', '.join(likely)} of the files may be them)" if likely else ""
    say(f"{split}: {WITHOUT}{hint}")


def check_rows(
    labels: np.ndarray[Any, Any], classes: int, split: str, start: int, remedy: str
) -> int:
    """Return how many of the rows from ``start`` on are out-of-distribution: labels (n,) below 0.

    That is what pytorch-ood means by them. Rows of training may have some, which fits leave out.
    Raises :class:`DataError` by row for a label that is not below ``classes``; for one below 0 in
    other in-distribution splits, all of whose rows are scored as such; and for one from 0 on in a
    split ``ood/...``, which needs no labels. ``remedy`` says how to store rows without labels.
    """
    wrong = labels >= 0
    if layout.is_ood(split) and wrong.any():
        raise DataError(
            f"{split}: labels of out-of-distribution rows are below 0, got "
            f"{_shown(labels, wrong, start)}; {remedy}"
        )
    layout.check_labels(labels, classes, split, start)
    if split.startswith("id/") and split != "id/train" and not wrong.all():
        raise DataError(
            f"{split}: labels below 0 are out-of-distribution rows, got "
            f"{_shown(labels, ~wrong, start)}; they would be scored as in-distribution: put them "
            f"into a split ood/..., or {remedy}"
        )
    return int(np.count_nonzero(~wrong))


def _shown(labels: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any], start: int) -> str:
    rows = np.flatnonzero(wrong)
    shown = ", ".join(f"row {start + row}: {labels[row]}" for row in rows[:MOST_SHOWN])
    return shown + (f" and {len(rows) - MOST_SHOWN} more" if len(rows) > MOST_SHOWN else "")
