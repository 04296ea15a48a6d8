"""Temperature scaling: the softmax at the temperature that makes the labels most likely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.heads import ABSENT_BIAS, Head, StoredHead
from pipeline.linalg import Host
from pipeline.procedure import Passes
from pipeline.statistics import Sum, Sums
from pipeline.views import Labels, View, memoised, softmax_outside_largest

__all__ = ["Temperature"]

GRID = tuple(4.0**power for power in range(-8, 9))
"""Inverse temperatures that the first pass looks at."""
NEAR = (1e-1, 1e-2, 1e-3)
"""Where later passes look about the estimate: shares of the way to either end of what is left."""
EVEN = 8
"""Equal parts into which they cut what is left as well."""
TILE_ENTRIES = 2**15
"""Logits at a time: every temporary array then stays in the cache of one core."""


@value
class Temperature:
    """One minus the largest softmax of scaled logits: 1 - max_c softmax(f / T)_c.

    f (n, k) are the logits; T > 0 minimises the negative log likelihood of the labels of the fit
    rows, sum_i log sum_c exp(f_ic / T) - f_iy / T, which is convex in 1 / T.

    Fit: three passes, after that of the head if it is fitted; the later two depend on what the
    earlier ones found. Each sums the loss and its first two derivatives by 1 / T at up to 17
    temperatures. Their cubic interpolation shows where the first derivative vanishes: a relative
    error below 1e-9 after the third pass. State: 51 numbers.

    Rows of a class that an lda head, fitted on another split, had no rows of count at no T. Where
    no T between 1 / 65536 and 65536 is best, T stays 1 and the notes say why: the fit rows
    are classified without error (smaller is always better), or no better than by chance, or the
    logits of a row are all alike.

    Reference: Guo, Pleiss, Sun and Weinberger 2017, "On calibration of modern neural networks",
    arXiv 1706.04599.
    Differs from the reference code: converged, where 50 steps of L-BFGS at a rate of 0.01 stop
    nearer to their start than to the optimum; fitted on the fit split (OpenOOD: ID validation). The
    score is -max softmax + 1, summed from the other classes, as that of msp.
    """

    head: Head = StoredHead()
    max_passes: ClassVar[int] = 3
    paper: ClassVar[str] = "Guo et al. 2017"
    formula: ClassVar[str] = "1 - max softmax(logits / T), T fitted"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {},
        "openood-1.5": {"fit_split": "val"},
    }

    def passes(self, schema: Schema) -> Passes[TemperatureScorer]:
        logits = yield from self.head.passes(schema)
        betas, curve = GRID, Curve.nowhere()
        for _ in range(self.max_passes):
            results = yield {"losses": Sums(ScaledLosses(logits, betas))}
            curve = curve.also_at(betas, results["losses"])
            betas = curve.next_betas()
        return TemperatureScorer(logits, *curve.outcome())


@value
class ScaledLosses:
    """Loss of the label and its derivatives by beta, at each of g ``betas`` = 1 / T: (3 g,).

    -log p_y for p = softmax(beta f), then its first and its second derivatives.
    """

    of: View
    betas: tuple[float, ...]

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | Labels().fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return (3 * len(self.betas),)

    def nbytes(self, schema: Schema, rows: int) -> int:
        (k,) = self.of.shape(schema)
        tile = min(rows, _tile_rows(k)) * (6 * k + 6 * len(self.betas))
        return Labels().nbytes(schema, 2 * rows) + 8 * (rows * 3 * len(self.betas) + tile)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        f, y = self.of(chunk), Labels()(chunk)
        return arrays.by_tiles(self._losses, f, y, tile_rows=_tile_rows(f.shape[1]))

    def _losses(self, f: Array, y: Array) -> Array:
        xp = arrays.namespace(f)
        # Void rows, which no sum counts, are taken for class 0.
        own = xp.where(y < 0, xp.zeros_like(y), y)[:, None]
        largest = xp.max(f, axis=1, keepdims=True)
        # About the largest logit and that of the label: nothing cancels where these are the same.
        below = f - largest
        lead = (largest - xp.take_along_axis(f, own, axis=1))[:, 0]
        # Nothing makes a label likely that the head cannot predict: as if all logits were alike.
        possible = lead < -ABSENT_BIAS / 2
        if not bool(xp.all(possible)):
            below = xp.where(possible[:, None], below, xp.zeros_like(below))
            lead = xp.where(possible, lead, xp.zeros_like(lead))
        columns = [_loss_at(beta, below, lead) for beta in self.betas]
        return xp.concat([xp.stack(kind, axis=1) for kind in zip(*columns, strict=True)], axis=1)


def _tile_rows(k: int) -> int:
    return max(1, min(arrays.TILE_ROWS, TILE_ENTRIES // k))


def _loss_at(beta: float, below: Array, lead: Array) -> tuple[Array, Array, Array]:
    """Return -log p_y and its derivatives by beta (n,).

    ``below`` (n, k) are logits about the largest, which is ``lead`` (n,) above that of the label.
    """
    xp = arrays.namespace(below)
    p = xp.exp(beta * below)
    total = xp.sum(p, axis=1)
    p *= below
    mean = xp.sum(p, axis=1) / total
    p *= below
    square = xp.sum(p, axis=1) / total
    return beta * lead + xp.log(total), lead + mean, square - mean**2


class Bracket(NamedTuple):
    """Where the loss is least: log beta between two ends, and an estimate."""

    low: float
    high: float
    best: float


class Curve(NamedTuple):
    """Mean loss, slope and curvature (g,) by beta, at every beta that was looked at."""

    betas: Host
    loss: Host
    slope: Host
    curvature: Host

    @classmethod
    def nowhere(cls) -> Curve:
        """Return the curve of which nothing is known."""
        return cls(*(np.zeros(0) for _ in range(4)))

    def also_at(self, betas: tuple[float, ...], losses: Sum) -> Curve:
        """Return the curve with what a pass has found, in the order of betas."""
        found = (np.asarray(betas), *np.split(losses.mean, 3))
        joined = [np.concatenate(pair) for pair in zip(self, found, strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return Curve(*(entries[order] for entries in joined))

    def bracket(self) -> Bracket | None:
        """Return where the slope changes its sign, and where its interpolation does."""
        rising = np.flatnonzero(self.slope > 0)
        falling = np.flatnonzero(self.slope[: rising[0]] < 0) if len(rising) else rising
        if not len(falling):
            return None
        ends = np.array([falling[-1], rising[0]])
        low, high = np.log(self.betas[ends])
        step = high - low
        root = _cubic_root(self.slope[ends], (self.curvature * self.betas)[ends] * step)
        return Bracket(low, high, low + step * root)

    def next_betas(self) -> tuple[float, ...]:
        """Return where to look next: close about the estimate, and evenly over what is left."""
        # Where nothing is found no two passes look at the same either: a plan counts them all.
        low, high, best = self.bracket() or Bracket(-1.0, 1.0 / len(self.betas), 0.0)
        near = [best + share * (end - best) for end in (low, high) for share in NEAR]
        even = [low + (high - low) * part / EVEN for part in range(1, EVEN)]
        return tuple(float(beta) for beta in np.exp([best, *near, *even]))

    def outcome(self) -> tuple[float, tuple[str, ...]]:
        """Return the temperature, and a note on how it came about."""
        found = self.bracket()
        unscaled = self.loss[self.betas == 1.0][0]
        if found is None:
            return 1.0, (f"temperature 1: {self._why_none()}; mean loss {unscaled:.4g}",)
        temperature = float(np.exp(-found.best))
        least = self.loss[np.argmin(np.abs(np.log(self.betas) - found.best))]
        return temperature, (
            f"temperature {temperature:.6g}, mean loss {least:.4g} ({unscaled:.4g} at 1)",
        )

    def _why_none(self) -> str:
        if not self.curvature.any():
            return "the logits of each fit row are all alike, so that none is better"
        if (self.slope > 0).any():
            return (
                "the labels of the fit rows are no more likely than by chance, so that none helps"
            )
        return "the fit rows are classified without error, so that smaller is always better"


def _cubic_root(values: Host, slopes: Host) -> float:
    """Return where the cubic with these values and slopes at 0 and 1 vanishes; values[0] < 0."""
    low, high = 0.0, 1.0
    for _ in range(60):
        t = (low + high) / 2
        s = 1 - t
        at_low = values[0] * (1 + 2 * t) + slopes[0] * t
        at_high = values[1] * (1 + 2 * s) - slopes[1] * s
        if at_low * s * s + at_high * t * t < 0:
            low = t
        else:
            high = t
    return (low + high) / 2


@value
class TemperatureScorer:
    """One minus the largest softmax probability at a temperature."""

    logits: View
    temperature: float
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.logits,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(
            lambda f: softmax_outside_largest(f, self.temperature), self.logits(chunk)
        )
