"""ODIN: logits of inputs that are moved towards the class that the model predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.errors import ConfigError
from pipeline.extract.probes.gradients import (
    check_at,
    check_std,
    outputs_after,
    per_channel,
)
from pipeline.extract.probes.probing import LOGITS, Base, Probed, logits_of, probed


def odin(
    model: Callable[[Any], Any],
    temperature: float = 1000.0,
    epsilon: float = 0.0014,
    *,
    std: Sequence[float] | None = None,
    largest: int | None = None,
    at: str | None = None,
    logits: str = LOGITS,
    array: str = "odin_logits",
) -> Probed:
    """Return a model that also gives ``odin_logits`` (k,), those of perturbed inputs.

    x' = x - epsilon sign(g), g = grad_x - log softmax_y(f(x) / T), y the predicted class: one
    forward and one backward pass, and one more forward pass. The detector ``odin`` scores them.

    ``epsilon`` is in units of the inputs; with ``std`` (c,) the step of channel c (axis 1) is
    epsilon / std_c, so that it is in units of pixels before they were divided by std. ``largest``
    moves only so many entries of a row, those of the largest abs(g); 1 is i-ODIN. ``at`` moves what
    goes into a submodule in place of the inputs, where those are integers (uint8 images, token
    ids) or normalised within the model. ``logits`` names the output that is differentiated.

    Rows do not depend on those beside them, but sign(g) turns with the rounding of a g near 0: bits
    are those of the same batch size, device and threads.

    Raises :class:`ConfigError` for unknown options and half-precision inputs, where the step would
    be lost; :class:`DataError` where no gradient reaches the inputs.

    Reference: Liang, Li and Srikant 2018, "Enhancing the reliability of out-of-distribution image
    detection in neural networks", arXiv 1706.02690. ``largest=1``: i-ODIN, Regmi 2024, "Going
    beyond conventional OOD detection", arXiv 2411.10794, as in OpenOOD's code.
    Differs from the reference code: an entry without gradient stays, where that code, and OpenOOD,
    move it by - epsilon.
    """
    _check_positive("temperature", temperature)
    _check_positive("epsilon", epsilon)
    if largest is not None and (isinstance(largest, bool) or largest < 1):
        raise ConfigError(f"largest: {largest!r}; expected a number of entries, or none for all")
    probe = ODINProbe(temperature, epsilon, check_std(std), largest, at, logits, array)
    return probed(model, probe)


@dataclass(frozen=True)
class ODINProbe:
    """See :func:`odin`."""

    temperature: float
    epsilon: float
    std: tuple[float, ...]
    largest: int | None
    at: str | None
    logits: str
    array: str
    layout: str = "K"

    @property
    def said(self) -> str:
        return (
            f"odin: temperature {self.temperature:g}, epsilon {self.epsilon:g}, std "
            f"{list(self.std)}, largest {self.largest}, at {self.at}, of {self.logits}"
        )

    def check(self, base: Base) -> None:
        check_at(base, self.at, "odin")

    def outputs(self, base: Base, inputs: Any) -> torch.Tensor:
        after = outputs_after(base, inputs, self._surprise, self._step, self.at, "odin")
        return logits_of(after, self.logits, "odin")

    def _surprise(self, outputs: dict[str, torch.Tensor]) -> torch.Tensor:
        scaled = logits_of(outputs, self.logits, "odin") / self.temperature
        return torch.nn.functional.cross_entropy(scaled, scaled.argmax(dim=1), reduction="none")

    def _step(self, gradient: torch.Tensor) -> torch.Tensor:
        direction = per_channel(gradient.sign(), self.std, "odin")
        if self.largest is not None:
            direction = direction * _among_largest(gradient, self.largest)
        return -self.epsilon * direction


def _among_largest(gradient: torch.Tensor, count: int) -> torch.Tensor:
    """Tell which entries of each row have the ``count`` largest sizes; of equal ones the first."""
    size = gradient.abs().flatten(1)
    order = size.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(size).scatter_(1, order, 1.0).reshape(gradient.shape)


def _check_positive(name: str, given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < 1e30:
        raise ConfigError(f"{name}: {given!r}; expected a number above 0")
