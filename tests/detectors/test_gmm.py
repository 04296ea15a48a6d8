import math

import numpy as np
import peers
import pytest
import reference_formulas as reference
import torch
from scipy import special, stats
from sklearn.covariance import OAS

from pipeline.detectors import GMM, Mahalanobis
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.testing import Data, DetectorLaws, drive


def relative(covariance, ridge=1e-6):
    d = len(covariance)
    return covariance + ridge * np.trace(covariance) / d * np.eye(d)


def surprise(x, y, test, regularise=relative):
    """Minus the log of a mixture with a Gaussian for each class."""
    within = sum(np.cov(x[y == c].T, ddof=0) * (y == c).sum() for c in np.unique(y)) / len(x)
    logs = []
    for c in np.unique(y):
        rows = x[y == c]
        covariance = np.cov(rows.T, ddof=0) if len(rows) > 1 else within
        gaussian = stats.multivariate_normal(rows.mean(axis=0), regularise(covariance))
        logs.append(gaussian.logpdf(test) + math.log(len(rows) / len(x)))
    return -special.logsumexp(logs, axis=0)


class TestGMM(DetectorLaws):
    detector = GMM()

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        return surprise(x, y, reference.pooled(test))


class TestTied(DetectorLaws):
    detector = GMM(covariance="tied")

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        _, within = reference.class_gaussians(x, y)
        return surprise(x, y, reference.pooled(test), lambda _: relative(within))


class TestDiagonal(DetectorLaws):
    detector = GMM(covariance="diagonal")

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        return surprise(x, y, reference.pooled(test), lambda s: relative(np.diag(np.diag(s))))


def rows(x, y, classes=None):
    labels = np.asarray(y, np.int64)
    return Data({"features": np.asarray(x), "labels": labels}, classes or int(labels.max()) + 1)


def fitted(x, y, detector, classes=None):
    return drive.outcome(detector, rows(x, y, classes).cut())


def scores(scorer, x):
    return drive.scores_of(scorer, rows(x, np.zeros(len(x))).cut())


def drawn(n=400, d=8, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    mixing = rng.standard_normal((classes, d, d)) / 2 + np.eye(d)
    x = np.einsum("nd,nde->ne", rng.standard_normal((n, d)), mixing[y])
    return x + 2.0 * rng.standard_normal((classes, d))[y], y


def test_the_sum_is_formed_in_log_space():
    x, y = drawn()
    far = x[:5] + 1e6
    for covariance in ("ridge", "tied", "diagonal"):
        found = scores(fitted(x, y, GMM(covariance=covariance)), far)
        assert np.isfinite(found).all()
        assert (found > 1e8).all()
    np.testing.assert_allclose(scores(fitted(x, y, GMM()), far), surprise(x, y, far), rtol=1e-8)


def test_each_class_is_shrunk_by_its_own_number_of_rows():
    x, y = drawn(n=300)
    keep = (y != 2) | (np.arange(300) % 20 < 4)
    x, y = x[keep], y[keep]
    scorer = fitted(x, y, GMM(covariance="oas"))
    assert "OAS shrinkage" in scorer.notes[1]
    assert " to " in scorer.notes[1]
    rates = [OAS().fit(x[y == c]).shrinkage_ for c in range(4)]
    assert max(rates) > 1.5 * min(rates)
    # scikit-learn leaves out two terms of 2 / d.
    theirs = np.array([
        stats.multivariate_normal(fit.location_, fit.covariance_).logpdf(x) + math.log(n / len(x))
        for fit, n in ((OAS().fit(x[y == c]), (y == c).sum()) for c in range(4))
    ])  # fmt: skip
    found = scores(scorer, x)
    assert stats.spearmanr(found, -special.logsumexp(theirs, axis=0))[0] > 0.999


def test_one_row_classes_have_the_covariance_within_all():
    x, y = drawn()
    x, y = np.vstack([x, [[30.0] * 8], np.tile(x[0] + 60.0, (5, 1))]), [*y, 4] + [7] * 5
    data = np.array(y)
    for covariance in ("ridge", "oas", "jitter", "diagonal"):
        scorer = fitted(x, y, GMM(covariance=covariance), classes=9)
        assert "Gaussians of 6 of 9 classes" in scorer.notes[0]
        assert any("2 classes of one row, or of rows that are all alike" in n for n in scorer.notes)
        found = scores(scorer, x)
        assert np.isfinite(found).all()
        if covariance == "ridge":
            kept = data != 7
            alone = scores(fitted(x[kept], data[kept], GMM(), classes=9), x[kept])
            expected = surprise(x[kept], data[kept], x[kept])
            np.testing.assert_allclose(alone, expected, rtol=1e-9)


def test_classes_of_few_rows_are_said():
    x, y = drawn(n=40, d=30)
    for covariance, said in (("ridge", True), ("jitter", True), ("oas", False), ("tied", False)):
        scorer = fitted(x, y, GMM(covariance=covariance))
        assert np.isfinite(scores(scorer, x)).all()
        text = "; ".join(scorer.notes)
        assert ("4 classes have no more rows than the 30 features" in text) == said


def test_rows_that_do_not_vary_are_an_error():
    for covariance in ("ridge", "oas", "jitter", "tied", "diagonal"):
        with pytest.raises(DataError, match="do not vary"):
            fitted(np.ones((4, 2)), [0, 0, 1, 1], GMM(covariance=covariance))
    alike = np.array([[1e6 + 0.1, 0.3, 1 / 3]])
    x, y = np.concatenate([np.tile(alike, (7, 1)), np.tile(7 * alike, (3, 1))]), [0] * 7 + [1] * 3
    for covariance in ("ridge", "diagonal"):
        with pytest.raises(DataError, match="do not vary"):
            fitted(x, y, GMM(covariance=covariance))


@pytest.mark.parametrize(
    "options",
    [
        {"covariance": "pinvh"},
        {"ridge": 0.0},
        {"pool": "tokens"},
        {"normalize": float("nan")},
    ],
)
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        GMM(**options)


def test_unit_vectors():
    x, y = drawn()
    found = scores(fitted(x, y, GMM(normalize=1.0)), x)
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(found, surprise(units, y, units), rtol=1e-8)


def test_tied_shares_the_statistic_of_mahalanobis():
    x, y = drawn()
    trace, role = Trace(), {"train": (rows(x, y).cut(),)}
    run_jobs({"a": Job(GMM(covariance="tied"), role), "b": Job(Mahalanobis(), role)}, trace=trace)
    assert len(trace.passes[0].works[0].statistics) == 1


def test_scores_are_those_of_pytorch_ood():
    x, y = drawn(n=2000, d=16, classes=5)
    test, _ = drawn(n=500, d=16, classes=5, seed=1)
    theirs = peers.peer("GMM")(None).fit_features(torch.as_tensor(x), torch.as_tensor(y))
    expected = theirs.predict_features(torch.as_tensor(test)).numpy()
    found = scores(fitted(x, y, GMM(**GMM.presets["pytorch-ood-0.4"])), test)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_array_equal(np.argsort(found), np.argsort(expected))
    usual = scores(fitted(x, y, GMM()), test)
    assert stats.spearmanr(usual, expected)[0] > 0.9999
