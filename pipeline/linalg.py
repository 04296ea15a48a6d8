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
NEGLIGIBLE = 1e-6
"""Share of the largest singular value of a head below which one is rounding."""
BASE_FEATURES = 64
"""Width at which a triangular matrix is inverted at once."""
COVARIANCES = ("ridge", "pinvh", "oas", "scatter")
"""What may be whitened: see :func:`whiten`."""


@dataclass(frozen=True)
class Whitening:
    """A matrix W (d, r) with |x W|^2 = x' S^-1 x for the regularised covariance S."""

    matrix: Host
    ridge: float
    """Ridge that was added; 0 for the pseudo-inverse."""
    rank: int
    condition: float
    """Largest eigenvalue over the smallest above the rank cut-off, before regularisation."""
    regularisation: str
    """What was done about small eigenvalues, in words."""

    @property
    def note(self) -> str:
        """One line for the report."""
        d = self.matrix.shape[0]
        found = f"covariance of rank {self.rank} of {d}, condition {self.condition:.1e}"
        return f"{found}; {self.regularisation}"


@dataclass(frozen=True)
class Regularised:
    """The Cholesky factor L (d, d) of a regularised covariance L L', and what was done to it."""

    factor: Host
    ridge: float
    """Ridge that was added to the diagonal, in units of trace / d or of the diagonal itself."""
    shrinkage: float | None = None
    """Share of trace / d times the identity in it, where it was shrunk."""
    unit: str = ""

    @property
    def words(self) -> str:
        """What was done, for the report."""
        shrunk = f"OAS shrinkage {self.shrinkage:.1e}" if self.shrinkage is not None else ""
        ridge = f"ridge {self.ridge:.0e} {self.unit}" if self.ridge or not shrunk else ""
        return " and ".join(part for part in (shrunk, ridge) if part)

    @property
    def whitening(self) -> Host:
        """W = L'^-1 (d, d) with |x W|^2 = x' (L L')^-1 x."""
        return np.ascontiguousarray(lower_inverse(self.factor).T)

    @property
    def log_determinant(self) -> float:
        """Log of the determinant of L L'."""
        return float(2.0 * np.log(np.diag(self.factor)).sum())


def check_regularisation(how: str, ridge: float, known: tuple[str, ...] = COVARIANCES) -> None:
    """Raise :class:`ConfigError` for an unknown ``how`` or a ridge that is not above 0."""
    if how not in known:
        raise ConfigError(
            f"covariance: {how!r} is unknown; choose {', '.join(known[:-1])} or {known[-1]}"
        )
    if not 0 < ridge < np.inf:
        raise ConfigError(f"ridge: {ridge!r}; expected a finite number above 0, such as 1e-6")


def unused_ridge(how: str) -> dict[str, str]:
    """Return the option ``ridge`` with why it changes nothing, where it does not."""
    return {"ridge": f"covariance: {how}"} if how == "pinvh" else {}


def whiten(
    covariance: Host,
    how: str = "ridge",
    ridge: float = 1e-6,
    products: str = "float64",
    rows: int = 0,
    tokens: int = 1,
) -> Whitening:
    """Whiten a covariance (d, d) of ``rows`` rows, which ``oas`` and ``scatter`` must be given.

    So many ``tokens`` of them are of one image, and count as one for ``oas``: they are alike.
    ``ridge``, ``oas`` and ``scatter`` are those of :func:`regularise`. ``pinvh`` drops directions
    whose eigenvalue is below d * eps times the largest, as ``scipy.linalg.pinvh`` does; eps is that
    of ``products``, the dtype in which the products of the covariance were formed. The last few
    results are remembered, since detectors and heads that are fitted together share their
    covariances. Raises :class:`DataError` if every entry is zero or one is not finite, and
    :class:`ConfigError` for an unknown ``how`` or a ridge that is not above 0.
    """
    check_regularisation(how, ridge)
    check_covariance(covariance)
    return _whiten(Const(covariance), how, ridge, products, rows, tokens)


def check_covariance(covariance: Host) -> None:
    """Raise :class:`DataError` if every entry is zero or one is not finite."""
    if not np.isfinite(covariance).all():
        raise DataError("the covariance of the fit rows is not finite; look for huge features")
    if not np.trace(covariance) > 0:
        raise DataError(
            "the features of the fit rows do not vary within their classes (covariance is zero); "
            "fit on more rows per class"
        )


@lru_cache(maxsize=2)
def _whiten(
    constant: Const, how: str, ridge: float, products: str, rows: int, tokens: int
) -> Whitening:
    covariance = constant.array
    if how == "pinvh":
        values, vectors = np.linalg.eigh(covariance)
        kept = _above_rounding(values, products)
        matrix = vectors[:, kept] / np.sqrt(values[kept])
        return Whitening(matrix, 0.0, *_quality(values[kept]), "pseudo-inverse")
    made = regularise(covariance, how, ridge, rows, tokens)
    values = np.linalg.eigvalsh(covariance)
    quality = _quality(values[_above_rounding(values, products)])
    return Whitening(made.whitening, made.ridge, *quality, made.words)


