import numpy as np
import pytest
import reference_formulas as reference
from scipy import special

from pipeline.detectors.relation import Relation
from pipeline.errors import ConfigError
from pipeline.testing import DetectorLaws, drive, recipes


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


def test_logits_as_large_as_1e4_leave_scores_finite():
    rows = recipes.labelled()
    large = rows.with_arrays(logits=1e4 * np.sign(rows.arrays["logits"]))
    scorer = drive.outcome(Relation(), large.cut())
    assert np.isfinite(drive.scores_of(scorer, large.cut())).all()


def test_scores_are_those_of_openood():
    train, test = recipes.labelled().upcast(), recipes.labelled(rows=60, seed=5).upcast()

    def normalize(x):
        return x / np.sqrt((x**2).sum(axis=1, keepdims=True) + 1e-10)

    x, _, f = reference.fit_rows(train)
    ties = np.clip(normalize(reference.pooled(test)) @ normalize(x).T, 0, None)
    ties = ties * (special.softmax(test["logits"], axis=1) @ special.softmax(f, axis=1).T)
    expected = -np.where(ties > 0.03, ties, 0.0).sum(axis=1)
    detector = Relation(**Relation.presets["openood-1.5"])
    scorer = drive.outcome(detector, recipes.labelled().cut())
    found = drive.scores_of(scorer, recipes.labelled(rows=60, seed=5).cut())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
