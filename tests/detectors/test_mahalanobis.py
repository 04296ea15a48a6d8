import numpy as np
import pytest
import reference_formulas as reference
from scipy import linalg

from pipeline.detectors import Mahalanobis
from pipeline.errors import ConfigError, DataError
from pipeline.linalg import whiten
from pipeline.statistics import ClassMoments
from pipeline.testing import Data, DetectorLaws, drive


def fitted(features, labels, detector=None, classes=None):
    labels = np.asarray(labels, np.int64)
    data = Data({"features": features, "labels": labels}, classes or int(labels.max()) + 1)
    return drive.outcome(detector or Mahalanobis(), data.cut())


def scores(scorer, features):
    return drive.scores_of(scorer, Data({"features": features}, 1).cut())


class TestMahalanobis(DetectorLaws):
    detector = Mahalanobis()

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        return reference.mahalanobis(x, y, reference.pooled(test))


class TestMahalanobisOverTokens(DetectorLaws):
    detector = Mahalanobis(pool="tokens", precision="float64")

    def reference(self, train, test):
        known = train["labels"] >= 0
        x = train["features"][known].astype(np.float64)
        tokens, y = x.reshape(-1, x.shape[-1]), np.repeat(train["labels"][known], x.shape[1])
        return reference.mahalanobis(tokens, y, test["features"].astype(np.float64))


def test_pseudo_inverse():
    laws = TestMahalanobis()
    x, y, _ = reference.fit_rows(laws.id_train().arrays)
    scorer = fitted(x, y, Mahalanobis(covariance="pinvh"))
    expected = reference.mahalanobis(x, y, x, linalg.pinvh)
    np.testing.assert_allclose(scores(scorer, x), expected, rtol=1e-9)


def test_the_scatter_with_half_the_score_is_the_convention_of_pytorch_ood():
    laws = TestMahalanobis()
    x, y, _ = reference.fit_rows(laws.id_train().arrays)
    scorer = fitted(x, y, Mahalanobis(**Mahalanobis.presets["pytorch-ood-0.4"]))
    expected = reference.mahalanobis(
        x, y, x, lambda s: np.linalg.inv(s * len(x) + 1e-6 * np.eye(len(s)))
    )
    np.testing.assert_allclose(scores(scorer, x), expected / 2, rtol=1e-9)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_directions_alone(beta):
    laws = TestMahalanobis()
    x, y, _ = reference.fit_rows(laws.id_train().arrays)
    length = np.linalg.norm(x, axis=1, keepdims=True)
    scorer = fitted(x, y, Mahalanobis(normalize=beta))
    expected = reference.mahalanobis(x / length**beta, y, x / length**beta)
    np.testing.assert_allclose(scores(scorer, x), expected, rtol=1e-8)
    if beta == 1.0:
        np.testing.assert_allclose(scores(scorer, 7.0 * x), expected, rtol=1e-8)
    assert np.isfinite(scores(scorer, np.zeros((1, x.shape[1])))).all()


def test_directions_of_tokens():
    data = TestMahalanobisOverTokens().id_train()
    known = data.arrays["labels"] >= 0
    tokens = data.arrays["features"][known].astype(np.float64)
    units = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    detector = Mahalanobis(pool="tokens", normalize=1.0, image="top1")
    scorer = drive.outcome(detector, data.cut())
    y = np.repeat(data.arrays["labels"][known], tokens.shape[1])
    expected = reference.mahalanobis(units.reshape(-1, units.shape[-1]), y, units)
    found = drive.scores_of(scorer, data.take(known).cut())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert scorer.image == "top1"


def test_few_rows_are_shrunk():
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((30, 80)), np.arange(30) % 3
    scorer = fitted(features, labels, Mahalanobis(covariance="oas"))
    assert "rank 27 of 80" in scorer.notes[0]
    assert "OAS shrinkage" in scorer.notes[0]
    others = scores(scorer, rng.standard_normal((50, 80)))
    # With a ridge, what was not fitted on is thousands of times as far.
    assert np.median(others) < 3 * np.median(scores(scorer, features))


def test_float32_products_are_close_to_float64_ones():
    data = TestMahalanobisOverTokens().id_train()
    fast = drive.outcome(Mahalanobis(pool="tokens"), data.cut())
    exact = drive.outcome(TestMahalanobisOverTokens.detector, data.cut())
    found, expected = (drive.scores_of(s, data.cut()) for s in (fast, exact))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_singular_covariance_has_the_distances_of_the_pseudo_inverse():
    features = np.array([[0.0, 0.0], [2.0, 4.0], [4.0, 8.0], [6.0, 12.0]])
    scorer = fitted(features, [0, 0, 0, 0], Mahalanobis(covariance="pinvh"))
    np.testing.assert_allclose(scores(scorer, features), [1.8, 0.2, 0.2, 1.8], rtol=1e-12)
    assert "rank 1 of 2" in scorer.notes[0]
    assert "pseudo-inverse" in scorer.notes[0]


