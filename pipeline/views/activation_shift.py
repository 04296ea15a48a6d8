"""How far features move with their input, and how much of them is kept for it: AdaSCALE's views."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import DataError
from pipeline.views.base import View, floats_nbytes, memoised
from pipeline.views.shaping import largest, ratios


@value
class ActivationShift:
    """Q + C of a row, (1,): how much its largest features z (d,) move to z' (d,).

    ``weight`` times the sum of abs(z - z') over the ``shifted`` largest z, plus the sum of the
    positive z' over the ``corrected`` largest z.
    """

    clean: View
    perturbed: View
    corrected: int
    shifted: int
    weight: float

    @property
    def fields(self) -> frozenset[str]:
        return self.clean.fields | self.perturbed.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        ours, theirs = self.clean.shape(schema), self.perturbed.shape(schema)
        if ours != theirs:
            raise DataError(
                f"{schema.split}: features have shape {ours}, those of perturbed inputs {theirs}: "
                "have the probe read the same output, by features="
            )
        return (1,)

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = floats_nbytes(self.clean.shape(schema), min(rows, arrays.TILE_ROWS))
        return 8 * rows + 8 * tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._of_tile, self.clean(chunk), self.perturbed(chunk))

    def _of_tile(self, z: Array, moved: Array) -> Array:
        xp = arrays.namespace(z)
        zeros = xp.zeros_like(z)
        positive = xp.where(largest(z, self.corrected) & (moved > 0), moved, zeros)
        shift = xp.where(largest(z, self.shifted), xp.abs(z - moved), zeros)
        total = xp.sum(positive, axis=1) + self.weight * xp.sum(shift, axis=1)
        # What is not finite stays so, whichever features are the largest.
        return xp.where(xp.isfinite(xp.sum(z + moved, axis=1)), total, xp.nan * total)[:, None]


@value
class AdaptiveRatio:
    """Sum of the positive entries of a view (d,) over that of the largest ones, (): at least 1.

    Which ones depends on the row: with q the share of ``known`` shifts above its own, those beyond
    the percentile ``low`` + q (``high`` - ``low``), at least one. 1 where no entry is positive.
    """

    of: View
    shift: ActivationShift
    known: Const
    """Shifts of fit rows (m,), in ascending order."""
    low: float
    high: float

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | self.shift.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = floats_nbytes(self.of.shape(schema), min(rows, arrays.TILE_ROWS))
        return 8 * rows + 7 * tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._ratio, self.of(chunk), self.shift(chunk))

    def _ratio(self, z: Array, shift: Array) -> Array:
        xp = arrays.namespace(z)
        known = self.known.like(z)
        below = xp.searchsorted(known, shift[:, 0], side="right")
        above = 1.0 - xp.astype(below, xp.float64) / known.shape[0]
        percentile = self.low + above * (self.high - self.low)
        d = z.shape[1]
        kept = d - xp.round(d * percentile / 100.0)
        kept = xp.where(kept < 1.0, xp.ones_like(kept), kept)
        positive = xp.where(z > 0, z, xp.zeros_like(z))
        falling = arrays.top_k(positive, d)
        place = xp.arange(d, dtype=xp.float64, device=arrays.device_of(z))
        part = xp.where(place[None, :] < kept[:, None], falling, xp.zeros_like(falling))
        return ratios(falling, part)


@value
class TimesExponential:
    """A vector view (d,) times e^r, r the ratio of the row, at most 500."""

    of: View
    ratio: AdaptiveRatio

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | self.ratio.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        z = self.of(chunk)
        return z * arrays.namespace(z).exp(self.ratio(chunk))[:, None]


@value
class TimesSquare:
    """Logits (k,) times r², r the ratio of the row."""

    of: View
    ratio: AdaptiveRatio

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | self.ratio.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        ratio = self.ratio(chunk)
        return self.of(chunk) * (ratio * ratio)[:, None]
