import numpy as np
import pytest
import reference_formulas as reference
from scipy import special

from pipeline.detectors.relation import Relation
from pipeline.errors import ConfigError
from pipeline.testing import DetectorLaws


def directions(x):
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0)


def untied(bank, bank_logits, x, logits, power):
    likeness = np.maximum(directions(x) @ directions(bank).T, 0.0)
    ties = likeness * (special.softmax(logits, axis=1) @ special.softmax(bank_logits, axis=1).T)
    return -np.where(ties > 0.03, ties**power, 0.0).sum(axis=1)


class TestRelation(DetectorLaws):
    detector = Relation()

    def reference(self, train, test):
        x, _, f = reference.fit_rows(train)
        return untied(x, f, reference.pooled(test), test["logits"], 1)


class TestRelationOfAPower(DetectorLaws):
    detector = Relation(power=4)

    def reference(self, train, test):
        x, _, f = reference.fit_rows(train)
        return untied(x, f, reference.pooled(test), test["logits"], 4)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"power": 0.0}, "power: 0"),
        ({"threshold": -0.1}, "threshold: -0.1"),
        ({"max_bank": 0}, "max_bank: 0"),
    ],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ConfigError, match=match):
        Relation(**options)


def test_logits_as_large_as_floats_of_networks_get_leave_scores_finite():
    logits = np.array([[1e4, -1e4], [-1e4, 1e4]])
    x = np.eye(2, 6)
    assert np.isfinite(untied(x, logits, x, logits, 1)).all()