def _above_rounding(values: Host, products: str = "float64") -> Host:
    """Tell which of the eigenvalues (d,), smallest first, are more than rounding."""
    above: Host = values > len(values) * np.finfo(products).eps * values[-1]
    return above


def _quality(values: Host) -> tuple[int, float]:
    """Return rank and condition from the eigenvalues above rounding, smallest first."""
    return len(values), float(values[-1] / values[0])


def regularise(covariance: Host, how: str, ridge: float, rows: int, tokens: int = 1) -> Regularised:
    """Return a covariance (d, d) that has a Cholesky factor.

    ``ridge`` adds ``ridge`` times trace / d to its diagonal. ``oas`` takes
    (1 - p) S + p trace(S) / d I, with the shrinkage p of :func:`oas_shrinkage`. ``jitter`` adds
    ``ridge`` itself to the diagonal, and ``scatter`` does so for ``rows`` times the covariance,
    which is not divided by the number of rows then. Where float64 finds no factor, the ridge is
    raised ten times, and again. Raises :class:`DataError` where none suffices.
    """
    d, shrinkage = len(covariance), None
    scale, unit = float(np.trace(covariance)) / d, "of trace/d"
    ridges = [ridge * 10.0**step for step in range(RIDGE_STEPS)]
    if how == "oas":
        shrinkage = oas_shrinkage(covariance, rows / tokens)
        covariance = (1.0 - shrinkage) * covariance + shrinkage * scale * np.eye(d)
        ridges.insert(0, 0.0)
    elif how == "jitter":
        scale, unit = 1.0, "on the diagonal"
    elif how == "scatter":
        covariance = covariance * rows
        scale, unit = 1.0, "on the diagonal of the scatter"
    for added in ridges:
        try:
            factor = np.linalg.cholesky(covariance + added * scale * np.eye(d))
            return Regularised(factor, added, shrinkage, unit)
        except np.linalg.LinAlgError:
            continue
    raise DataError(
        f"the covariance of the fit rows has no Cholesky factor with a ridge of up to "
        f"{ridges[-1]:.0e} {unit}; choose a larger ridge"
    )


def oas_shrinkage(covariance: Host, rows: float) -> float:
    """Return the oracle approximating shrinkage of a covariance (d, d) of n rows, within 0 to 1.

    p = ((1 - 2/d) tr S^2 + tr^2 S) / ((n + 1 - 2/d) (tr S^2 - tr^2 S / d)), at most 1: Chen,
    Wiesel, Eldar and Hero 2010, "Shrinkage algorithms for MMSE covariance estimation",
    arXiv 0907.4698, equation 23. scikit-learn leaves the two terms 2/d out.
    """
    d = len(covariance)
    spread = float(((covariance / np.trace(covariance)) ** 2).sum())  # tr S^2 / tr^2 S
    above = (1.0 - 2.0 / d) * spread + 1.0
    below = (rows + 1.0 - 2.0 / d) * (spread - 1.0 / d)
    return above / below if above < below else 1.0


def principal_axes(moment: Host, products: str = "float64") -> tuple[Host, int]:
    """Return the eigenvectors of a second moment (d, d) as columns, largest first, and its rank.

    ``products`` is the dtype in which the products of the moment were formed: it bounds the rank.
    """
    values, vectors = np.linalg.eigh(moment)
    return np.ascontiguousarray(vectors[:, ::-1]), int(_above_rounding(values, products).sum())


def least_norm_root(weight: Host, bias: Host) -> Host:
    """Return the shortest u (d,) that solves W u = -b in the least-squares sense.

    Singular values of W (k, d) below 1e-6 of the largest count as zero: the rows of a linear
    discriminant head are dependent up to rounding, that of float32 where it was saved so, and
    would send u far away otherwise.
    """
    k, d = weight.shape
    if k <= d:
        # W' = Q R with R that can be inverted: u = -Q R^-T b, at a fifth of the cost.
        orthogonal, upper = np.linalg.qr(weight.T)
        diagonal = np.abs(np.diag(upper))
        if diagonal.min() > NEGLIGIBLE * diagonal.max():
            inverse = lower_inverse(upper.T)
            if np.linalg.norm(inverse) * np.linalg.norm(upper) < 1 / NEGLIGIBLE:
                root: Host = -orthogonal @ (inverse @ bias)
                return root
    return -np.linalg.pinv(weight, rtol=NEGLIGIBLE) @ bias


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


def unit(x: Array) -> Array:
    """Return rows (n, d) over their length; zero rows stay zero."""
    xp = arrays.namespace(x)
    lengths = xp.sqrt(squared_norms(x))
    return x / xp.where(lengths > 0, lengths, xp.ones_like(lengths))[:, None]
