import numpy as np
import pytest
import reference_formulas as reference
from scipy import linalg

from pipeline.detectors import RelativeMahalanobis
from pipeline.errors import ConfigError
from pipeline.testing import Data, DetectorLaws, drive


class TestRelativeMahalanobis(DetectorLaws):
    detector = RelativeMahalanobis()

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        return reference.relative_mahalanobis(x, y, reference.pooled(test))


def rows(features, labels, classes=None):
    labels = np.asarray(labels, np.int64)
    return Data({"features": features, "labels": labels}, classes or int(labels.max()) + 1)


def test_pseudo_inverse():
    x, y, _ = reference.fit_rows(TestRelativeMahalanobis().id_train().arrays)
    data = rows(x, y)
    scorer = drive.outcome(RelativeMahalanobis(covariance="pinvh"), data.cut())
    expected = reference.relative_mahalanobis(x, y, x, linalg.pinvh)
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), expected, rtol=0, atol=1e-9)


def test_the_scatter_is_the_convention_of_pytorch_ood():
    x, y, _ = reference.fit_rows(TestRelativeMahalanobis().id_train().arrays)
    data = rows(x, y)
    preset = RelativeMahalanobis.presets["pytorch-ood-0.4"]
    scorer = drive.outcome(RelativeMahalanobis(**preset), data.cut())
    expected = reference.relative_mahalanobis(
        x, y, x, lambda s: np.linalg.inv(s * len(x) + 1e-6 * np.eye(len(s)))
    )
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("covariance", ["ridge", "oas"])
def test_directions_alone(covariance):
    x, y, _ = reference.fit_rows(TestRelativeMahalanobis().id_train().arrays)
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    found, expected = (
        drive.scores_of(drive.outcome(detector, rows(z, y).cut()), rows(z, y).cut())
        for detector, z in (
            (RelativeMahalanobis(normalize=1.0, covariance=covariance), x),
            (RelativeMahalanobis(covariance=covariance), units),
        )
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
    if covariance == "ridge":
        plain = reference.relative_mahalanobis(units, y, units)
        np.testing.assert_allclose(found, plain, rtol=0, atol=1e-7)


def test_both_covariances_are_divided_by_the_number_of_rows():
    rng = np.random.default_rng(0)
    features, labels = rng.standard_normal((150, 6)), np.arange(150) % 3
    once, thrice = (
        drive.outcome(RelativeMahalanobis(), rows(x, y).cut())
        for x, y in ((features, labels), (np.tile(features, (3, 1)), np.tile(labels, 3)))
    )
    test = rows(rng.standard_normal((20, 6)), np.zeros(20))
    expected = drive.scores_of(once, test.cut())
    np.testing.assert_allclose(drive.scores_of(thrice, test.cut()), expected, rtol=1e-9, atol=1e-12)
    assert (expected < 0).any()
    assert (expected > 0).any()


def test_the_background_is_the_plain_covariance_at_a_large_offset():
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((300, 5)) + 1e6, np.arange(300) % 4
    data = rows(features, labels)
    scorer = drive.outcome(
        RelativeMahalanobis(), {"train": data.cut([[1] * 100, [50, 0, 50], [100]])}
    )
    expected = reference.relative_mahalanobis(features, labels, features)
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), expected, rtol=0, atol=1e-7)


def test_one_class_scores_zero():
    rng = np.random.default_rng(2)
    data = rows(rng.standard_normal((50, 3)), np.zeros(50), classes=4)
    scorer = drive.outcome(RelativeMahalanobis(), data.cut())
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), 0.0, atol=1e-9)


def test_tokens_are_scored_one_by_one():
    rng = np.random.default_rng(3)
    tokens, labels = rng.standard_normal((40, 3, 5)), np.arange(40) % 2
    data = rows(tokens, labels)
    detector = RelativeMahalanobis(pool="tokens", precision="float64")
    found = drive.scores_of(drive.outcome(detector, data.cut()), data.cut())
    flat = tokens.reshape(-1, 5)
    expected = reference.relative_mahalanobis(flat, np.repeat(labels, 3), flat)
    np.testing.assert_allclose(found, expected.reshape(40, 3), rtol=0, atol=1e-9)


def test_both_regularisations_are_reported():
    rng = np.random.default_rng(4)
    data = rows(rng.standard_normal((12, 20)), np.arange(12) % 3)
    scorer = drive.outcome(RelativeMahalanobis(covariance="pinvh"), data.cut())
    within, background = scorer.notes
    assert "within classes: covariance of rank 9 of 20" in within
    assert "background: covariance of rank 11 of 20" in background


def test_options_are_refused_before_anything_is_read():
    for options in ({"covariance": "full"}, {"normalize": np.inf}, {"image": "median"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            RelativeMahalanobis(**options)
