import numpy as np
import pytest
from scipy import linalg

from pipeline.errors import ConfigError, DataError
from pipeline.linalg import least_norm_root, nearest_squared, principal_axes, whiten
from pipeline.statistics import ClassMoments
from pipeline.testing import Data, drive

DEPENDENT = np.array([[5.0, 10.0], [10.0, 20.0]])


def test_covariance_does_not_cancel_far_from_zero():
    features = np.array([[5001, 5000], [5000, 5001]], np.float32)
    data = Data({"features": features, "labels": np.zeros(2, np.int64)}, 1)
    for partition in ([[1, 1]], [[1], [1]], [[2]]):
        moments = drive.fold_all(ClassMoments(), data.cut(partition))
        np.testing.assert_array_equal(moments.covariance, [[0.25, -0.25], [-0.25, 0.25]])


def test_pseudo_inverse_of_a_singular_covariance():
    white = whiten(DEPENDENT, "pinvh")
    precision = white.matrix @ white.matrix.T
    np.testing.assert_allclose(precision, [[0.008, 0.016], [0.016, 0.032]], rtol=1e-12)
    assert white.rank == 1
    assert white.condition == 1.0
    assert white.note == "covariance of rank 1 of 2, condition 1.0e+00; pseudo-inverse"


def test_ridge_is_raised_until_a_factor_exists():
    # Rounding of large entries leaves an eigenvalue that is clearly below zero.
    broken = np.diag([1.0, 1.0, -1e-4])
    white = whiten(broken)
    assert white.ridge == pytest.approx(1e-3)
    assert "ridge 1e-03" in white.note


@pytest.mark.parametrize("how", ["ridge", "pinvh"])
@pytest.mark.parametrize("decades", [0, 5, 10])
def test_whitening_is_the_inverse(how, decades):
    rng = np.random.default_rng(decades)
    rotation = linalg.qr(rng.standard_normal((30, 30)))[0]
    covariance = rotation * np.logspace(0, -decades, 30) @ rotation.T
    white = whiten((covariance + covariance.T) / 2, how)
    ridged = covariance + white.ridge * np.trace(covariance) / 30 * np.eye(30)
    expected = linalg.pinvh(ridged)
    found = white.matrix @ white.matrix.T
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(found @ ridged, np.eye(30), atol=1e-16 * 10**decades * 1e2)


def test_scale_changes_nothing_but_the_scale():
    small, large = whiten(DEPENDENT * 1e-12), whiten(DEPENDENT * 1e12)
    np.testing.assert_allclose(small.matrix, large.matrix * 1e12, rtol=1e-9)


@pytest.mark.parametrize(
    ("covariance", "match"),
    [(np.zeros((2, 2)), "do not vary"), (np.full((2, 2), np.inf), "finite")],
)
def test_covariances_that_say_nothing_are_refused(covariance, match):
    with pytest.raises(DataError, match=match):
        whiten(covariance)


@pytest.mark.parametrize(("how", "ridge"), [("oas", 1e-6), ("ridge", 0.0), ("ridge", np.nan)])
def test_options_are_checked(how, ridge):
    with pytest.raises(ConfigError):
        whiten(DEPENDENT, how, ridge)


def test_nearest_is_exact_where_the_expanded_square_cancels():
    means = np.array([[1e8, 0.0], [1e8, 1.0], [-1e8, 0.0]])
    z = np.array([[[1e8, 0.25], [1e8, 1.0]], [[-1e8, 3.0], [0.0, 0.0]]])
    found = nearest_squared(z, means)
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found[1], [9.0, 1e16])
    assert (found >= 0).all()
    assert found[0].max() <= 1.0  # a distance to one of the two near ones


def test_principal_axes_are_largest_first():
    axes, rank = principal_axes(np.diag([1.0, 4.0, 0.0, 2.0]))
    np.testing.assert_array_equal(np.abs(axes), np.eye(4)[:, [1, 3, 0, 2]])
    assert rank == 3


def test_least_norm_root():
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((3, 7)), rng.standard_normal(3)
    root = least_norm_root(weight, bias)
    np.testing.assert_allclose(weight @ root, -bias, rtol=1e-12)
    np.testing.assert_allclose(root, -linalg.pinv(weight) @ bias, rtol=1e-12)


def test_rows_that_depend_up_to_rounding_do_not_send_the_root_away():
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((4, 9))
    weight[3] = -weight[:3].sum(axis=0) * (1 + 1e-13)
    assert np.abs(least_norm_root(weight, np.ones(4))).max() < 10.0
