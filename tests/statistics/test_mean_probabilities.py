from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import softmax

from pipeline.statistics import MeanProbabilities, Means
from pipeline.testing import StatisticLaws, drive, labelled
from pipeline.views import Labels


def mean_probabilities(logits: Any, by: Any, classes: int = 5) -> Means:
    p = softmax(logits, axis=1)
    mean = np.zeros((classes, classes))
    for c in np.unique(by):
        mean[c] = p[by == c].mean(axis=0)
    return Means(np.bincount(by, minlength=classes), mean)


class TestPerPredictedClass(StatisticLaws):
    statistic = MeanProbabilities()

    def reference(self, rows: Mapping[str, Any]) -> Means:
        logits = rows["logits"][rows["labels"] >= 0]
        return mean_probabilities(logits, logits.argmax(axis=1))


class TestPerTrueClass(StatisticLaws):
    statistic = MeanProbabilities(by=Labels())

    def reference(self, rows: Mapping[str, Any]) -> Means:
        kept = rows["labels"] >= 0
        return mean_probabilities(rows["logits"][kept], rows["labels"][kept])


def test_huge_logits_do_not_overflow() -> None:
    data = labelled(rows=60)
    data = data.with_arrays(logits=data.arrays["logits"] * 1e6)
    found = drive.fold_all(MeanProbabilities(), data.cut())
    np.testing.assert_allclose(found.mean.sum(axis=1)[found.count > 0], 1.0, rtol=1e-14)
