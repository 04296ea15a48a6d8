"""Labels of rows that will be imported, looked at before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipeline.errors import DataError
from pipeline.store import layout
from pipeline.store.importers.mapping import Target

STEP_NUMBERS = 2**20
MOST_SHOWN = 5


def check_labels(
    targets: Mapping[str, Target], classes: int, split: str, say: Callable[[str], object]
) -> None:
    """Read all labels, if there are any; raise :class:`DataError` for what cannot be right.

    They are below ``classes``. Below 0 is out-of-distribution, as pytorch-ood has it: such rows
    are left out of fits, so those of training may have some, which is said; those of other
    in-distribution splits may not, as all of them are scored as such. A split of OOD rows needs no
    labels, and has none from 0 on.
    """
    if "labels" not in targets:
        return
    target = targets["labels"]
    step = max(1, STEP_NUMBERS // max(1, int(np.prod(target.spec.shape))))
    ood, rows = 0, int(target.rows.shape[0])
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        labels = target.read(start, stop)
        wrong = layout.is_ood(split) & (labels >= 0)
        if np.any(wrong):
            raise DataError(
                f"{split}: labels of out-of-distribution rows are below 0, got "
                f"{_shown(labels, wrong, start)}; leave them out with --labels none (labels=False)"
            )
        layout.check_labels(labels, classes, split, start)
        ood += int(np.count_nonzero(labels.reshape(len(labels), -1).max(axis=1) < 0))
        if ood and split.startswith("id/") and split.partition("/")[2] != "train":
            raise DataError(
                f"{split}: labels below 0 are out-of-distribution rows, got "
                f"{_shown(labels, labels < 0, start)}; they would be scored as in-distribution: "
                "import them into a split ood/..., or leave labels out with --labels none "
                "(labels=False)"
            )
    if ood and not layout.is_ood(split):
        say(f"{split}: {ood:,} of {rows:,} rows have labels below 0; they are left out of fits")


def _shown(labels: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any], start: int) -> str:
    rows = np.unique(np.nonzero(wrong)[0])
    shown = ", ".join(f"row {start + row}: {labels[row].max()}" for row in rows[:MOST_SHOWN])
    return shown + (f" and {len(rows) - MOST_SHOWN} more" if len(rows) > MOST_SHOWN else "")
