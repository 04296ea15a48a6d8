import numpy as np
import pytest
from sklearn.decomposition import PCA

from pipeline import synthetic
from pipeline.errors import ConfigError, DataError
from pipeline.procedure import REHEARSING
from pipeline.subspace import (
    MADE_UP_ROWS,
    as_components,
    dim_within,
    principal_space,
    refuse_components,
    usual_dim,
)


def covariance(d=8, seed=0, rank=None):
    x = np.random.default_rng(seed).standard_normal((100, rank or d))
    return np.cov((x @ np.random.default_rng(1).standard_normal((x.shape[1], d))).T, ddof=0), x


@pytest.fixture
def rehearsing():
    token = REHEARSING.set(True)
    yield
    REHEARSING.reset(token)


def test_axes_and_variances_are_those_of_the_eigenvectors_largest_first():
    moment, _ = covariance()
    space = principal_space(moment)
    values = np.linalg.eigvalsh(moment)[::-1]
    np.testing.assert_allclose(space.variances, values, rtol=1e-10)
    np.testing.assert_allclose(space.axes * space.variances @ space.axes.T, moment, atol=1e-12)
    assert space.rank == 8


def test_directions_without_variance_are_not_spanned_and_never_negative():
    moment, _ = covariance(rank=3)
    space = principal_space(moment)
    assert space.rank == 3
    assert (space.variances >= 0).all()
    assert space.held(3) == pytest.approx(1.0, rel=1e-12)
    assert principal_space(np.zeros((4, 4))).rank == 0
    assert principal_space(np.zeros((4, 4))).held(1) == 0.0


def test_equal_moments_are_decomposed_once():
    moment, _ = covariance()
    assert principal_space(moment).axes is principal_space(moment.copy()).axes


def test_products_of_float32_span_less():
    moment = np.diag([1.0, 1e-10])
    assert principal_space(moment).rank == 2
    assert principal_space(moment, "float32").rank == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.95])
def test_a_share_takes_the_fewest_components(share):
    x = np.random.default_rng(2).standard_normal((300, 9)) * np.arange(1, 10)
    space = principal_space(np.cov(x.T, ddof=0))
    assert space.components(share, "it") == PCA(share).fit(x).n_components_


def test_what_a_share_leaves_out():
    space = principal_space(np.eye(4))
    assert space.components(0.99, "it") == 3
    assert space.components(0.99, "it", left_out=0) == 4
    assert space.components(0.75, "it") == 3
    assert space.components(1e-9, "it") == 1


def test_a_number_beyond_the_rank_is_an_error_that_names_the_detector():
    moment, _ = covariance(rank=3)
    with pytest.raises(DataError, match="it: the fit rows span 3 dimensions, and 3 components"):
        principal_space(moment).components(3, "it")
    assert principal_space(moment).components(3, "it", left_out=0) == 3
    with pytest.raises(DataError, match="4 components are more"):
        principal_space(moment).components(4, "it", left_out=0)


def test_a_rehearsal_spans_everything_with_the_axes_of_the_moment():
    moment = np.diag([1.0, 4.0, 0.0])
    real = principal_space(moment)
    assert real.rank == 2
    token = REHEARSING.set(True)
    try:
        space = principal_space(moment)
        assert space.rank == 3
        np.testing.assert_array_equal(space.axes, real.axes)  # a pinned pass has the true constants
        assert space.components(70, "it") == 70
    finally:
        REHEARSING.reset(token)


def test_made_up_rows_are_no_more_than_a_rehearsal_takes_them_for():
    assert synthetic.ROWS <= MADE_UP_ROWS


@pytest.mark.parametrize("rows", [64, 65, 400])
def test_a_rehearsal_decomposes_no_large_moment_of_made_up_rows(rows, rehearsing):
    x = np.random.default_rng(0).standard_normal((rows, 300))
    moment = x.T @ x / rows
    axes = principal_space(moment).axes
    assert (axes == np.eye(300)).all() == (rows == 64)


def test_what_a_rehearsal_keeps_may_divide(rehearsing):
    x = np.random.default_rng(0).standard_normal((64, 500))
    for width in (100, 500):
        moment = x[:20, :width].T @ x[:20, :width]
        assert (principal_space(moment).variances > 0).all()
    assert (principal_space(np.zeros((3, 3))).variances > 0).all()


def test_a_moment_that_is_not_finite_is_an_error():
    with pytest.raises(DataError, match="not finite"):
        principal_space(np.full((3, 3), np.inf))


@pytest.mark.parametrize("wanted", [0, -0.5, 1.5, float("nan"), float("inf"), True])
def test_components_are_a_number_or_a_share(wanted):
    with pytest.raises(ConfigError, match="components"):
        as_components(wanted)


def test_one_and_a_float_are_a_number():
    assert as_components(1.0) == 1
    assert isinstance(as_components(64.0), int)
    assert as_components(0.5) == 0.5


@pytest.mark.parametrize(
    ("wanted", "d", "rows"), [(8, 8, 100), (9, 8, 100), (5, 8, 5), (None, 1, 9)]
)
def test_what_leaves_no_residual_is_refused(wanted, d, rows):
    with pytest.raises(ConfigError, match="dim: "):
        refuse_components(wanted, d, rows, "dim")


def test_all_features_may_be_components_where_none_is_to_be_left_out():
    refuse_components(8, 8, 100, left_out=0)
    with pytest.raises(ConfigError, match="components: 9 of 8 features are too many"):
        refuse_components(9, 8, 100, left_out=0)


def test_rows_that_are_not_known_yet_refuse_nothing():
    refuse_components(7, 8, 0)


@pytest.mark.parametrize(("d", "dim"), [(12, 6), (768, 512), (1499, 512), (1500, 1000)])
def test_the_usual_dim(d, dim):
    assert usual_dim(d) == dim


@pytest.mark.parametrize(
    ("dim", "rank", "rows", "expected"),
    [(None, 12, 90, 6), (None, 5, 90, 2), (4, 12, 90, 4), (8, 5, 90, 8), (8, 5, 6, 2)],
)
def test_dim_within_what_is_spanned(dim, rank, rows, expected):
    assert dim_within(dim, 6, rank, rows) == expected
