"""VRA: energy of features whose small activations are zero, and whose large ones are cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes, together
from pipeline.quantiles import quantiles
from pipeline.shaping import ShapedEnergy, energy_of, head_over
from pipeline.views import Pooled
from pipeline.views.shaping import Clipped, check_percentile

__all__ = ["VRA"]

BELOW = ("zero", "clip")
SCOPES = ("feature", "all")


@value
class VRA:
    """Energy of doubly rectified activations: - log sum_c exp(W_c g(z) + b_c).

    z (n, d) are the pooled features that the head reads, W (k, d) and b (k,) its weights and bias.
    g(z) = min(z, b) where z >= a, else 0; with ``below: clip`` it is a there. a and b are the exact
    percentiles ``low`` and ``high`` of the fit rows: of each feature, or with ``scope: all`` of all
    n x d activations, linear between the two nearest. Fit: two passes, the first beside that of an
    lda head; a third above (2^18 / d)^2 rows (``all``: 10^9 values), or where very many values
    crowd; one for 2^20 / d rows and fewer (131,072 values). State: at most 16.8 MB, with ``all``
    2.1 MB for each bin that is searched. Every percentile shares the first pass. The second
    depends on the first.

    Raises :class:`ConfigError` for a head without weights, one over other features, percentiles
    outside 0 to 100 or out of order, and an unknown ``below`` or ``scope``.

    Reference: Xu, Lian, Liu and Tao 2023, "VRA: variational rectified activation for
    out-of-distribution detection", arXiv 2302.11716; the percentiles are those of its code for
    CIFAR-100.
    Differs from the reference code: float64, and exact without a copy of all rows. OpenOOD and
    pytorch-ood clip at a where the paper has 0; OpenOOD has one pair of bounds for all features.
    """

    head: Head = StoredHead()
    low: float = 60.0
    high: float = 95.0
    below: str = "zero"
    scope: str = "feature"
    pool: str = "mean"
    field: str = "features"
    paper: ClassVar[str] = "Xu et al. 2023"
    formula: ClassVar[str] = "- logsumexp of the head on features zero below, cut above percentiles"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"low": 1.0, "high": 99.0, "below": "clip"},
        "openood-1.5": {
            "low": 10.0,
            "high": 90.0,
            "below": "clip",
            "scope": "all",
            "fit_split": "val",
        },
    }

    def __post_init__(self) -> None:
        check_percentile("low", self.low)
        check_percentile("high", self.high)
        if self.low > self.high:
            raise ConfigError(f"low: {self.low:g} is above high: {self.high:g}")
        if self.below not in BELOW:
            raise ConfigError(f"below: {self.below!r} is unknown; choose {' or '.join(BELOW)}")
        if self.scope not in SCOPES:
            raise ConfigError(f"scope: {self.scope!r} is unknown; choose {' or '.join(SCOPES)}")

    def passes(self, schema: Schema) -> Passes[ShapedEnergy]:
        features = Pooled(self.pool, self.field)
        each = self.scope == "feature"
        shares = (self.low / 100, self.high / 100)
        found = yield from together(
            {
                "head": head_over(schema, self.head, features, "vra"),
                "bounds": quantiles(schema, features, shares, per_column=each),
            }
        )
        low, high = (bound.reshape(-1) for bound in found["bounds"])
        where = "each feature" if each else "all activations"
        note = (
            f"bounds of {where}: {low.min():.4g} to {low.max():.4g} and {high.min():.4g} to "
            f"{high.max():.4g}"
        )
        rectified = Clipped(features, Const(low), Const(high), self.below == "zero")
        return energy_of(found["head"], rectified, note)
