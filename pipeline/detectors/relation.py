"""Neural relation graph: how strongly a row is tied to the fit rows, by feature and prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.bank import Bank, check_max_bank, reference_bank, search_nbytes
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.heads import Head, StoredHead
from pipeline.linalg import unit
from pipeline.procedure import Passes
from pipeline.views import LogSoftmax, Pooled, View, memoised
from pipeline.views.entries import Entries

__all__ = ["Relation"]


@value
class Relation:
    """Minus the ties to the fit rows: -sum_i r_i^power, r_i = max(0, u . u_i) (p . p_i).

    u = z / |z| of pooled features z (n, d), p = softmax of the logits (n, k); ties r of at most
    ``threshold`` do not count. Fit: one pass, after that of the head if it is fitted, that writes
    the bank of features and log probabilities block by block, the same for every power; appended
    blocks are read alone. ``max_bank`` keeps that many rows, those whose ids have the smallest
    hashes.

    Raises :class:`ConfigError` for options out of range.

    Reference: Kim, Yun and Song 2023, "Neural relation graph: a unified framework for identifying
    label noise and outlier data", arXiv 2301.12321.
    Differs from the reference code: float64; the length of z without the 1e-10 under its root.
    """

    paper: ClassVar[str] = "Kim et al. 2023"
    formula: ClassVar[str] = "- sum of (cosine x agreement of softmax) to the fit rows"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"openood-1.5": {}}

    head: Head = StoredHead()
    power: float = 1.0
    threshold: float = 0.03
    max_bank: int | None = None
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        check_max_bank(self.max_bank)
        if not 0 < self.power < float("inf"):
            raise ConfigError(f"power: {self.power}; expected a finite number above 0")
        if not 0 <= self.threshold < 1:
            raise ConfigError(f"threshold: {self.threshold}; expected 0 or more, below 1")

    def passes(self, schema: Schema) -> Passes[RelationScorer]:
        logits = yield from self.head.passes(schema)
        of, also = Pooled(self.pool, self.field), LogSoftmax(logits)
        bank = yield from reference_bank(schema, Entries(of, also), self.max_bank)
        ties = Ties(of, also, bank, self.power, self.threshold)
        return RelationScorer(ties, (f"bank of {bank.entries} entries",))


@value
class Ties:
    """Sum () of the powers of the ties of a row to the entries of a bank."""

    of: View
    log_probabilities: View
    bank: Bank
    power: float
    threshold: float

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | self.log_probabilities.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return search_nbytes(self.bank, rows, 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x, logs = self.of(chunk), self.log_probabilities(chunk)
        xp = arrays.namespace(x)
        total = xp.zeros((x.shape[0],), dtype=xp.float64, device=arrays.device_of(x))
        width = x.shape[1]
        for tile in self.bank.tiles(x):
            u, p = unit(tile[:, :width]), xp.exp(tile[:, width:])
            for rows in arrays.tiles(x.shape[0]):
                total[rows] += self._sums(unit(x[rows, ...]), xp.exp(logs[rows, ...]), u, p)
        return total

    def _sums(self, u: Array, p: Array, bank_u: Array, bank_p: Array) -> Array:
        xp = arrays.namespace(u)
        ties = arrays.row_products(u, xp.matrix_transpose(bank_u))
        ties = xp.where(ties > 0, ties, xp.zeros_like(ties))
        ties *= arrays.row_products(p, xp.matrix_transpose(bank_p))
        ties = xp.where(ties > self.threshold, ties, xp.zeros_like(ties))
        return xp.sum(ties if self.power == 1 else ties**self.power, axis=1)


@value
class RelationScorer:
    """Minus the sum of the ties to a bank."""

    ties: Ties
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.ties.of, self.ties.log_probabilities, self.ties)

    @property
    def bank(self) -> Bank:
        return self.ties.bank

    def score(self, chunk: Chunk) -> Array:
        return -self.ties(chunk)
