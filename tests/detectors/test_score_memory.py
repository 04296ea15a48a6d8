"""No score makes a table of rows by rows, or of rows by classes by features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.content import Const
from pipeline.detectors import load, names, probed_of
from pipeline.errors import ConfigError
from pipeline.fold import closure
from pipeline.heads import LinearHead
from pipeline.procedure import SCORE_ARRAYS, Scores
from pipeline.statistics import fields_of
from pipeline.testing import drive
from pipeline.testing.memory_laws import SLACK_NBYTES, TRIALS, peak
from pipeline.testing.recipes import Data, Shape
from pipeline.views import Finite

FEATURES = 128
MOST_MATRICES = 60
"""Classes of a detector that multiplies by a matrix for each of them."""


def needed(name: str, classes: int) -> dict[str, Any]:
    """Return the options of a detector that have no default."""
    members = (load("mahalanobis")(), load("energy")())
    options = {
        "ash": {"variant": "b"},
        "weighted_energy": {"weights": (1.0,) * classes},
        "ensemble": {"detectors": members},
    }
    return options.get(name, {})


def rows_of(name: str, rows: int, classes: int) -> Data:
    """Return rows with what the probe of a detector writes, if it has one."""
    widths = {"K": classes, "SK": 4 * classes, "D": FEATURES}
    probed = {
        array: np.random.default_rng(2).standard_normal((rows, widths[made_of]), np.float32)
        for array, made_of in probed_of(load(name)).items()
    }
    return Shape(rows, 1, FEATURES, classes).data.with_arrays(**probed)


def scorer_of(name: str, classes: int) -> Any:
    train = rows_of(name, 2 * classes + 200, classes)
    rng = np.random.default_rng(1)
    head = LinearHead(Const(rng.standard_normal((classes, FEATURES))), Const(np.ones(classes)))
    try:
        return drive.outcome(load(name)(**needed(name, classes)), train.cut())
    except ConfigError:  # stored logits are not enough
        return drive.outcome(load(name)(head=head, **needed(name, classes)), train.cut())


def used_and_declared(
    name: str, scorer: Any, rows: int, classes: int, *, views: bool
) -> tuple[int, int]:
    """Return the bytes that scores of rows take, with or without the views they look at."""
    data = rows_of(name, rows, classes)
    scores = Scores(scorer)
    parts = set(closure([scores])) if views else {scores}
    peaks = []
    for _ in range(3 * TRIALS):  # other threads of the process allocate too, in bursts
        ((chunk,),) = drive.chunks(data.cut(), fields_of(*scorer.views))
        finite = Finite(tuple(sorted(scores.fields)))
        for view in () if views else (*scorer.views, finite):
            view(chunk)
        peaks.append(peak(scores, chunk)[1])
    return min(peaks), sum(view.nbytes(data.schema, rows) for view in parts)


@pytest.mark.parametrize("classes", [10, 1000])
@pytest.mark.parametrize("name", names())
def test_memory_of_scores_is_linear_in_the_rows(name: str, classes: int) -> None:
    if name == "gmm":
        classes = min(classes, MOST_MATRICES)
    scorer = scorer_of(name, classes)
    for views in (False, True):
        few, _ = used_and_declared(name, scorer, 1, classes, views=views)
        for rows in (512, 2048):
            used, declared = used_and_declared(name, scorer, rows, classes, views=views)
            assert used <= declared + SLACK_NBYTES
            if not views:
                # Beside the memory of a tile, a few scores for each row and nothing else.
                tile, _ = used_and_declared(name, scorer, 128, classes, views=False)
                assert used <= max(few, tile) + 8 * SCORE_ARRAYS * rows + SLACK_NBYTES
