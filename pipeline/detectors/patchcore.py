"""PatchCore: distance of every token to a coreset of the tokens of the fit rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.bank import (
    Bank,
    check_max_bank,
    nearest_rows,
    reference_bank,
    reference_coreset,
    search_nbytes,
)
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.procedure import IMAGE_SCORES, REHEARSING, Passes
from pipeline.statistics.k_center import k_center, projected
from pipeline.views import Tokens, View, memoised
from pipeline.views.base import valid_tokens
from pipeline.views.entries import Entries

__all__ = ["PatchCore"]

WEIGHTED = "weighted"
SAMPLE, COMPOSABLE = "sample", "composable"

Host = np.ndarray[Any, Any]


@value
class PatchCore:
    """Distance of each token to the nearest of a coreset: min_m |z - m|.

    Fit: one pass for the ``max_bank`` tokens (d,) of labelled rows whose hashes are smallest, state
    max_bank x d; of these, greedy k-center keeps the share ``ratio``: it begins with the token
    farthest from the mean of 10 random ones and takes the one farthest from all that are chosen, by
    distances in 128 random directions. ``seed`` chooses these. Up to ``max_bank`` tokens are all in
    the sample. Sweeps over ``ratio`` share it, and it does not depend on the blocks of a store.

    ``coreset: composable`` takes such a sample of every block, and keeps ratio x max_bank tokens:
    k-center of each block, then of what every two have chosen, state max_bank x d until the end of
    a block and ratio x max_bank x d from there on. It looks at far more tokens where there are many
    blocks, and finds what is rare; other blocks make another coreset. It is not the default since
    results would then depend on how the rows were stored. The notes of the scorer say how far the
    farthest of the tokens that were looked at is from the coreset, of composable ones a bound.

    ``image: weighted`` scores images (n,) as the paper does: w s with s = |z* - m*| of the token z*
    that is farthest from its nearest m*, and w = 1 - exp s / sum exp |z* - m| over the
    ``neighbours`` entries nearest to m*, itself among them. With ``max``, ``mean`` or ``top1``
    tokens are scored, (n, t), and those make the score of an image.

    Raises :class:`ConfigError` for options out of range, :class:`DataError` for features without
    tokens.

    Reference: Roth, Pemula, Zepeda, Scholkopf, Brox and Gehler 2022, "Towards total recall in
    industrial anomaly detection", arXiv 2106.08265.
    Differs from the reference code: coresets of samples of the tokens, since each step of k-center
    looks at all of them; tokens as they are stored, no averages over patches of neighbours, which
    belong to the features; float64; with one entry or ``neighbours: 1`` the weight is 1.
    """

    paper: ClassVar[str] = "Roth et al. 2022"
    formula: ClassVar[str] = "distance of each token to a coreset of the tokens of the fit rows"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    ratio: float = 0.1
    neighbours: int = 9
    max_bank: int = 10_000
    coreset: str = SAMPLE
    seed: int = 0
    field: str = "features"
    image: str = WEIGHTED

    def __post_init__(self) -> None:
        check_max_bank(self.max_bank)
        if not 0 < self.ratio <= 1:
            raise ConfigError(f"ratio: {self.ratio}; expected a share above 0 and up to 1")
        if self.neighbours < 1:
            raise ConfigError(f"neighbours: {self.neighbours}; expected at least 1")
        if self.seed < 0:
            raise ConfigError(f"seed: {self.seed}; expected 0 or more")
        if self.coreset not in (SAMPLE, COMPOSABLE):
            raise ConfigError(
                f"coreset: {self.coreset!r} is unknown; choose {SAMPLE} or {COMPOSABLE}"
            )
        if self.image not in (WEIGHTED, *IMAGE_SCORES):
            known = ", ".join((WEIGHTED, *IMAGE_SCORES))
            raise ConfigError(f"image: {self.image!r} is unknown; choose {known}")

    def passes(self, schema: Schema) -> Passes[PatchCoreScorer | WeightedPatchCoreScorer]:
        of = Tokens(self.field)
        of.shape(schema)
        tokens = yield from self._tokens(schema, Entries(of))
        bank, notes = self._chosen(schema, tokens)
        distances = ToCoreset(of, bank)
        if self.image != WEIGHTED:
            return PatchCoreScorer(distances, self.image, notes)
        neighbours = min(self.neighbours, bank.entries)
        return WeightedPatchCoreScorer(of, distances, neighbours, notes)

    def _tokens(self, schema: Schema, view: Entries) -> Passes[_Candidates]:
        """Ask for the tokens that may be chosen."""
        if self.coreset == SAMPLE:
            sample = yield from reference_bank(schema, view, self.max_bank)
            assert sample.held is not None
            entries = sample.held.array
            return _Candidates(view, entries, np.zeros(len(entries)), sample.entries)
        most = self._count(self.max_bank)
        centres = yield from reference_coreset(schema, view, most, self.max_bank, self.seed)
        offered = int(centres.offered[0])
        if REHEARSING.get():
            offered = schema.rows * view.shape(schema)[0]
        return _Candidates(view, centres.entries, centres.reach, offered)

    def _count(self, tokens: int) -> int:
        """Return how many are chosen of so many tokens."""
        return max(1, int(self.ratio * min(self.max_bank, tokens)))

    def _chosen(self, schema: Schema, tokens: _Candidates) -> tuple[Bank, tuple[str, ...]]:
        """Return the bank of what is chosen of the tokens, and how far they are from it."""
        entries, count = tokens.entries, self._count(tokens.offered)
        width = entries.shape[1]
        if REHEARSING.get():
            held = Const.repeated(entries[0], count)
            return Bank(schema.split, tokens.view, count, width, held), ()
        if count < len(entries):
            points = projected(entries, self.seed)
            chosen, _ = k_center(points, count, self.seed, tokens.reach)
            entries = entries[np.sort(chosen)]
        bank = Bank(schema.split, tokens.view, count, width, Const(entries))
        nearest = np.sqrt(nearest_rows(bank, tokens.entries, 1)[0][:, 0])
        radius = float((nearest + tokens.reach).max())
        looked_at = f"coreset of {count} of {tokens.offered}"
        if self.coreset == SAMPLE:
            return bank, (f"{looked_at} sampled tokens, covering radius {radius:.4g}",)
        of_blocks = f"{looked_at} tokens sampled block by block"
        return bank, (f"{of_blocks}, covering radius at most {radius:.4g}",)


class _Candidates(NamedTuple):
    """Tokens that may be chosen, how far those that each stands for are, and of how many."""

    view: Entries
    entries: Host
    reach: Host
    offered: int


@value
class ToCoreset:
    """Distance (t,) of each token to the nearest entry of a bank."""

    of: View
    bank: Bank

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)[:1]

    def nbytes(self, schema: Schema, rows: int) -> int:
        return search_nbytes(self.bank, 2 * rows * self.of.shape(schema)[0], 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        xp = arrays.namespace(x)
        squared, _ = nearest_rows(self.bank, xp.reshape(x, (-1, x.shape[-1])), 1)
        return xp.reshape(xp.sqrt(squared), x.shape[:-1])


@value
class PatchCoreScorer:
    """Distance of each token to the nearest entry of a coreset."""

    distances: ToCoreset
    image: str
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.distances,)

    @property
    def bank(self) -> Bank:
        return self.distances.bank

    def score(self, chunk: Chunk) -> Array:
        return self.distances(chunk)


@value
class WeightedPatchCoreScorer:
    """Largest distance of a token to a coreset, less where its nearest entry is a lonely one."""

    tokens: View
    distances: ToCoreset
    neighbours: int
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.tokens, self.distances)

    @property
    def bank(self) -> Bank:
        return self.distances.bank

    def score(self, chunk: Chunk) -> Array:
        tokens, distances = self.tokens(chunk), self.distances(chunk)
        if "mask" not in chunk.arrays:
            return arrays.by_tiles(self._of_images, tokens, distances)
        xp = arrays.namespace(distances)
        valid = valid_tokens(chunk)
        known = xp.where(valid, distances, xp.full_like(distances, -1.0))
        scores = arrays.by_tiles(self._of_images, tokens, known)
        return xp.where(xp.any(valid, axis=1), scores, xp.full_like(scores, xp.nan))

    def _of_images(self, tokens: Array, distances: Array) -> Array:
        xp = arrays.namespace(tokens)
        worst = xp.argmax(distances, axis=1, keepdims=True)
        score = xp.take_along_axis(distances, worst, axis=1)[:, 0]
        if self.neighbours == 1:
            return score
        token = xp.take_along_axis(tokens, worst[:, :, None], axis=1)[:, 0, :]
        return score * self._weights(xp.astype(token, xp.float64))

    def _weights(self, token: Array) -> Array:
        """Return 1 minus the softmax share of the nearest entry among its neighbours, (n,)."""
        xp = arrays.namespace(token)
        assert self.bank.held is not None
        entries = self.bank.held.like(token)
        _, nearest = nearest_rows(self.bank, token, 1)
        nearest_entry = xp.take(entries, nearest[:, 0], axis=0)
        _, around = nearest_rows(self.bank, nearest_entry, self.neighbours)
        each = [token - xp.take(entries, around[:, j], axis=0) for j in range(self.neighbours)]
        far = xp.stack([xp.sqrt(xp.sum(x * x, axis=1)) for x in each], axis=1)
        shares = xp.exp(far - xp.max(far, axis=1, keepdims=True))
        return 1 - shares[:, 0] / xp.sum(shares, axis=1)
