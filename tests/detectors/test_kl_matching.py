import numpy as np
import pytest
import reference_formulas as reference
from scipy import stats

from pipeline.detectors import KLMatching
from pipeline.testing import Data, DetectorLaws, drive


def scores(train, test):
    """Fit on rows of logits, score others."""
    train, test = np.asarray(train, np.float64), np.asarray(test, np.float64)
    labels = np.zeros(len(train), np.int64)
    data = Data({"logits": train, "labels": labels}, train.shape[1])
    scorer = drive.outcome(KLMatching(), data.cut())
    return drive.scores_of(scorer, Data({"logits": test}, train.shape[1]).cut())


def logits_of(probabilities):
    """Return logits whose softmax is exactly 0 where the probability is."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(probabilities), -2000.0)


class TestKLMatching(DetectorLaws):
    detector = KLMatching()

    def reference(self, train, test):
        _, _, logits = reference.fit_rows(train)
        return reference.kl_matching(logits, test["logits"])


@pytest.mark.parametrize(
    ("p", "d", "expected"),
    [
        ([1.0, 0.0, 0.0], [0.8, 0.2, 0.0], 0.2231436),
        ([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], np.inf),
        ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5], 0.1732868),
    ],
)
def test_a10_zeros_of_either_side(p, d, expected):
    (found,) = scores([logits_of(d)], [logits_of(p)])
    assert found == pytest.approx(expected, rel=1e-6)
    assert found == pytest.approx(stats.entropy(p, d), rel=1e-12)


def test_extreme_logits_are_never_nan():
    extreme = [[1000.0, 0.0, -1000.0], [-1e300, 0.0, 1e300], [0.0, 0.0, 0.0]]
    found = scores([[1000.0, 0.0, -1000.0]], extreme)
    np.testing.assert_array_equal(found, [0.0, np.inf, np.inf])


def test_an_infinite_divergence_from_one_class_leaves_the_others():
    train = logits_of([[1.0, 0.0, 0.0], [0.2, 0.4, 0.4]])
    test = logits_of([[0.5, 0.5, 0.0]])
    expected = stats.entropy([0.5, 0.5, 0.0], [0.2, 0.4, 0.4])
    np.testing.assert_allclose(scores(train, test), expected, rtol=1e-12)


def test_a_probability_below_rounding_does_not_make_a_row_infinite():
    train = [[2000.0, 0.0]]
    found = scores(train, [[400.0, 0.0], [20.0, 0.0]])
    assert found[0] == pytest.approx(0.0, abs=1e-12)
    assert found[1] == np.inf


def test_digits_survive_large_logits():
    train = np.array([[30.0, 0.0], [33.0, 0.0]])
    test = np.array([[31.0, 0.0], [36.0, 0.0]])
    np.testing.assert_allclose(scores(train + 1e4, test + 1e4), scores(train, test), atol=1e-15)


def test_classes_that_are_never_predicted_are_left_out():
    rng = np.random.default_rng(0)
    train, test = rng.standard_normal((2, 50, 6))
    train[:, 4] -= 100.0
    np.testing.assert_allclose(
        scores(train, test), reference.kl_matching(train, test), rtol=1e-10, atol=1e-14
    )


def test_divergence_from_the_own_template_is_never_below_zero():
    rng = np.random.default_rng(1)
    for row in rng.standard_normal((20, 1, 7)):
        (found,) = scores(row, row)
        assert 0.0 <= found < 1e-14
