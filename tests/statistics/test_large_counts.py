"""Totals past 2**31 elements, and counts past 2**24, where int32 and float32 would give out."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.statistics import (
    ClassMeans,
    ClassMoments,
    ConfusionMatrix,
    ExactRanks,
    Marginals,
    SecondMoment,
    Sums,
)
from pipeline.store.memory import ArraySplit
from pipeline.testing import drive
from pipeline.views import Labels, Pooled, Stored, Tokens

ROWS = 2**24 + 5


def repeated(rows: int, **values: Any) -> ArraySplit:
    """Return a split whose rows are all the same and take no memory: strides of zero."""
    arrays = {}
    for name, row in values.items():
        row = np.asarray(row)
        arrays[name] = np.broadcast_to(row, (rows, *row.shape))
    return ArraySplit(arrays=arrays, classes=2)


def results(split: ArraySplit, **statistics: Any) -> dict[str, Any]:
    """Return the results of statistics over a split, all in one pass."""
    return {name: drive.fold_all(statistic, split) for name, statistic in statistics.items()}


def test_totals_of_more_than_two_to_the_31_elements() -> None:
    split = repeated(ROWS, features=np.full(128, 3, np.int8), labels=np.int64(1))
    assert ROWS * 128 > 2**31
    found = drive.fold_all(ClassMeans(), split)
    np.testing.assert_array_equal(found.count, [0, ROWS])
    np.testing.assert_array_equal(found.mean, [[0.0] * 128, [3.0] * 128])


def test_counts_past_two_to_the_24() -> None:
    row = {"features": np.int8([3, 1]), "logits": np.float32([0, 1]), "labels": np.int8(1)}
    found = results(
        repeated(ROWS, **row),
        sums=Sums(),
        moments=ClassMoments(),
        narrow=ClassMoments(precision="float32"),
        second=SecondMoment(),
        matrix=ConfusionMatrix(),
        margins=Marginals(),
    )
    assert found["sums"].rows == ROWS
    np.testing.assert_array_equal(found["sums"].total, [3 * ROWS, ROWS])
    np.testing.assert_array_equal(found["second"].count, [ROWS])
    np.testing.assert_array_equal(found["matrix"], [[0, 0], [0, ROWS]])
    for counts in found["margins"]:
        np.testing.assert_array_equal(counts, [0, ROWS])
    for name in ("moments", "narrow"):
        np.testing.assert_array_equal(found[name].count, [0, ROWS], err_msg=name)
        np.testing.assert_array_equal(found[name].mean, [[0, 0], [3, 1]], err_msg=name)
        assert not found[name].scatter.any()


def test_tokens_past_two_to_the_24() -> None:
    rows, tokens = 2**10 + 1, 2**14
    split = repeated(rows, features=np.full((tokens, 1), 3, np.float32), labels=np.int64(1))
    found = results(
        split,
        moments=ClassMoments(of=Tokens()),
        means=ClassMeans(of=Pooled()),
    )
    np.testing.assert_array_equal(found["moments"].count, [0, rows * tokens])
    np.testing.assert_array_equal(found["moments"].mean, [[0], [3]])
    np.testing.assert_array_equal(found["means"].count, [0, rows])


def test_ranks_past_two_to_the_24() -> None:
    split = repeated(ROWS, scores=np.float32(0.5), labels=np.int64(1))
    found = drive.fold_all(ExactRanks(of=Stored("scores"), positive=Labels()), split)
    np.testing.assert_array_equal(found.positives, [ROWS])
    np.testing.assert_array_equal(found.negatives, [0])
