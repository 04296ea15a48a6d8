"""Columns of a view, and the logits of the classes that a head can predict."""

import numpy as np
import pytest

from pipeline.content import Const
from pipeline.errors import ConfigError
from pipeline.heads import (
    ABSENT_BIAS,
    LinearHead,
    StoredHead,
    beside_head,
    logits_present,
    refuse_other_features,
)
from pipeline.procedure import Rows
from pipeline.statistics import Sums
from pipeline.testing import drive, labelled
from pipeline.testing.memory_laws import MemoryLaws
from pipeline.views import Columns, Linear, Logits, Pooled

WEIGHT, BIAS = np.eye(5, 12), np.array([1.0, ABSENT_BIAS, 2.0, ABSENT_BIAS, 3.0])
LOGITS = Linear(Pooled(), Const(WEIGHT), Const(BIAS))


class TestMemory(MemoryLaws):
    statistic = Sums(of=Columns(Logits(), Const(np.array([0, 2]))))


@pytest.mark.parametrize("library", drive.PLACES)
def test_logits_of_classes_without_rows_are_left_out(library):
    data = labelled()
    present = logits_present(LOGITS)
    assert present.shape(data.schema) == (3,)
    execute = drive.at(drive.PLACES[library])
    found = drive.outcome(drive.Ask(Rows(present)), data.cut(), execute).array()
    pooled = data.arrays["features"].mean(axis=1, dtype=np.float64)
    np.testing.assert_allclose(found, pooled[:, [0, 2, 4]] + [1.0, 2.0, 3.0], rtol=1e-12)


def test_logits_that_are_all_there_stay_what_they_are():
    full = Linear(Pooled(), Const(WEIGHT), Const(np.ones(5)))
    assert logits_present(full) == full
    assert logits_present(Logits()) == Logits()


def test_other_features_are_refused_where_they_are_known():
    refuse_other_features(Logits(), Pooled("cls"), "it")
    refuse_other_features(LOGITS, Pooled(), "it")
    with pytest.raises(ConfigError, match="same pool and field"):
        refuse_other_features(LOGITS, Pooled("cls"), "it")


@pytest.mark.parametrize("head", [StoredHead(), LinearHead(Const(WEIGHT), Const(BIAS))])
def test_a_statistic_is_asked_for_beside_a_head_that_is_not_fitted(head):
    passes = beside_head(head, labelled().schema, Sums())
    assert list(next(passes).values()) == [Sums()]
    with pytest.raises(StopIteration) as stop:
        passes.send({"statistic/result": "mean"})
    assert stop.value.value[1] == "mean"
