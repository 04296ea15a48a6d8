"""PatchCore: distance of every token to a coreset of the tokens of the fit rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.bank import Bank, check_max_bank, nearest_rows, reference_bank, search_nbytes
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.procedure import IMAGE_SCORES, REHEARSING, Passes
from pipeline.views import Tokens, View, memoised
from pipeline.views.base import valid_tokens
from pipeline.views.entries import Entries

__all__ = ["PatchCore"]

WEIGHTED = "weighted"
PROJECTED = 128
"""Random directions in which a coreset is chosen, as in the reference code."""

STARTS = 10
"""Random tokens; the one farthest from them on average is chosen first."""

Host = np.ndarray[Any, Any]


@value
class PatchCore:
    """Distance of each token to the nearest of a coreset: min_m |z - m|.

    Fit: one pass for the ``max_bank`` tokens (d,) of labelled rows whose hashes are smallest, state
    max_bank x d; of these, greedy k-center keeps the share ``ratio``: it begins with the token
    farthest from the mean of 10 random ones and takes the one farthest from all that are chosen, by
    distances in 128 random directions. ``seed`` chooses these. The notes of the scorer say
    how far the farthest sampled token is from the coreset.

    ``image: weighted`` scores images (n,) as the paper does: w s with s = |z* - m*| of the token z*
    that is farthest from its nearest m*, and w = 1 - exp s / sum exp |z* - m| over the
    ``neighbours`` entries nearest to m*, itself among them. With ``max``, ``mean`` or ``top1``
    tokens are scored, (n, t), and those make the score of an image.

    Raises :class:`ConfigError` for options out of range, :class:`DataError` for features without
    tokens.

    Reference: Roth, Pemula, Zepeda, Scholkopf, Brox and Gehler 2022, "Towards total recall in
    industrial anomaly detection", arXiv 2106.08265.
    Differs from the reference code: coresets of a sample of the tokens, since each step of k-center
    looks at all of them; tokens as they are stored, no averages over patches of neighbours, which
    belong to the features; float64; with one entry or ``neighbours: 1`` the weight is 1.
    """

    paper: ClassVar[str] = "Roth et al. 2022"
    formula: ClassVar[str] = "distance of each token to a coreset of the tokens of the fit rows"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    ratio: float = 0.1
    neighbours: int = 9
    max_bank: int = 10_000
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
        if self.image not in (WEIGHTED, *IMAGE_SCORES):
            known = ", ".join((WEIGHTED, *IMAGE_SCORES))
            raise ConfigError(f"image: {self.image!r} is unknown; choose {known}")

    def passes(self, schema: Schema) -> Passes[PatchCoreScorer | WeightedPatchCoreScorer]:
        of = Tokens(self.field)
        of.shape(schema)
        sample = yield from reference_bank(schema, Entries(of), self.max_bank)
        bank, notes = self._coreset(sample)
        distances = ToCoreset(of, bank)
        if self.image != WEIGHTED:
            return PatchCoreScorer(distances, self.image, notes)
        neighbours = min(self.neighbours, bank.entries)
        return WeightedPatchCoreScorer(of, distances, neighbours, notes)

    def _coreset(self, sample: Bank) -> tuple[Bank, tuple[str, ...]]:
        assert sample.held is not None
        entries, count = sample.held.array, max(1, int(self.ratio * sample.entries))
        if REHEARSING.get():
            held = Const.repeated(entries[0], count)
            return Bank(sample.split, sample.view, count, sample.width, held), ()
        chosen = np.arange(count)
        if count < sample.entries:
            chosen = np.sort(k_center(_projected(entries, self.seed), count, self.seed))
        bank = Bank(sample.split, sample.view, count, sample.width, Const(entries[chosen]))
        radius = float(nearest_rows(bank, entries, 1)[0].max()) ** 0.5
        note = (
            f"coreset of {count} of {sample.entries} sampled tokens, covering radius {radius:.4g}"
        )
        return bank, (note,)


def _projected(entries: Host, seed: int) -> Host:
    """Return the entries (m, d) in random directions, where there are fewer of these."""
    d = entries.shape[1]
    if d <= PROJECTED:
        return entries
    directions = np.random.default_rng(seed).standard_normal((d, PROJECTED))
    projected: Host = arrays.row_products(entries, directions / PROJECTED**0.5)
    return projected


def k_center(entries: Host, count: int, seed: int) -> Host:
    """Return which ``count`` of the entries (m, d) greedy k-center chooses, in its order."""
    entries = entries - entries.mean(axis=0)  # an offset would cost the distances their digits
    norms = (entries**2).sum(axis=1)

    def squared(centre: int) -> Host:
        found: Host = norms + norms[centre] - 2 * (entries @ entries[centre])
        return np.maximum(found, 0.0)

    starts = np.random.default_rng(seed).permutation(len(entries))[:STARTS]
    chosen = [int(np.sum([np.sqrt(squared(start)) for start in starts], axis=0).argmax())]
    nearest = np.full(len(entries), np.inf)
    while len(chosen) < count:
        np.minimum(nearest, squared(chosen[-1]), out=nearest)
        nearest[chosen[-1]] = -1.0  # it stays chosen, whatever twins it has
        chosen.append(int(nearest.argmax()))
    return np.array(chosen)


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
