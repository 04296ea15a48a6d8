"""Energy: minus the log partition function of the logits."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.views import View

__all__ = ["Energy"]


@value
class Energy:
    """Free energy of the logits: -T log sum_c exp(f_c / T).

    f (n, k) are the logits, T the ``temperature`` > 0. Nothing is fitted.

    Reference: Liu, Wang, Owens and Li 2020, "Energy-based out-of-distribution detection", arXiv
    2010.03759.
    Differs from the reference code: float64 and no overflow at any size of the logits.
    """

    head: Head = StoredHead()
    temperature: float = 1.0
    paper: ClassVar[str] = "Liu et al. 2020"
    formula: ClassVar[str] = "- T logsumexp(logits / T)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"pytorch-ood-0.4": {}, "openood-1.5": {}}

    def __post_init__(self) -> None:
        if not 0 < self.temperature < inf:
            raise ConfigError(
                f"temperature: {self.temperature!r}; expected a finite number above 0, such as 1"
            )

    def passes(self, schema: Schema) -> Passes[EnergyScorer]:
        logits = yield from self.head.passes(schema)
        return EnergyScorer(logits, self.temperature)


@value
class EnergyScorer:
    """Free energy at a temperature."""

    logits: View
    temperature: float

    @property
    def views(self) -> tuple[View, ...]:
        return (self.logits,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._energies, self.logits(chunk))

    def _energies(self, f: Array) -> Array:
        xp = arrays.namespace(f)
        top = xp.max(f, axis=1)
        partition = xp.sum(xp.exp((f - top[:, None]) / self.temperature), axis=1)
        return -(top + self.temperature * xp.log(partition))
