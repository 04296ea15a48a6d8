from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import pinvh
from scipy.spatial.distance import cdist
from sklearn.covariance import OAS

from pipeline.arrays import to_host
from pipeline.errors import ConfigError, DataError
from pipeline.linalg import (
    least_norm_root,
    nearest_squared,
    oas_shrinkage,
    principal_axes,
    regularise,
    whiten,
)
from pipeline.testing.drive import PLACES

RNG = np.random.default_rng(0)


def covariance(d: int, rank: int) -> Any:
    x = RNG.standard_normal((5 * d, rank)) @ RNG.standard_normal((rank, d))
    return x.T @ x / len(x)


@pytest.mark.parametrize("rank", [8, 5, 1])
def test_ridge_whitens_covariance_and_ridge(rank: int) -> None:
    S = covariance(8, rank)
    white = whiten(S, "ridge", 1e-3)
    ridged = S + white.ridge * np.trace(S) / 8 * np.eye(8)
    np.testing.assert_allclose(white.matrix.T @ ridged @ white.matrix, np.eye(8), atol=1e-9)
    assert white.ridge == 1e-3
    assert white.rank == rank
    assert f"rank {rank} of 8" in white.note


@pytest.mark.parametrize("rank", [8, 5, 1])
def test_pinvh_is_the_pseudo_inverse(rank: int) -> None:
    S = covariance(8, rank)
    white = whiten(S, "pinvh")
    assert white.matrix.shape == (8, rank)
    np.testing.assert_allclose(white.matrix @ white.matrix.T, pinvh(S), rtol=1e-6, atol=1e-9)
    assert "pseudo-inverse" in white.note


def test_a_ridge_that_never_suffices_is_an_error() -> None:
    with pytest.raises(DataError, match=r"no Cholesky factor .* on the diagonal; choose a larger"):
        regularise(1e30 * (np.ones((3, 3)) - 1e-9 * np.eye(3)), "jitter", 1e-6, 10)


def test_a_ridge_grows_until_a_factor_exists() -> None:
    S = covariance(60, 3)
    S -= 1e-12 * np.trace(S) * np.eye(60)
    white = whiten(S, "ridge", 1e-15)
    assert white.ridge > 1e-15
    assert np.isfinite(white.matrix).all()


@pytest.mark.parametrize("rows", [3, 20, 500])
@pytest.mark.parametrize("d", [2, 12, 60])
def test_shrinkage_is_the_oracle_approximation(rows: int, d: int) -> None:
    x = RNG.standard_normal((rows, d)) * np.logspace(0, -1, d)
    S = np.cov(x.T, ddof=0)
    trace, square = np.trace(S), np.trace(S @ S)
    above = (1 - 2 / d) * square + trace**2
    expected = min(1.0, above / ((rows + 1 - 2 / d) * (square - trace**2 / d)))
    found = oas_shrinkage(S, rows)
    assert found == pytest.approx(expected, rel=1e-12)
    # scikit-learn leaves the terms 2/d out, which it finds do not matter for many features.
    theirs = OAS().fit(x)
    with_terms = above / (square + trace**2) * (rows + 1) / (rows + 1 - 2 / d)
    assert found == pytest.approx(min(1.0, theirs.shrinkage_ * with_terms), rel=1e-9) or 1.0 in (
        found, theirs.shrinkage_,
    )  # fmt: skip
    assert abs(found - theirs.shrinkage_) <= 2 / d
    made = regularise(S, "oas", 1e-6, rows)
    shrunk = (1 - found) * S + found * trace / d * np.eye(d)
    np.testing.assert_allclose(made.factor @ made.factor.T, shrunk, atol=1e-12)
    assert made.log_determinant == pytest.approx(np.linalg.slogdet(shrunk)[1], rel=1e-9)
    assert made.ridge == 0


def test_features_alike_in_all_directions_are_shrunk_wholly() -> None:
    assert oas_shrinkage(3.0 * np.eye(5), 10) == 1.0
    assert oas_shrinkage(np.array([[2.0]]), 10) == 1.0


