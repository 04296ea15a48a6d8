"""Nearest-neighbour guidance: the energy, guided by the likeness to confident fit rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.bank import (
    Bank,
    check_max_bank,
    largest,
    reference_bank,
    search_nbytes,
    too_few,
)
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead
from pipeline.linalg import unit
from pipeline.procedure import Passes
from pipeline.views import LogSumExp, Pooled, View, memoised
from pipeline.views.entries import Entries

__all__ = ["NNGuide"]


@value
class NNGuide:
    """Minus energy times guidance: -E(x) mean of the k largest u . E_i u_i, u = z / |z|.

    z (n, d) are pooled features, E = log sum exp f the energy of the logits, i runs over the fit
    rows. Fit: one pass, after that of the head if it is fitted, that writes the bank block by
    block, the same for every k; appended blocks are read alone. ``alpha`` keeps that share of the
    rows of the split, ``max_bank`` that many, those whose ids have the smallest hashes; where a
    share is kept, appended rows change it and all is read again.

    Raises :class:`ConfigError` for options out of range, :class:`DataError` for k above the rows
    of the bank.

    Reference: Park, Jung and Teoh 2023, "Nearest neighbor guidance for out-of-distribution
    detection", arXiv 2309.14888.
    Differs from the reference code: float64; a share is a sample by ids, where OpenOOD takes the
    first batches of the loader, so that only its ``alpha`` of 1 gives the same rows; the length of
    z without the 1e-10 that OpenOOD adds to every feature.
    """

    paper: ClassVar[str] = "Park et al. 2023"
    formula: ClassVar[str] = "- energy x mean of the k largest energy-scaled cosines to fit rows"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {},
        "openood-1.5": {"k": 100, "alpha": 0.01},
    }

    head: Head = StoredHead()
    k: int = 10
    alpha: float = 1.0
    max_bank: int | None = None
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        check_max_bank(self.max_bank)
        if self.k < 1:
            raise ConfigError(f"k: {self.k}; expected at least 1 neighbour")
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"alpha: {self.alpha}; expected a share above 0 and up to 1")
        if self.alpha < 1 and self.max_bank is not None:
            raise ConfigError("alpha and max_bank both choose a sample; give one of them")

    def passes(self, schema: Schema) -> Passes[NNGuideScorer]:
        logits = yield from self.head.passes(schema)
        of, energy = Pooled(self.pool, self.field), LogSumExp(logits)
        bank = yield from reference_bank(schema, Entries(of, energy), self._most(schema.rows))
        notes = (f"bank of {bank.entries} entries, k {self.k}", *too_few(bank, self.k, "nnguide"))
        return NNGuideScorer(Guidance(of, bank, self.k), energy, notes)

    def _most(self, rows: int) -> int | None:
        if self.alpha < 1:
            return max(1, math.ceil(self.alpha * rows))
        return self.max_bank


@value
class Guidance:
    """Mean () of the k largest products of a direction with energy-scaled directions of a bank."""

    of: View
    bank: Bank
    k: int

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return search_nbytes(self.bank, rows, self.k)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        nearest = largest(self.bank, x, self.k, _scaled, lambda rows: (unit(rows),), _products)
        xp = arrays.namespace(nearest)
        return arrays.by_tiles(lambda rows: xp.mean(rows, axis=1), nearest)


def _scaled(entries: Array) -> tuple[Array, ...]:
    return (unit(entries[:, :-1]) * entries[:, -1:],)


def _products(queries: tuple[Array, ...], entries: tuple[Array, ...]) -> Array:
    (x,), (y,) = queries, entries
    return arrays.row_products(x, arrays.namespace(y).matrix_transpose(y))


@value
class NNGuideScorer:
    """Minus the energy times the guidance."""

    guidance: Guidance
    energy: View
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.guidance, self.energy)

    @property
    def bank(self) -> Bank:
        return self.guidance.bank

    def score(self, chunk: Chunk) -> Array:
        return -(self.guidance(chunk) * self.energy(chunk))
