from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.statistics import ClassTails, Tails
from pipeline.testing import StatisticLaws, drive, labelled
from pipeline.views import Correct, LogSumExp, Stored


def tails(x: Any, y: Any, size: int, classes: int = 5) -> Tails:
    largest = np.full((classes, size), -np.inf)
    for c in range(classes):
        found = np.sort(x[y == c])[::-1][:size]
        largest[c, : len(found)] = found
    return Tails(np.bincount(y, minlength=classes), largest)


class TestShortTails(StatisticLaws):
    statistic = ClassTails(of=Stored("scores"), size=3)

    def reference(self, rows: Mapping[str, Any]) -> Tails:
        kept = rows["labels"] >= 0
        return tails(rows["scores"][kept], rows["labels"][kept], 3)


class TestTailsLongerThanClasses(StatisticLaws):
    statistic = ClassTails(of=LogSumExp(), where=Correct())

    def reference(self, rows: Mapping[str, Any]) -> Tails:
        logits, y = rows["logits"], rows["labels"]
        kept = (y >= 0) & (logits.argmax(axis=1) == y)
        return tails(np.log(np.exp(logits[kept]).sum(axis=1)), y[kept], 64)


def test_the_order_of_the_rows_changes_no_bit() -> None:
    data, statistic = labelled(rows=80), ClassTails(of=Stored("scores"), size=4)
    whole = drive.fold_all(statistic, data.cut())
    shuffled = data.take(np.random.default_rng(0).permutation(80)).cut([[3] * 20, [20]])
    again = drive.fold_all(statistic, shuffled)
    np.testing.assert_array_equal(again.largest, whole.largest)
    np.testing.assert_array_equal(again.count, whole.count)


def test_vectors_have_no_tail() -> None:
    with pytest.raises(ConfigError, match="one value per row"):
        ClassTails(of=Stored("logits")).empty(labelled().schema)


def test_an_empty_tail_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^size: 0"):
        ClassTails(of=Stored("scores"), size=0)
