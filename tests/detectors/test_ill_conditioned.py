"""Ill-conditioned features: condition 1e6 to 1e13, dead units, null directions, few rows.

The reference holds the definitions in extended precision, with a Cholesky factor of its own.
"""

import numpy as np
import pytest
import reference_formulas
from scipy import stats

from pipeline.content import Const
from pipeline.detectors import GMM, Mahalanobis, RelativeMahalanobis, ViM
from pipeline.heads import LinearHead
from pipeline.testing import Data, drive

Long = np.longdouble
D, CLASSES, TEST = 32, 4, 120
BASIS = np.linalg.qr(np.random.default_rng(5).standard_normal((D, D)))[0]
MEANS = 2.0 * np.random.default_rng(6).standard_normal((CLASSES, D))
KINDS = ("full", "dead units", "layer norm")
CONDITIONS = (1e6, 1e9, 1e13)
FEW, MANY = 20, 400


def drawn(rows, condition, kind, seed):
    """Return float32 features whose variances fall over ``condition``, as networks leave them."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    deviations = np.logspace(0, -np.log10(condition) / 2, D)
    x = (rng.standard_normal((rows, D)) + MEANS[labels]) * deviations @ BASIS + 3.0
    if kind == "dead units":
        x[:, ::5] = 0.0
    if kind == "layer norm":
        x -= x.mean(axis=1, keepdims=True)
        x /= x.std(axis=1, keepdims=True)
    return x.astype(np.float32), labels


def queries(condition, kind):
    """Return rows like those of the fit, and as many that leave the space they lie in."""
    x, _ = drawn(TEST, condition, kind, 2)
    off = (
        np.random.default_rng(9).standard_normal((TEST // 2, D))
        * np.logspace(-5, 0, TEST // 2)[:, None]
    )
    x[TEST // 2 :] += off.astype(np.float32)
    return x


def factor(a):
    lower = np.zeros_like(a)
    for j in range(len(a)):
        lower[j, j] = np.sqrt(a[j, j] - lower[j, :j] @ lower[j, :j])
        below = a[j + 1 :, j] - lower[j + 1 :, :j] @ lower[j, :j]
        lower[j + 1 :, j] = below / lower[j, j]
    return lower


def squared(x, mean, lower):
    offset = (x - mean).T
    white = np.zeros_like(offset)
    for i in range(len(lower)):
        white[i] = (offset[i] - lower[i, :i] @ white[:i]) / lower[i, i]
    return (white * white).sum(axis=0)


def regularised(covariance, how, rows):
    mean = np.trace(covariance) / D
    if how == "ridge":
        return factor(covariance + Long(1e-6) * mean * np.eye(D, dtype=Long))
    square, total = (covariance * covariance).sum(), np.trace(covariance) ** 2
    below = (rows + 1 - Long(2) / D) * (square - total / D)
    share = min(Long(1), ((1 - Long(2) / D) * square + total) / below)
    return factor((1 - share) * covariance + share * mean * np.eye(D, dtype=Long))


def reference(name, how, x, y, test):
    """Return scores in extended precision."""
    x, test, n = x.astype(Long), test.astype(Long), len(x)
    groups = [x[y == c] for c in range(CLASSES)]
    means = [rows.mean(axis=0) for rows in groups]
    scatters = [(r - m).T @ (r - m) for r, m in zip(groups, means, strict=True)]
    if name == "gmm":
        logs = []
        for rows, mean, scatter in zip(groups, means, scatters, strict=True):
            lower = regularised(scatter / len(rows), how, len(rows))
            norm = np.log(np.diag(lower)).sum() + D * np.log(2 * Long(np.pi)) / 2
            share = np.log(Long(len(rows)) / n)
            logs.append(share - norm - squared(test, mean, lower) / 2)
        top = np.max(logs, axis=0)
        return -top - np.log(np.exp(logs - top).sum(axis=0))
    within = regularised(sum(scatters) / n, how, n)
    nearest = np.min([squared(test, mean, within) for mean in means], axis=0)
    if name == "mahalanobis":
        return nearest
    centre = x.mean(axis=0)
    background = regularised((x - centre).T @ (x - centre) / n, how, n)
    return nearest - squared(test, centre, background)


def fitted(detector, x, y):
    return drive.outcome(detector, Data({"features": x, "labels": y}, CLASSES).cut())


def scores(scorer, x):
    labels = np.zeros(len(x), int)
    return drive.scores_of(scorer, Data({"features": x, "labels": labels}, CLASSES).cut())


DETECTORS = {
    "mahalanobis": Mahalanobis,
    "relative_mahalanobis": RelativeMahalanobis,
    "gmm": GMM,
}


@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DETECTORS)
def test_scores_and_ranks_are_those_of_extended_precision(name, kind, condition, rows):
    x, y = drawn(rows, condition, kind, 1)
    test = queries(condition, kind)
    for how, said in (("ridge", "ridge 1e-06 of trace/d"), ("oas", "OAS shrinkage")):
        scorer = fitted(DETECTORS[name](covariance=how), x, y)
        found = scores(scorer, test)
        expected = reference(name, how, x, y, test).astype(np.float64)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
        assert stats.spearmanr(found, expected)[0] > 1 - 1e-9
        text = "; ".join(scorer.notes)
        assert said in text
        if rows == FEW and name != "gmm":
            assert f"rank {FEW - CLASSES} of {D}" in text
        if name == "mahalanobis":
            assert found.min() >= 0


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["pinvh", "scatter"])
def test_distances_are_never_negative(how, kind, condition):
    for rows in (FEW, MANY):
        x, y = drawn(rows, condition, kind, 1)
        found = scores(fitted(Mahalanobis(covariance=how), x, y), queries(condition, kind))
        assert (found >= 0).all()
        assert np.isfinite(found).all()


@pytest.mark.parametrize("normalize", [0.5, 1.0])
def test_normalised_features_are_no_exception(normalize):
    x, y = drawn(MANY, 1e9, "layer norm", 1)
    found = scores(fitted(Mahalanobis(normalize=normalize), x, y), queries(1e9, "layer norm"))
    assert (found >= 0).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_residuals_of_vim_are_those_of_a_singular_value_decomposition(kind, condition):
    x, y = drawn(MANY, condition, kind, 1)
    test = queries(condition, kind)
    weight = np.random.default_rng(3).standard_normal((CLASSES, D))
    bias = 20.0 + np.arange(CLASSES)
    scorer = fitted(ViM(LinearHead(Const(weight), Const(bias)), dim=8), x, y)
    wide, test64 = x.astype(np.float64), test.astype(np.float64)
    expected = reference_formulas.vim(wide, weight, bias, test64, 8)
    found = scores(scorer, test)
    np.testing.assert_allclose(found, expected, rtol=1e-7)
    assert stats.spearmanr(found, expected)[0] > 1 - 1e-9
    assert "principal space 8 of 32, the fit rows span" in scorer.notes[0]
