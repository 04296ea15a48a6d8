import numpy as np
import pytest
import reference_formulas as reference
from shaping_formulas import HEAD, ShapingLaws, ratio, rectified, rows, scores, signed
from shaping_peers import scores_of_peer

from pipeline.content import Const
from pipeline.detectors import LTS
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead


def scaled(logits, z, kept):
    return reference.energy(logits * ratio(np.maximum(z, 0.0), kept)[:, None] ** 2)


class TestLTS(ShapingLaws):
    detector = LTS()

    def reference(self, train, test):
        return scaled(test["logits"], reference.pooled(test), 1)


class TestLTSOnLDA(ShapingLaws):
    detector = LTS(head=LDAHead(), percentile=50)
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        present = np.unique(y)
        z = reference.pooled(test)
        return scaled(z @ weight[present].T + bias[present], z, 6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("of", ["after a ReLU", "of both signs"])
@pytest.mark.parametrize("percentile", [95, 90, 60])
def test_scores_are_those_of_pytorch_ood(percentile, of, dtype):
    z, weight, bias = rectified()
    z = z if of == "after a ReLU" else signed()
    z, weight, bias = (x.astype(dtype) for x in (z, weight, bias))
    theirs = scores_of_peer("LTS", z, weight, bias, p=1 - percentile / 100)
    head = LinearHead(Const(weight.astype(float)), Const(bias.astype(float)))
    ours = scores(LTS(head, percentile), rows(z, classes=10))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == np.float32 else 1e-12)
    if dtype == np.float64:
        np.testing.assert_array_equal(np.argsort(ours), np.argsort(theirs))


def test_a_row_without_a_positive_feature_keeps_its_logits():
    z = np.stack([np.zeros(12), -np.ones(12)])
    logits = np.random.default_rng(0).standard_normal((2, 5))
    found = scores(LTS(), rows(z, logits))
    np.testing.assert_allclose(found, reference.energy(logits))


def test_large_logits_do_not_overflow():
    z = np.abs(signed(50, 12))
    logits = np.random.default_rng(0).choice([-1e4, 1e4], (50, 5))
    expected = scaled(logits, z, 1)
    np.testing.assert_allclose(scores(LTS(), rows(z, logits)), expected, rtol=1e-12)


@pytest.mark.parametrize("percentile", [0, 100])
def test_percentiles_may_be_the_ends(percentile):
    z = signed(50, 12)
    logits = np.random.default_rng(0).standard_normal((50, 5))
    kept = 12 if percentile == 0 else 1
    expected = scaled(logits, z, kept)
    np.testing.assert_allclose(scores(LTS(percentile=percentile), rows(z, logits)), expected)


def test_a_percentile_that_is_none_is_refused_at_once():
    with pytest.raises(ConfigError, match="percentile: 101"):
        LTS(HEAD, percentile=101)
