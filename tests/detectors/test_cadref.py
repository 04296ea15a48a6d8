import numpy as np
import pytest
import reference_formulas as reference
from scipy import special

from pipeline.content import Const
from pipeline.detectors import CADRef
from pipeline.engine import Job, rehearse
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive, labelled

WEIGHT = 1.5 * np.eye(5, 12) + 0.1
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))
CONFIDENCES = {
    "energy": lambda f: special.logsumexp(f, axis=1),
    "max_logit": lambda f: f.max(axis=1),
    "msp": lambda f: special.softmax(f, axis=1).max(axis=1),
}


def class_means(x, predicted, classes):
    means = np.zeros((classes, x.shape[1]))
    for c in np.unique(predicted):
        means[c] = x[predicted == c].mean(axis=0)
    return means


def caref(x, logits, test, test_logits):
    means = class_means(x, logits.argmax(axis=1), logits.shape[1])
    errors = np.abs(test - means[test_logits.argmax(axis=1)]).sum(axis=1)
    return errors / np.abs(test).sum(axis=1)


def cadref(x, test, weight, bias, confidence="energy"):
    f, g = x @ weight.T + bias, test @ weight.T + bias
    means = class_means(x, f.argmax(axis=1), len(bias))
    usual = CONFIDENCES[confidence](f).mean()
    scores = []
    for z, y, s in zip(test, g.argmax(axis=1), CONFIDENCES[confidence](g), strict=True):
        aligned = (z - means[y]) * np.sign(weight[y])
        error = aligned[aligned > 0].sum() / s - aligned[aligned < 0].sum() / usual
        scores.append(error / np.abs(z).sum())
    return np.array(scores)


class TestCADRef(DetectorLaws):
    detector = CADRef(head=HEAD)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return cadref(x, reference.pooled(test), WEIGHT, BIAS)


class TestCARef(DetectorLaws):
    detector = CADRef(decoupled=False)

    def reference(self, train, test):
        x, _, logits = reference.fit_rows(train)
        return caref(x, logits, reference.pooled(test), test["logits"])


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


@pytest.mark.parametrize("confidence", list(CONFIDENCES))
def test_every_confidence(confidence):
    x, test = noise(60), noise(20, seed=1)
    scorer = drive.outcome(CADRef(HEAD, confidence=confidence), rows(x).cut())
    found = drive.scores_of(scorer, rows(test).cut())
    np.testing.assert_allclose(found, cadref(x, test, WEIGHT, BIAS, confidence), rtol=1e-10)


def test_an_lda_head_may_lack_classes():
    data = labelled()
    data = data.take(data.arrays["labels"] != 3)
    x, y, _ = reference.fit_rows(data.upcast())
    weight, bias = reference.linear_discriminant(x, y, 5)
    scorer = drive.outcome(CADRef(LDAHead()), data.cut())
    expected = cadref(x, reference.pooled(data.upcast()), weight, bias)
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), expected, rtol=1e-8)
    assert scorer.notes == ("4 of 5 classes are predicted",)


@pytest.mark.parametrize("decoupled", [True, False])
def test_rows_of_zeros_are_far_and_finite(decoupled):
    scorer = drive.outcome(CADRef(HEAD, decoupled), rows(noise(60)).cut())
    test = np.concatenate([np.zeros((2, 12)), noise(20, seed=1)])
    found = drive.scores_of(scorer, rows(test).cut())
    assert np.isfinite(found).all()
    assert found[:2].min() > 1e50 > found[2:].max()


def test_a_class_that_was_never_predicted_has_a_relative_error_of_one():
    train = np.tile(np.eye(5, 12)[0], (6, 1))
    head = LinearHead(Const(np.eye(5, 12)), Const(np.ones(5)))
    scorer = drive.outcome(CADRef(head, decoupled=False), rows(train).cut())
    np.testing.assert_array_equal(drive.scores_of(scorer, rows(np.eye(3, 12)).cut()), [0, 1, 1])


def test_a_row_without_confidence_is_worse_than_any_with_it():
    scorer = drive.outcome(CADRef(HEAD, confidence="max_logit"), rows(noise(60)).cut())
    test = noise(20, seed=1)
    test[0, :5], test[0, 5:] = -30.0, 5.0
    found = drive.scores_of(scorer, rows(test).cut())
    assert (test[0] @ WEIGHT.T + BIAS).max() < 0
    assert np.isfinite(found).all()
    assert found.argmax() == 0


def test_fit_rows_without_confidence_are_refused_but_not_when_planning():
    head = LinearHead(Const(WEIGHT), Const(BIAS - 100.0))
    with pytest.raises(DataError, match="choose confidence: msp"):
        drive.outcome(CADRef(head), rows(noise(60)).cut())
    rehearse({"cadref": Job(CADRef(head), {"train": (rows(noise(60)).cut(),)})})


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="confidence: 'gen'"):
        CADRef(HEAD, confidence="gen")
    with pytest.raises(ConfigError, match="head: lda"):
        next(CADRef().passes(rows(noise(9)).schema))


def test_a_row_that_is_nan_does_not_look_typical():
    scorer = drive.outcome(CADRef(HEAD), rows(noise(60)).cut())
    odd = noise(2)
    odd[0] = np.nan
    ((chunk,),) = drive.chunks(rows(odd).cut(), rows(odd).arrays)
    np.testing.assert_array_equal(np.isnan(scorer.score(chunk)), [True, False])