def test_a12_singular_covariance_has_the_precision_of_the_pseudo_inverse():
    matrix = whiten(np.array([[5.0, 10.0], [10.0, 20.0]]), "pinvh").matrix
    np.testing.assert_allclose(matrix @ matrix.T, [[0.008, 0.016], [0.016, 0.032]], rtol=1e-12)


@pytest.mark.parametrize("partition", [[[1, 1]], [[1], [1]], [[2]]])
def test_a11_covariance_does_not_cancel_far_from_zero(partition):
    features = np.array([[5001, 5000], [5000, 5001]], np.float32)
    data = Data({"features": features, "labels": np.zeros(2, np.int64)}, 1)
    moments = drive.fold_all(ClassMoments(), data.cut(partition))
    np.testing.assert_allclose(moments.covariance, [[0.25, -0.25], [-0.25, 0.25]], rtol=1e-12)


def test_ridge_is_reported():
    features = np.array([[0.0, 0.0], [2.0, 4.0], [4.0, 8.0], [6.0, 12.0]])
    scorer = fitted(features, [0, 0, 0, 0])
    np.testing.assert_allclose(scores(scorer, features), [1.8, 0.2, 0.2, 1.8], rtol=1e-5)
    assert "rank 1 of 2" in scorer.notes[0]
    assert "ridge 1e-06" in scorer.notes[0]


def test_a_dead_unit_counts_with_a_ridge_and_is_invisible_to_the_pseudo_inverse():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((200, 4))
    features[:, 3] = 0.0
    labels = rng.integers(0, 2, 200)
    lit = np.array([[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    blind = scores(fitted(features, labels, Mahalanobis(covariance="pinvh")), lit)
    seeing = scores(fitted(features, labels), lit)
    assert blind[0] == pytest.approx(blind[1], rel=1e-12)
    assert seeing[0] > 1e5 * seeing[1]


def test_fewer_rows_than_features():
    rng = np.random.default_rng(1)
    features, labels = rng.standard_normal((30, 80)), np.arange(30) % 3
    scorer = fitted(features, labels)
    found = scores(scorer, features)
    np.testing.assert_allclose(found, reference.mahalanobis(features, labels, features), rtol=1e-7)
    assert "rank 27 of 80" in scorer.notes[0]
    assert scores(scorer, features + 1.0).min() > 100 * found.max()


def test_a_class_of_one_row_and_absent_classes():
    rng = np.random.default_rng(2)
    features, labels = rng.standard_normal((60, 3)), np.arange(60) % 2
    features, labels = np.vstack([features, [[50.0, 0, 0]]]), [*labels, 7]
    found = scores(fitted(features, labels, classes=9), features)
    expected = reference.mahalanobis(features, np.array(labels), features)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert found[-1] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("how", ["ridge", "pinvh"])
def test_distances_are_never_negative_at_condition_1e10(how):
    rng = np.random.default_rng(3)
    rotation = linalg.qr(rng.standard_normal((40, 40)))[0]
    features = rng.standard_normal((500, 40)) * np.logspace(0, -5, 40) @ rotation + 100.0
    labels = np.arange(500) % 4
    found = scores(fitted(features, labels, Mahalanobis(covariance=how)), features)
    assert (found >= 0).all()
    if how == "pinvh":
        expected = reference.mahalanobis(features, labels, features, linalg.pinvh)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_float32_products_do_not_invent_directions():
    rng = np.random.default_rng(4)
    tokens = rng.standard_normal((60, 6, 8)).astype(np.float32)
    tokens[..., 7] = -tokens[..., :7].sum(axis=-1)  # dependent, as after a layer norm
    scorer = fitted(tokens, np.arange(60) % 2, Mahalanobis(pool="tokens", covariance="pinvh"))
    assert "rank 7 of 8" in scorer.notes[0]


@pytest.mark.parametrize(
    "options",
    [
        {"covariance": "full"},
        {"ridge": 0},
        {"ridge": -1e-6},
        {"ridge": float("nan")},
        {"normalize": float("inf")},
        {"scale": 0},
        {"scale": float("nan")},
        {"image": "median"},
    ],
)
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Mahalanobis(**options)


def test_unknown_pool_is_refused_before_anything_is_read():
    data = Data({"features": np.zeros((3, 2)), "labels": np.zeros(3, np.int64)}, 1)
    with pytest.raises(ConfigError, match="pool: 'median'"):
        next(Mahalanobis(pool="median").passes(data.schema))


def test_rows_that_do_not_vary_are_an_error():
    with pytest.raises(DataError, match="do not vary"):
        fitted(np.ones((4, 2)), [0, 0, 1, 1])
