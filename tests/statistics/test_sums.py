from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp

from pipeline.statistics import Sum, Sums
from pipeline.testing import StatisticLaws, drive, labelled
from pipeline.views import LogSumExp, Stored


class TestOfVectors(StatisticLaws):
    statistic = Sums()

    def reference(self, rows: Mapping[str, Any]) -> Sum:
        x = rows["features"].mean(axis=1)[rows["labels"] >= 0]
        return Sum(len(x), x.sum(axis=0))


class TestOfScalars(StatisticLaws):
    statistic = Sums(of=LogSumExp())

    def reference(self, rows: Mapping[str, Any]) -> Sum:
        x = logsumexp(rows["logits"], axis=1)[rows["labels"] >= 0]
        return Sum(len(x), x.sum(axis=0))


class TestOfStoredScores(StatisticLaws):
    statistic = Sums(of=Stored("scores"))

    def reference(self, rows: Mapping[str, Any]) -> Sum:
        x = rows["scores"][rows["labels"] >= 0]
        return Sum(len(x), x.sum(axis=0))


def test_half_precision_does_not_overflow() -> None:
    data = labelled(rows=49).with_arrays(scores=np.full(49, 2000.0, np.float16))
    data.arrays["labels"][:] = 0
    found = drive.fold_all(Sums(of=Stored("scores")), data.cut())
    assert float(found.total) == 98_000.0
    assert float(found.mean) == 2000.0


def test_the_mean_of_nothing_is_nan() -> None:
    assert np.isnan(Sum(0, np.zeros(2)).mean).all()
