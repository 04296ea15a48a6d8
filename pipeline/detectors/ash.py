"""ASH: energy of features of which only the largest are kept, as they are, even, or scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead
from pipeline.procedure import Passes
from pipeline.shaping import ShapedEnergy, energy_of, head_over
from pipeline.views import Pooled
from pipeline.views.shaping import Pruned, check_percentile, kept_of

__all__ = ["ASH"]

VARIANTS = ("p", "b", "s")


@value
class ASH:
    """Energy of pruned activations: - log sum_c exp(W_c g(z) + b_c).

    z (n, d) are the pooled features that the head reads, W (k, d) and b (k,) its weights and bias.
    g keeps the largest d - round(d ``percentile`` / 100) entries of a row, at least one, the first
    of equal ones, and sets the others to 0. The ``variant`` says what becomes of those it keeps:
    p leaves them, b gives each the same share of the sum of z, s multiplies them by e^r, where r
    is the sum of z over that of the kept. Nothing is fitted but an lda head.

    Features of both signs, such as those after a layer norm, have sums that may be 0 or below.
    Where the kept sum is not positive, r is 1; b shares the sum whatever its sign. No row
    overflows: r is at most d over the number of kept entries, and 500.

    Raises :class:`ConfigError` for a head without weights, one over other features, an unknown
    ``variant``, and a percentile that is not from 0 to 100.

    Reference: Djurisic, Bozanic, Ashok and Liu 2023, "Extremely simple activation shaping for
    out-of-distribution detection", arXiv 2209.09858.
    Differs from the reference code: float64; equal entries in their order instead of any; a row of
    zeros scores the energy of the bias instead of NaN. pytorch-ood prunes feature maps in its
    example, OpenOOD the pooled features as here.
    """

    variant: str
    head: Head = StoredHead()
    percentile: float = 90.0
    pool: str = "mean"
    field: str = "features"
    paper: ClassVar[str] = "Djurisic et al. 2023"
    formula: ClassVar[str] = "- logsumexp of the head on the largest features"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"variant": "s", "percentile": 65.0},
        "openood-1.5": {"variant": "b"},
    }

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigError(f"variant: {self.variant!r} is unknown; choose p, b or s")
        check_percentile("percentile", self.percentile)

    def passes(self, schema: Schema) -> Passes[ShapedEnergy]:
        features = Pooled(self.pool, self.field)
        logits = yield from head_over(schema, self.head, features, "ash")
        (d,) = features.shape(schema)
        kept = kept_of(d, self.percentile)
        note = f"{kept} of {d} features are kept in each row"
        return energy_of(logits, Pruned(features, kept, self.variant), note)
