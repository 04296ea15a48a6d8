"""Mahalanobis distance with input perturbation: features of inputs moved towards their class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pipeline.content import digest
from pipeline.errors import ConfigError, DataError
from pipeline.extract.probes.gradients import (
    check_at,
    check_std,
    outputs_after,
    per_channel,
)
from pipeline.extract.probes.pooling import pooled_of
from pipeline.extract.probes.probing import Base, Probed, probed
from pipeline.store import artifacts

DETECTOR = "mahalanobis_odin"


def mahalanobis(
    model: Callable[[Any], Any],
    fitted: Any,
    epsilon: float = 0.0014,
    *,
    std: Sequence[float] | None = None,
    at: str | None = None,
    array: str = "mahalanobis_features",
) -> Probed:
    """Return a model that also gives ``mahalanobis_features`` (d,), those of perturbed inputs.

    x' = x - epsilon sign(grad_x (z - mu_c)' S^-1 (z - mu_c)), z the pooled features of x, c the
    class whose mean is nearest: one forward and one backward pass, and one more forward pass.

    The gradient needs the Gaussians, so there are two steps. First fit ``mahalanobis_odin`` on
    features that the model gives without this probe. Then probe the model with ``fitted``: that
    detector as a fit returns it, or a folder that it was saved to. Rows that are scored are
    extracted by the probed model; those that were fitted on need not be again.

    ``std`` and ``at`` are those of :func:`pipeline.extract.probes.odin`.

    Raises :class:`ConfigError` for anything else than a fitted ``mahalanobis_odin``, and as
    ``odin`` does; :class:`DataError` for features of another width.

    Reference: Lee, Lee, Lee and Shin 2018, "A simple unified framework for detecting
    out-of-distribution samples and adversarial attacks", arXiv 1807.03888.
    Differs from the reference code: distances in whitened space, float64; an entry without gradient
    stays, where that code moves it by - epsilon.
    """
    if isinstance(epsilon, bool) or not 0 < epsilon < 1e30:
        raise ConfigError(f"epsilon: {epsilon!r}; expected a number above 0")
    gaussians = _gaussians(fitted)
    return probed(model, MahalanobisProbe(epsilon, check_std(std), at, array, *gaussians))


@dataclass(frozen=True)
class MahalanobisProbe:
    """See :func:`mahalanobis`."""

    epsilon: float
    std: tuple[float, ...]
    at: str | None
    array: str
    features: str
    digest: str
    """Of the scorer that the Gaussians are from."""
    basis: torch.Tensor = field(repr=False)
    """What whitens: (d, r)."""
    origin: torch.Tensor = field(repr=False)
    """(d,)."""
    means: torch.Tensor = field(repr=False)
    """Whitened class means (c, r)."""
    layout: str = "D"

    @property
    def said(self) -> str:
        return (
            f"mahalanobis: epsilon {self.epsilon:g}, std {list(self.std)}, at {self.at}, "
            f"{self.features} by the fit {self.digest}"
        )

    def check(self, base: Base) -> None:
        check_at(base, self.at, "mahalanobis")

    def outputs(self, base: Base, inputs: Any) -> torch.Tensor:
        after = outputs_after(base, inputs, self._distance, self._step, self.at, "mahalanobis")
        return pooled_of(after, self.features, "mahalanobis")

    def _distance(self, outputs: dict[str, torch.Tensor]) -> torch.Tensor:
        z = pooled_of(outputs, self.features, "mahalanobis")
        if z.shape[1:] != self.origin.shape:
            raise DataError(
                f"probe mahalanobis: {self.features} has {z.shape[1]} features, the Gaussians were "
                f"fitted on {len(self.origin)}: probe the model that they were fitted on"
            )
        basis, origin, means = (each.to(z.device) for each in (self.basis, self.origin, self.means))
        white = (z - origin) @ basis
        with torch.no_grad():
            nearest = torch.cdist(white, means).argmin(dim=1)
        return (white - means[nearest]).square().sum(dim=1)

    def _step(self, gradient: torch.Tensor) -> torch.Tensor:
        return -self.epsilon * per_channel(gradient.sign(), self.std, "mahalanobis")


def _gaussians(fitted: Any) -> tuple[str, str, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the features, the digest, and whitening, origin and means of a fitted detector."""
    given = artifacts.load(fitted)[0] if isinstance(fitted, (str, Path)) else fitted
    found = set(_scorers(given))
    if len(found) != 1:
        raise ConfigError(
            f"fitted: expected a fitted {DETECTOR}, or the folder of one, got "
            f"{len(found) or 'none'} in {_shown(fitted)}: fit it first, by ff.fit('{DETECTOR}', "
            "...), on features without this probe"
        )
    (scorer,) = found
    (name,) = scorer.clean.fields
    basis, origin = scorer.clean.basis.array, scorer.clean.origin.array
    tensors = (torch.tensor(x, dtype=torch.float64) for x in (basis, origin, scorer.means.array))
    return name, digest(scorer), *tensors


def _scorers(given: Any) -> Iterator[Any]:
    """Yield the scorers with Gaussians of clean features that a fit, or what it saved, holds."""
    if hasattr(given, "clean"):
        yield given
    elif hasattr(given, "scorer"):
        yield from _scorers(given.scorer)
    elif isinstance(given, (Mapping, tuple)):
        for each in given.values() if isinstance(given, Mapping) else given:
            yield from _scorers(each)


def _shown(fitted: Any) -> str:
    return str(fitted) if isinstance(fitted, (str, Path)) else f"a {type(fitted).__name__}"
