"""ODIN: largest softmax probability of tempered logits, those of perturbed inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.procedure import Passes
from pipeline.views import View, softmax_outside_largest
from pipeline.views.probed import ProbedLogits

__all__ = ["ODIN"]


@value
class ODIN:
    """One minus the largest probability of the softmax of f(x') / T.

    f(x') (n, k) are logits of perturbed inputs, the array ``field`` that the probe ``odin`` writes;
    ``temperature`` is T, the same as that of the probe unless something else is meant. Nothing is
    fitted.

    Raises :class:`MissingInputError` where no probe wrote the array, :class:`ConfigError` for a
    temperature that is not above 0.

    Reference: Liang, Li and Srikant 2018, "Enhancing the reliability of out-of-distribution image
    detection in neural networks", arXiv 1706.02690. i-ODIN is the option ``largest: 1`` of the
    probe.
    Differs from the reference code: 1 - p, summed from the other classes, which keeps the order
    where p rounds to 1.
    """

    temperature: float = 1000.0
    field: str = "odin_logits"
    paper: ClassVar[str] = "Liang et al. 2018"
    formula: ClassVar[str] = "1 - max softmax of logits / T of perturbed inputs"
    probed: ClassVar[Mapping[str, str]] = {"odin_logits": "K"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}, "openood-1.5": {}}

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ConfigError(
                f"temperature: {self.temperature!r}; expected a finite number above 0, such as 1000"
            )

    def passes(self, schema: Schema) -> Passes[ODINScorer]:
        logits = ProbedLogits(self.field, "odin")
        logits.shape(schema)
        return ODINScorer(logits, self.temperature)
        yield  # a generator that asks for nothing


@value
class ODINScorer:
    """Probability of all classes but the most likely one, at a temperature."""

    logits: View
    temperature: float

    @property
    def views(self) -> tuple[View, ...]:
        return (self.logits,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(
            lambda f: softmax_outside_largest(f, self.temperature), self.logits(chunk)
        )