def test_tokens_of_an_image_count_as_one_for_the_shrinkage() -> None:
    S = covariance(8, 8)
    many, few = whiten(S, "oas", rows=4900), whiten(S, "oas", rows=4900, tokens=49)
    assert f"OAS shrinkage {oas_shrinkage(S, 4900):.1e}" in many.note
    assert f"OAS shrinkage {oas_shrinkage(S, 100):.1e}" in few.note


@pytest.mark.parametrize("rank", [8, 5])
def test_the_scatter_is_not_divided_and_has_the_ridge_itself(rank: int) -> None:
    S, rows = covariance(8, rank), 40
    white = whiten(S, "scatter", 1e-3, rows=rows)
    ridged = S * rows + 1e-3 * np.eye(8)
    np.testing.assert_allclose(white.matrix.T @ ridged @ white.matrix, np.eye(8), atol=1e-8)
    assert "ridge 1e-03 on the diagonal of the scatter" in white.note
    made = regularise(S, "jitter", 1e-3, rows)
    np.testing.assert_allclose(made.factor @ made.factor.T, S + 1e-3 * np.eye(8), atol=1e-12)
    assert made.words == "ridge 1e-03 on the diagonal"


def test_scale_does_not_matter() -> None:
    S = covariance(6, 6)
    for scale in (1e-12, 1e12):
        white = whiten(S * scale).matrix * np.sqrt(scale)
        np.testing.assert_allclose(white, whiten(S).matrix, rtol=1e-8, atol=1e-8)


def test_what_cannot_be_whitened_is_refused() -> None:
    with pytest.raises(DataError, match="do not vary"):
        whiten(np.zeros((3, 3)))
    with pytest.raises(DataError, match="not finite"):
        whiten(np.full((3, 3), np.inf))
    with pytest.raises(ConfigError, match="covariance: 'inverse' is unknown"):
        whiten(np.eye(3), "inverse")
    for ridge in (0.0, -1.0, np.nan):
        with pytest.raises(ConfigError, match="ridge"):
            whiten(np.eye(3), "ridge", ridge)


@pytest.mark.parametrize("library", sorted(PLACES))
@pytest.mark.parametrize("shape", [(30,), (7, 4)])
def test_nearest_squared(library: str, shape: tuple[int, ...]) -> None:
    z, means = RNG.standard_normal((*shape, 5)), RNG.standard_normal((6, 5))
    put = PLACES[library].put
    found = to_host(nearest_squared(put(z), put(means)))
    expected = cdist(z.reshape(-1, 5), means, "sqeuclidean").min(axis=1).reshape(shape)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_nearest_squared_neither_cancels_nor_goes_negative() -> None:
    means = 1e6 + RNG.standard_normal((4, 5))
    z = means + 1e-3 * RNG.standard_normal((4, 5))
    expected = ((z - means) ** 2).sum(axis=1)
    np.testing.assert_allclose(nearest_squared(z, means), expected, rtol=1e-9)
    np.testing.assert_array_equal(nearest_squared(means, means), 0.0)


def test_principal_axes_come_largest_first() -> None:
    S = covariance(8, 5)
    axes, rank = principal_axes(S)
    assert rank == 5
    along = np.diag(axes.T @ S @ axes)
    assert (np.diff(along) <= 1e-9).all()
    np.testing.assert_allclose(axes.T @ axes, np.eye(8), atol=1e-12)


def test_least_norm_root() -> None:
    W, b = RNG.standard_normal((3, 6)), RNG.standard_normal(3)
    u = least_norm_root(W, b)
    np.testing.assert_allclose(W @ u, -b, atol=1e-12)
    np.testing.assert_allclose(u, W.T @ np.linalg.solve(W @ W.T, -b), atol=1e-12)
    dependent = np.vstack([W, -W.sum(axis=0)])
    again = least_norm_root(dependent, np.append(b, -b.sum()))
    np.testing.assert_allclose(again, u, atol=1e-10)


def test_a_head_that_was_rounded_to_float32_has_the_root_of_the_exact_one() -> None:
    random = np.random.default_rng(3)
    W = random.standard_normal((6, 10))
    W -= W.mean(axis=0)  # dependent rows, as in a linear discriminant
    u = random.standard_normal(10)
    u = np.linalg.pinv(W) @ (W @ u)  # of least norm
    rounded = W.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(least_norm_root(rounded, -W @ u), u, atol=1e-5)
