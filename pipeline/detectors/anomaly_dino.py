"""AnomalyDINO: cosine distance of every token to the nearest tokens of the fit rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.bank import Bank, Nearest, check_max_bank, reference_bank, too_few
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.procedure import Passes, check_image
from pipeline.views import Tokens, View
from pipeline.views.entries import Entries

__all__ = ["AnomalyDINO"]


@value
class AnomalyDINO:
    """Mean cosine distance to the k nearest tokens of the fit rows: (n, t), 1 - cos for k = 1.

    Tokens (n, t, d) are compared by direction; masked ones neither count nor score. An image scores
    the mean of the highest 1 % of its tokens (``image: top1``). Fit: one pass; the bank are the
    ``max_bank`` tokens of labelled rows whose hashes are smallest, state max_bank x d, or all of
    them with ``max_bank: none``, which writes the tokens once more.

    The paper has banks of 1 to 16 images, without or with the background masked; store such a mask
    of tokens as the array ``mask``.

    Raises :class:`ConfigError` for options out of range, :class:`DataError` for features without
    tokens, and for k above the tokens of the bank.

    Reference: Damm, Laszkiewicz, Lederer and Fischer 2025, "AnomalyDINO: boosting patch-based
    few-shot anomaly detection with DINOv2", arXiv 2405.14529.
    Differs from the reference code: float64 search; a distance of tokens that point the same way
    is 0, not its rounding; masked tokens are left out of the highest 1 %, where they count as 0;
    a zero token stays zero.
    """

    paper: ClassVar[str] = "Damm et al. 2025"
    formula: ClassVar[str] = "cosine distance of each token to the nearest tokens of the fit rows"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    k: int = 1
    max_bank: int | None = 10_000
    field: str = "features"
    image: str = "top1"

    def __post_init__(self) -> None:
        check_image(self.image)
        check_max_bank(self.max_bank)
        if self.k < 1:
            raise ConfigError(f"k: {self.k}; expected at least 1 neighbour")

    def passes(self, schema: Schema) -> Passes[AnomalyDINOScorer]:
        of = Tokens(self.field)
        of.shape(schema)
        bank = yield from reference_bank(schema, Entries(of), self.max_bank)
        noted = too_few(bank, self.k, "anomaly_dino")
        notes = (f"bank of {bank.entries} tokens, k {self.k}", *noted)
        return AnomalyDINOScorer(Nearest(of, bank, self.k, unit=True), self.k, self.image, notes)


@value
class AnomalyDINOScorer:
    """Mean cosine distance of each token to the k nearest entries of a bank."""

    nearest: Nearest
    k: int
    image: str
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.nearest,)

    @property
    def bank(self) -> Bank:
        return self.nearest.bank

    def score(self, chunk: Chunk) -> Array:
        squared = self.nearest(chunk)[..., : self.k]
        xp = arrays.namespace(squared)
        return arrays.by_tiles(lambda rows: xp.mean(rows, axis=2) / 2, squared)
