import numpy as np
import pytest
import reference_formulas as reference
from shaping_formulas import HEAD, ShapingLaws, energy_of, ratio, rectified, rows, scores, signed
from shaping_peers import scores_of_peer

from pipeline.content import Const
from pipeline.detectors import Scale
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead


def scaled(z, kept):
    return z * np.exp(ratio(z, kept))[:, None]


class TestScale(ShapingLaws):
    detector = Scale(head=HEAD)

    def reference(self, train, test):
        return energy_of(scaled(reference.pooled(test), 2))


class TestScaleOnLDA(ShapingLaws):
    detector = Scale(head=LDAHead(), percentile=40)
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        present = np.unique(y)
        return energy_of(scaled(reference.pooled(test), 7), weight[present], bias[present])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("percentile", [65, 80, 85, 95])
def test_scores_are_those_of_pytorch_ood(percentile, dtype):
    z, weight, bias = (x.astype(dtype) for x in rectified())
    theirs = scores_of_peer("SCALE", z, weight, bias, percentile=percentile / 100)
    head = LinearHead(Const(weight.astype(float)), Const(bias.astype(float)))
    ours = scores(Scale(head, percentile=percentile), rows(z, classes=10))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == np.float32 else 1e-12)
    if dtype == np.float64:
        np.testing.assert_array_equal(np.argsort(ours), np.argsort(theirs))


@pytest.mark.parametrize("percentile", [0, 50, 99.9, 100])
def test_features_of_both_signs_have_finite_scores(percentile):
    z = signed(60, 12)
    z[0], z[1], z[2] = 0.0, -1.0, np.where(np.arange(12) < 6, 1e-300, -1.0)
    kept = max(1, 12 - round(12 * percentile / 100))
    found = scores(Scale(HEAD, percentile=percentile), rows(z))
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_allclose(found, energy_of(scaled(z, kept)), rtol=1e-9)


def test_a_percentile_that_is_none_is_refused_at_once():
    with pytest.raises(ConfigError, match="percentile: 850"):
        Scale(HEAD, percentile=850)


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(Scale().passes(rows(signed(9, 12)).schema))
