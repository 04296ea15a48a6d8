"""AdaSCALE: energy of activations that are scaled the less, the more they move with their input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, DataError
from pipeline.heads import Head, StoredHead, logits_present
from pipeline.procedure import Passes, together
from pipeline.shaping import ShapedEnergy, energy_of, head_over
from pipeline.statistics.sample import Sample
from pipeline.views import LogSumExp, Pooled, Valid, View
from pipeline.views.activation_shift import (
    ActivationShift,
    AdaptiveRatio,
    TimesExponential,
    TimesSquare,
)
from pipeline.views.entries import EntryKeys
from pipeline.views.probed import ProbedFeatures
from pipeline.views.shaping import check_percentile

__all__ = ["AdaSCALE"]

VARIANTS = ("a", "l")


@value
class AdaSCALE:
    """Energy of scaled activations: - log sum_c exp(e^r W_c z + b_c), r a ratio of the row.

    z (n, d) are the pooled features that the head reads, z' (n, d) those of perturbed inputs, the
    array ``perturbed`` that the probe ``adascale`` writes. The shift of a row is ``weight`` times
    the sum of abs(z - z') over the largest ``shifted`` % of its features z, plus the sum of the
    positive z' over the largest ``corrected`` %. F is the share of fit rows that shift no more. r
    is the sum of the positive features over that of the largest ones, those beyond the percentile
    ``low`` + (1 - F) (``high`` - ``low``). ``variant: l`` scales logits by r^2 instead:
    - log sum_c exp(r^2 f_c), f = W z + b.

    Fit: one pass, beside that of an lda head; state 16 bytes for each of at most ``samples`` rows,
    those whose ids have the smallest hashes. ``low`` and ``high`` share it.

    Raises :class:`MissingInputError` where no probe wrote the array, :class:`ConfigError` for
    percentages outside 0 to 100, a head without weights, or one over other features.

    Reference: Regmi 2025, "AdaSCALE: adaptive scaling for OOD detection", arXiv 2503.08023, and
    OpenOOD's code, which fits on validation rows.
    Differs from the reference code: float64, at least one feature counts, and a row without a
    positive feature has r = 1 instead of NaN; rows are sampled by their ids.
    """

    head: Head = StoredHead()
    variant: str = "a"
    low: float = 75.0
    high: float = 85.0
    corrected: float = 5.0
    shifted: float = 1.0
    weight: float = 10.0
    samples: int = 5000
    pool: str = "mean"
    field: str = "features"
    perturbed: str = "adascale_features"
    paper: ClassVar[str] = "Regmi 2025"
    formula: ClassVar[str] = "- logsumexp of the head on features times exp(ratio that shifts set)"
    probed: ClassVar[Mapping[str, str]] = {"adascale_features": "D"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"openood-1.5": {"fit_split": "val"}}

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigError(
                f"variant: {self.variant!r} is unknown; choose {' or '.join(VARIANTS)}"
            )
        for name in ("low", "high", "corrected", "shifted"):
            check_percentile(name, getattr(self, name))
        if self.low > self.high:
            raise ConfigError(f"low: {self.low}; expected no more than high, {self.high}")
        if not 0 <= self.weight < math.inf:
            raise ConfigError(f"weight: {self.weight!r}; expected 0 or a finite number above")
        if self.samples < 1:
            raise ConfigError(f"samples: {self.samples}; expected at least 1")

    def passes(self, schema: Schema) -> Passes[ShapedEnergy]:
        features = Pooled(self.pool, self.field)
        (d,) = features.shape(schema)
        shift = ActivationShift(
            features,
            ProbedFeatures(self.perturbed, "adascale"),
            max(1, int(d * self.corrected / 100)),
            max(1, int(d * self.shifted / 100)),
            self.weight,
        )
        shift.shape(schema)
        found = yield from together(
            {"head": head_over(schema, self.head, features, "adascale"),
             "shifts": self._shifts(schema, shift)}
        )  # fmt: skip
        logits, known = found["head"], found["shifts"]
        ratio = AdaptiveRatio(features, shift, Const(known), self.low, self.high)
        note = f"shifts of {len(known)} rows, {known[0]:.4g} to {known[-1]:.4g}"
        if self.variant == "a":
            return energy_of(logits, TimesExponential(features, ratio), note)
        return ShapedEnergy(LogSumExp(TimesSquare(logits_present(logits), ratio)), (note,))

    def _shifts(self, schema: Schema, shift: View) -> Passes[Any]:
        keys = EntryKeys("ids" if "ids" in schema.arrays else "")
        results = yield {"shifts": Sample(shift, keys, self.samples, Valid())}
        known = results["shifts"].entries[:, 0]
        if not len(known):
            raise DataError(f"{schema.split}: no usable row; fits need labels >= 0")
        return np.sort(known)
