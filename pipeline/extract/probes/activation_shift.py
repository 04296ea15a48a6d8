"""AdaSCALE's probe: features of inputs that are moved a long way where the model hardly looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.errors import ConfigError
from pipeline.extract.probes.gradients import check_at, outputs_after
from pipeline.extract.probes.pooling import pooled_of
from pipeline.extract.probes.probing import FEATURES, LOGITS, Base, Probed, logits_of, probed


def adascale(
    model: Callable[[Any], Any],
    fraction: float = 0.05,
    step: float = 0.5,
    *,
    at: str | None = None,
    features: str = FEATURES,
    logits: str = LOGITS,
    array: str = "adascale_features",
) -> Probed:
    """Return a model that also gives ``adascale_features`` (d,), those of perturbed inputs.

    x' = x + step sign(g) on the ``fraction`` of the entries of a row with the smallest abs(g), g =
    grad_x max_c f_c(x): one forward and one backward pass, and one more forward pass. Tokens are
    stored as their mean, float64. The detector ``adascale`` compares them with ``features``.

    ``step`` is in units of the inputs. ``at`` moves what goes into a submodule in place of the
    inputs; ``features`` and ``logits`` name outputs of the model.

    Raises as :func:`pipeline.extract.probes.odin` does; :class:`ConfigError` for a fraction outside
    0 to 1.

    Reference: Regmi 2025, "AdaSCALE: adaptive scaling for OOD detection", arXiv 2503.08023, and
    OpenOOD's code.
    Differs from the reference code: features in float64; tokens are pooled.
    """
    for name, given, most in (("fraction", fraction, 1.0), ("step", step, 1e30)):
        if isinstance(given, bool) or not 0 < given <= most:
            raise ConfigError(f"{name}: {given!r}; expected a number above 0, up to {most:g}")
    return probed(model, AdaSCALEProbe(fraction, step, at, features, logits, array))


@dataclass(frozen=True)
class AdaSCALEProbe:
    """See :func:`adascale`."""

    fraction: float
    step: float
    at: str | None
    features: str
    logits: str
    array: str
    layout: str = "D"

    @property
    def said(self) -> str:
        return (
            f"adascale: fraction {self.fraction:g}, step {self.step:g}, at {self.at}, "
            f"{self.features} by {self.logits}"
        )

    def check(self, base: Base) -> None:
        check_at(base, self.at, "adascale")

    def outputs(self, base: Base, inputs: Any) -> torch.Tensor:
        after = outputs_after(base, inputs, self._largest, self._step, self.at, "adascale")
        return pooled_of(after, self.features, "adascale")

    def _largest(self, outputs: dict[str, torch.Tensor]) -> torch.Tensor:
        found = logits_of(outputs, self.logits, "adascale")
        return found.gather(1, found.argmax(dim=1, keepdim=True))

    def _step(self, gradient: torch.Tensor) -> torch.Tensor:
        size = gradient.abs().flatten(1)
        count = int(size.shape[1] * self.fraction)
        order = size.argsort(dim=1, stable=True)[:, :count]
        smallest = torch.zeros_like(size).scatter_(1, order, 1.0).reshape(gradient.shape)
        return self.step * gradient.sign() * smallest
