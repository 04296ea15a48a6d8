"""Linear algebra in float64: whitening a covariance, and distances in whitened space.

No inverse is ever formed: a covariance is whitened once and distances are compared in whitened
space, where they cannot be negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.content import Const
from pipeline.errors import ConfigError, DataError

Host = np.ndarray[Any, Any]

RIDGE_STEPS = 12
BASE_FEATURES = 64
"""Width at which a triangular matrix is inverted at once."""
COVARIANCES = ("ridge", "pinvh")


@dataclass(frozen=True)
class Whitening:
    """A matrix W (d, r) with |x W|^2 = x' S^-1 x for the regularised covariance S."""

    matrix: Host
    ridge: float
    """Ridge that was added, relative to trace / d; 0 for the pseudo-inverse."""
    rank: int
    condition: float
    """Largest eigenvalue over the smallest above the rank cut-off, before regularisation."""

    @property
    def note(self) -> str:
        """One line for the report."""
        d = self.matrix.shape[0]
        how = f"ridge {self.ridge:.0e} of trace/d" if self.ridge else "pseudo-inverse"
        return f"covariance of rank {self.rank} of {d}, condition {self.condition:.1e}; {how}"


def check_regularisation(how: str, ridge: float) -> None:
    """Raise :class:`ConfigError` for an unknown ``how`` or a ridge that is not above 0."""
    if how not in COVARIANCES:
        raise ConfigError(f"covariance: {how!r} is unknown; choose {' or '.join(COVARIANCES)}")
    if not 0 < ridge < np.inf:
        raise ConfigError(f"ridge: {ridge!r}; expected a finite number above 0, such as 1e-6")


def whiten(
    covariance: Host, how: str = "ridge", ridge: float = 1e-6, products: str = "float64"
) -> Whitening:
    """Whiten a covariance (d, d).

    ``ridge`` adds ``ridge`` times trace / d to the diagonal, ten times more until a float64
    Cholesky factor exists. ``pinvh`` drops directions whose eigenvalue is below d * eps times the
    largest, as ``scipy.linalg.pinvh`` does; eps is that of ``products``, the dtype in which the
    products of the covariance were formed. The last few results are remembered, since detectors
    and heads that are fitted together share their covariances. Raises :class:`DataError` if every
    entry is zero or one is not finite, and :class:`ConfigError` for an unknown ``how`` or a ridge
    that is not above 0.
    """
    check_regularisation(how, ridge)
    if not np.isfinite(covariance).all():
        raise DataError("the covariance of the fit rows is not finite; look for huge features")
    if not np.trace(covariance) > 0:
        raise DataError(
            "the features of the fit rows do not vary within their classes (covariance is zero); "
            "fit on more rows per class"
        )
    return _whiten(Const(covariance), how, ridge, products)


@lru_cache(maxsize=2)
def _whiten(constant: Const, how: str, ridge: float, products: str) -> Whitening:
    covariance = constant.array
    if how == "pinvh":
        values, vectors = np.linalg.eigh(covariance)
        kept = _above_rounding(values, products)
        return Whitening(vectors[:, kept] / np.sqrt(values[kept]), 0.0, *_quality(values[kept]))
    factor, added = _ridge_cholesky(covariance, ridge)
    values = np.linalg.eigvalsh(covariance)
    quality = _quality(values[_above_rounding(values, products)])
    return Whitening(np.ascontiguousarray(lower_inverse(factor).T), added, *quality)


def _above_rounding(values: Host, products: str = "float64") -> Host:
    """Tell which of the eigenvalues (d,), smallest first, are more than rounding."""
    above: Host = values > len(values) * np.finfo(products).eps * values[-1]
    return above


def _quality(values: Host) -> tuple[int, float]:
    """Return rank and condition from the eigenvalues above rounding, smallest first."""
    return len(values), float(values[-1] / values[0])


def _ridge_cholesky(covariance: Host, ridge: float) -> tuple[Host, float]:
    """Return a Cholesky factor of the covariance plus a ridge, and that ridge over trace / d."""
    d = len(covariance)
    for step in range(RIDGE_STEPS):
        added = ridge * 10.0**step
        try:
            ridged = covariance + added * np.trace(covariance) / d * np.eye(d)
            return np.linalg.cholesky(ridged), added
        except np.linalg.LinAlgError:
            continue
    raise DataError(f"no Cholesky factor with a ridge of up to {added:.0e} of trace / d")


def principal_axes(moment: Host, products: str = "float64") -> tuple[Host, int]:
    """Return the eigenvectors of a second moment (d, d) as columns, largest first, and its rank.

    ``products`` is the dtype in which the products of the moment were formed: it bounds the rank.
    """
    values, vectors = np.linalg.eigh(moment)
    return np.ascontiguousarray(vectors[:, ::-1]), int(_above_rounding(values, products).sum())


def least_norm_root(weight: Host, bias: Host) -> Host:
    """Return the shortest u (d,) that solves W u = -b in the least-squares sense.

    Singular values of W (k, d) below 1e-10 of the largest count as zero: the rows of a linear
    discriminant head are dependent up to rounding, and would send u far away otherwise.
    """
    k, d = weight.shape
    if k <= d:
        # W' = Q R with R that can be inverted: u = -Q R^-T b, at a fifth of the cost.
        orthogonal, upper = np.linalg.qr(weight.T)
        diagonal = np.abs(np.diag(upper))
        if diagonal.min() > 1e-10 * diagonal.max():
            inverse = lower_inverse(upper.T)
            if np.linalg.norm(inverse) * np.linalg.norm(upper) < 1e10:
                root: Host = -orthogonal @ (inverse @ bias)
                return root
    return -np.linalg.pinv(weight, rtol=1e-10) @ bias


def lower_inverse(factor: Host) -> Host:
    """Return the inverse of a lower triangular matrix (d, d), by halves: nearly all products."""
    d = len(factor)
    if d <= BASE_FEATURES:
        return np.tril(np.linalg.inv(np.tril(factor)))
    half = d // 2
    inverse = np.zeros_like(factor, order="C")
    top, bottom = lower_inverse(factor[:half, :half]), lower_inverse(factor[half:, half:])
    inverse[:half, :half], inverse[half:, half:] = top, bottom
    inverse[half:, :half] = -bottom @ (factor[half:, :half] @ top)
    return inverse


def nearest_squared(z: Array, means: Array) -> Array:
    """Return the squared distance (...) of each vector of ``z`` (..., r) to the nearest mean.

    The nearest is found by the expanded square, one product for all classes; its distance is then
    taken directly, which removes the cancellation and keeps it from going negative.
    """
    xp = arrays.namespace(z, means)
    half_norms = squared_norms(means) / 2
    directions = xp.matrix_transpose(means)

    def to_nearest(rows: Array) -> Array:
        closeness = arrays.row_products(rows, directions)
        closeness -= half_norms
        nearest = xp.take(means, xp.argmax(closeness, axis=1), axis=0)
        return xp.sum((rows - nearest) ** 2, axis=1)

    flat = xp.reshape(z, (-1, z.shape[-1]))
    return xp.reshape(arrays.by_tiles(to_nearest, flat), z.shape[:-1])


def squared_norms(z: Array) -> Array:
    """Return the squared length (...) of each vector of ``z`` (..., r)."""
    xp = arrays.namespace(z)
    flat = xp.reshape(z, (-1, z.shape[-1]))
    return xp.reshape(arrays.by_tiles(lambda rows: xp.sum(rows * rows, axis=1), flat), z.shape[:-1])
