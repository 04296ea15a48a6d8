"""Deep nearest neighbours: the distance to the k-th nearest feature of the fit rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.bank import Bank, Nearest, check_max_bank, reference_bank, too_few
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.procedure import Passes, check_image, unused_image
from pipeline.views import View, features
from pipeline.views.entries import Entries

__all__ = ["KNN"]


@value
class KNN:
    """Distance to the k-th nearest of the fit rows: |u - u_(k)|, u = z / |z|.

    z (n, d) are pooled features, or with ``pool: tokens`` (n, t, d) every token, whose bank is all
    tokens of the fit rows. ``normalize: false`` takes z for u, ``squared`` leaves out the root. The
    search is exact, in float64, with distances of near duplicates from their differences.

    ``k`` has no value that suits all data: the paper takes 50 of 50,000 rows (CIFAR-10), more where
    there are more classes. Fit: one pass that writes the bank block by block, the same for every k;
    appended blocks are read alone. ``max_bank`` keeps that many rows, those whose ids have the
    smallest hashes. Several k up to 16, 64, 256 or 1024 share one search. A bank of more than
    256 MiB is not saved with the scorer, but read again from the cache for every group of rows
    that 128 MiB hold; a plan counts these.

    Raises :class:`ConfigError` for k < 1, :class:`DataError` for k above the rows of the bank.

    Reference: Sun, Ming, Zhu and Li 2022, "Out-of-distribution detection with deep nearest
    neighbors", arXiv 2204.06507.
    Differs from the reference code: float64, where it has float32; the distance itself, where
    faiss gives its square; the length of z without the 1e-10 that is added to it, a zero vector
    stays zero.
    """

    paper: ClassVar[str] = "Sun et al. 2022"
    formula: ClassVar[str] = "distance to the k-th nearest direction of the fit rows"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {},
        "openood-1.5": {"squared": True},
    }

    k: int = 50
    normalize: bool = True
    squared: bool = False
    max_bank: int | None = None
    pool: str = "mean"
    field: str = "features"
    image: str = "max"

    def __post_init__(self) -> None:
        check_image(self.image)
        check_max_bank(self.max_bank)
        if self.k < 1:
            raise ConfigError(f"k: {self.k}; expected at least 1 neighbour")

    @property
    def unused(self) -> dict[str, str]:
        return unused_image(self.pool)

    def passes(self, schema: Schema) -> Passes[KNNScorer]:
        of = features(self.pool, self.field)
        bank = yield from reference_bank(schema, Entries(of), self.max_bank)
        notes = (f"bank of {bank.entries} entries, k {self.k}", *too_few(bank, self.k, "knn"))
        nearest = Nearest(of, bank, self.k, self.normalize)
        return KNNScorer(nearest, self.k, self.squared, self.image, notes)


@value
class KNNScorer:
    """Distance to the k-th nearest entry of a bank."""

    nearest: Nearest
    k: int
    squared: bool
    image: str
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.nearest,)

    @property
    def bank(self) -> Bank:
        return self.nearest.bank

    def score(self, chunk: Chunk) -> Array:
        squared = self.nearest(chunk)[..., self.k - 1]
        return squared if self.squared else arrays.namespace(squared).sqrt(squared)
