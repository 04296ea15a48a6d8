"""Linear algebra in float64: whitening a covariance, and distances in whitened space.

No inverse is ever formed: a covariance is whitened once and distances are compared in whitened
space, where they cannot be negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.errors import ConfigError, DataError

Host = np.ndarray[Any, Any]

RIDGE_STEPS = 12
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


def whiten(covariance: Host, how: str = "ridge", ridge: float = 1e-6) -> Whitening:
    """Whiten a covariance (d, d).

    ``ridge`` adds ``ridge`` times trace / d to the diagonal, ten times more until a float64
    Cholesky factor exists. ``pinvh`` drops directions whose eigenvalue is below d * eps times the
    largest, as ``scipy.linalg.pinvh`` does. Raises :class:`DataError` if every entry is zero or
    one is not finite, and :class:`ConfigError` for an unknown ``how`` or a negative ridge.
    """
    if how not in COVARIANCES:
        raise ConfigError(f"covariance: {how!r} is unknown; choose {' or '.join(COVARIANCES)}")
    if not ridge > 0:
        raise ConfigError(f"ridge: {ridge!r}; expected a number above 0, such as 1e-6")
    if not np.isfinite(covariance).all():
        raise DataError("the covariance of the fit rows is not finite; look for huge features")
    d = covariance.shape[0]
    scale = float(np.trace(covariance)) / d
    if not scale > 0:
        raise DataError(
            "the features of the fit rows do not vary within their classes (covariance is zero); "
            "fit on more rows per class"
        )
    values, vectors = np.linalg.eigh(covariance)
    kept = values > d * np.finfo(np.float64).eps * values[-1]
    rank, condition = int(kept.sum()), float(values[-1] / values[kept][0])
    if how == "pinvh":
        return Whitening(vectors[:, kept] / np.sqrt(values[kept]), 0.0, rank, condition)
    for step in range(RIDGE_STEPS):
        added = ridge * 10.0**step
        try:
            factor = np.linalg.cholesky(covariance + added * scale * np.eye(d))
        except np.linalg.LinAlgError:
            continue
        return Whitening(np.linalg.solve(factor, np.eye(d)).T, added, rank, condition)
    raise DataError(f"no Cholesky factor with a ridge of up to {added:.0e} of trace / d")


def nearest_squared(z: Array, means: Array) -> Array:
    """Return the squared distance (...) of each vector of ``z`` (..., r) to the nearest mean.

    The nearest is found by the expanded square, one product for all classes; its distance is then
    taken directly, which removes the cancellation and keeps it from going negative.
    """
    xp = arrays.namespace(z, means)
    flat = xp.reshape(z, (-1, z.shape[-1]))
    half_norms = xp.sum(means * means, axis=1) / 2
    closeness = xp.matmul(flat, xp.matrix_transpose(means)) - half_norms
    difference = flat - xp.take(means, xp.argmax(closeness, axis=1), axis=0)
    return xp.reshape(xp.sum(difference * difference, axis=1), z.shape[:-1])
