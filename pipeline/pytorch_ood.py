"""Fitted Gaussians as detectors of pytorch-ood: fitted here in little memory, used there.

Neither torch nor pytorch-ood is imported before a detector is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.detectors.mahalanobis import Mahalanobis, MahalanobisScorer
from pipeline.detectors.relative_mahalanobis import RelativeMahalanobis, RelativeMahalanobisScorer
from pipeline.errors import ConfigError
from pipeline.fitted import FittedDetector
from pipeline.views import Projected, View

__all__ = ["to_pytorch_ood"]

Host = np.ndarray[Any, Any]
POOLS = ("mean", "cls")
"""What a row of theirs may be: they average maps, and take vectors as they come."""


def to_pytorch_ood(fitted: FittedDetector, encoder: Callable[[Any], Any] | None = None) -> Any:
    """Return a ``pytorch_ood.detector`` object, ``Mahalanobis`` or ``RMD``, that scores alike.

    ``fitted`` is a fitted ``mahalanobis`` or ``relative_mahalanobis`` of vectors (d,), pooled by
    ``mean`` or ``cls``; ``encoder`` is what theirs calls with its inputs. Set are ``mu`` (c, d),
    ``cov`` and ``precision`` (d, d), and of ``RMD`` those of the background, float64 tensors on
    the CPU; scores are ours to rounding, since the factor 1/2 of theirs is in the precision. Where
    the covariance was inverted by ``pinvh``, ``mu`` is the point of least length that has the same
    distances.

    Raises :class:`ConfigError` for other detectors, for tokens and for ``normalize``, which
    pytorch-ood does not have, and where it is not installed.

    Differs from a fit by pytorch-ood 0.4: the covariance is divided by the number of rows; it is
    regularised as the detector was asked to; classes without rows have no mean.
    """
    detector, scorer = fitted.detector, fitted.scorer
    known = isinstance(scorer, (MahalanobisScorer, RelativeMahalanobisScorer))
    if not (known and isinstance(detector, (Mahalanobis, RelativeMahalanobis))):
        raise ConfigError(
            f"{fitted.id}: pytorch-ood has no fitted twin of {type(detector).__name__}; choose a "
            "fitted mahalanobis or relative_mahalanobis"
        )
    if detector.normalize or detector.pool not in POOLS:
        raise ConfigError(
            f"{fitted.id}: pytorch-ood takes vectors as they are, got pool: {detector.pool}, "
            f"normalize: {detector.normalize}; fit with pool: mean (or cls) and normalize: 0"
        )
    if isinstance(scorer, MahalanobisScorer):
        made = _theirs("Mahalanobis", fitted.id)(encoder)
        _set(made, "", scorer.white, scorer.means.array, factor=2.0)
    else:
        assert isinstance(scorer, RelativeMahalanobisScorer)
        made = _theirs("RMD", fitted.id)(encoder)
        _set(made, "", scorer.within, scorer.means.array)
        _set(made, "background_", scorer.background, np.zeros((1, 0)))
    return made


def _set(made: Any, prefix: str, white: View, means: Host, factor: float = 1.0) -> None:
    """Set a Gaussian: its precision is ``factor`` W W' where rows are whitened by W."""
    import torch

    assert isinstance(white, Projected)
    basis, origin = white.basis.array, white.origin.array
    precision = factor * (basis @ basis.T)
    # W has a pseudo-inverse alone where pinvh dropped directions; without means, mu is the origin.
    mu = origin + means @ np.linalg.pinv(basis) if means.shape[1] else origin
    covariance = np.linalg.pinv(precision, hermitian=True)
    for name, array in (("mu", mu), ("cov", covariance), ("precision", precision)):
        setattr(made, prefix + name, torch.tensor(array, dtype=torch.float64))


def _theirs(name: str, asked: str) -> Any:
    try:
        from pytorch_ood import detector
    except ImportError as error:
        raise ConfigError(
            f"{asked}: this needs pytorch-ood ({error}); pip install pytorch-ood"
        ) from None
    return getattr(detector, name)
