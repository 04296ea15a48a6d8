"""OpenMax: activations revised by how extreme their distance from the class mean is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.heads import ABSENT_BIAS, Head, StoredHead, logits_present
from pipeline.linalg import Host, squared_norms, unit
from pipeline.procedure import Passes
from pipeline.statistics import ClassMeans, ClassTails, Means, Tails
from pipeline.views import Correct, Labels, Linear, Valid, View, memoised
from pipeline.views.base import floats_nbytes

__all__ = ["OpenMax"]

TRANSLATION = 1e4
"""Where LibMR puts the smallest distance of a tail before it fits the Weibull distribution."""
TAIL_KEPT = 64
"""Distances that are kept of each class, or the power of two above a larger ``tail``."""
STEEPEST = 1e12
"""Bound of the shape: that of equal distances is infinite, a step."""
RESOLUTION = float(np.finfo(np.float64).eps) ** 0.5
"""Distances that differ by less than this share of the centre's length are equal."""
NEGLIGIBLE = 40.0
"""Logarithm of a hazard whose probability is 0 to every digit, 1 - exp(-exp(-40)) < 5e-18."""
SURE = 1e4
"""Logarithm of a scale beyond all distances: a class whose probability is always 0, or always 1."""
ROWS = ("correct", "all")
SCORES = ("log_odds", "probability")


@value
class OpenMax:
    """Log odds of an unknown class after extreme activations were revised: log P_0 / (1 - P_0).

    f (n, k) are the logits, m_c their mean over the fit rows of class c that are classified
    correctly, and F_c the Weibull distribution of the ``tail`` largest distances of these rows from
    m_c. Of the ``alpha`` largest logits (at most k) the j-th, of class c, loses the share
    (1 - (j - 1) / alpha) F_c(|f - m_c|) to the unknown class: P = softmax(lost, left_1 .. left_k),
    P_0 that of what was lost. ``score: probability`` gives P_0 itself, which ties rows that are
    nearly sure to be unknown.

    ``rows: all`` fits on every labelled row. The distance is ``euclid_weight`` times the Euclidean
    one plus 1 - ``euclid_weight`` times the cosine one, which is 1 from a vector of zeros.

    Fit: two passes, after that of the head if it is fitted; the second depends on the means of the
    first. State k x k, then k x 64: every ``tail`` up to 64 and every ``alpha`` share both. A class
    with fewer rows than ``tail`` uses those it has. The maximum likelihood of equal distances, such
    as those of one row or two, is a step: F_c is 0 up to them and 1 beyond. Equal is what differs
    by less than half the digits of float64 relative to m_c; the step lies as much above them, so
    that no rounding decides on which side a fit row is. A class without rows is unknown itself
    (F_c = 1), one that the head cannot predict is never revised. Notes count these classes. Raises
    :class:`ConfigError` for options that are out of bounds, :class:`DataError` where no fit row is
    classified correctly.

    Reference: Bendale and Boult 2016, "Towards open set deep networks", arXiv 1511.06233.
    Differs from the reference code: log odds; Euclidean distance (it adds 1 / 200 of that to the
    cosine one: ``euclid_weight: 0.004975``); one vector of logits in place of 10 crops; the shape
    by Newton's method on log(1 + z / 10,000), which keeps the digits that LibMR's translation by
    10,000 costs.
    """

    head: Head = StoredHead()
    tail: int = 20
    alpha: int = 10
    euclid_weight: float = 1.0
    rows: str = "correct"
    score: str = "log_odds"
    paper: ClassVar[str] = "Bendale and Boult 2016"
    formula: ClassVar[str] = "log odds of unknown, from Weibull tails of distances to class means"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"tail": 25, "rows": "all", "score": "probability"},
        "openood-1.5": {"alpha": 3, "score": "probability"},
    }

    def __post_init__(self) -> None:
        if self.tail < 2:
            raise ConfigError(f"tail: {self.tail}; a Weibull distribution needs at least 2")
        if self.alpha < 1:
            raise ConfigError(f"alpha: {self.alpha}; expected at least 1")
        if not 0 <= self.euclid_weight <= 1:
            raise ConfigError(f"euclid_weight: {self.euclid_weight!r}; expected 0 to 1")
        if self.rows not in ROWS:
            raise ConfigError(f"rows: {self.rows!r} is unknown; choose {' or '.join(ROWS)}")
        if self.score not in SCORES:
            raise ConfigError(f"score: {self.score!r} is unknown; choose {' or '.join(SCORES)}")

    def passes(self, schema: Schema) -> Passes[OpenMaxScorer]:
        logits = yield from self.head.passes(schema)
        absent = _absent(logits, schema.classes)
        activations = logits_present(logits)
        where = Correct(logits) if self.rows == "correct" else Valid()
        results = yield {"means": ClassMeans(of=activations, where=where)}
        means: Means = results["means"]
        centres = Const(means.mean)
        distances = OwnDistances(activations, centres, self.euclid_weight)
        size = max(TAIL_KEPT, 1 << (self.tail - 1).bit_length())
        results = yield {"tails": ClassTails(of=distances, where=where, size=size)}
        tails: Tails = results["tails"]
        largest = tails.largest[:, : self.tail]
        resolved = distances_resolved(means.mean, self.euclid_weight)
        fits = fit_weibull(largest)
        equal = (tails.count > 0) & (largest[:, 0] - fits.smallest <= resolved)
        fits = with_steps(fits, equal, largest[:, 0] + resolved, resolved)
        empty = (tails.count == 0) & ~absent
        log_scale = np.where(empty, -SURE, np.where(absent, SURE, fits.log_scale))
        return OpenMaxScorer(
            logits,
            activations,
            centres,
            Const(fits.smallest),
            Const(fits.shape),
            Const(log_scale),
            min(self.alpha, schema.classes),
            self.euclid_weight,
            self.score == "log_odds",
            self._notes(tails, equal, empty, absent),
        )

    def _notes(self, tails: Tails, equal: Host, empty: Host, absent: Host) -> tuple[str, ...]:
        counts = tails.count[~absent]
        short = int(((counts > 0) & (counts < self.tail)).sum())
        what = f"{self.rows} rows"
        notes = [f"Weibull tails of {int((counts > 0).sum())} of {len(tails.count)} classes"]
        if short:
            notes.append(f"{short} of them have fewer than {self.tail} {what}: all are their tail")
        if equal.any():
            notes.append(f"in {int(equal.sum())} all are equally far: farther rows are extreme")
        if empty.any():
            notes.append(f"{int(empty.sum())} classes without {what} are unknown themselves")
        return ("; ".join(notes),)


def _absent(logits: View, classes: int) -> Host:
    """Tell which classes (k,) a head with weights can never predict; none of stored logits."""
    if isinstance(logits, Linear):
        return np.asarray(logits.bias.array <= ABSENT_BIAS)
    return np.zeros(classes, bool)


class Weibulls(NamedTuple):
    """Weibull distributions of distances, one for each of k classes; (k,) each.

    F(x) = 1 - exp(-exp(shape * (log(1 + (x - smallest) / TRANSLATION) - log_scale))).
    """

    smallest: Host
    shape: Host
    log_scale: Host


def fit_weibull(tails: Host) -> Weibulls:
    """Fit the shape and the scale of each class to its tail (k, m) by maximum likelihood.

    ``tails`` holds -inf where a class has fewer distances. The equation of the shape c,
    sum l e^(cl) / sum e^(cl) - mean l = 1 / c in the logarithms l, has its one root between 1 and
    1 + log m over (max l - mean l); Newton's method that leaves this interval halves it instead.
    """
    there = np.isfinite(tails)
    rows = np.maximum(there.sum(axis=1), 1)[:, None]
    smallest = np.where(there, tails, np.inf).min(axis=1)
    smallest = np.where(there.any(axis=1), smallest, 0.0)
    logs = np.log1p(np.where(there, tails - smallest[:, None], 0.0) / TRANSLATION)
    mean = logs.sum(axis=1, keepdims=True) / rows
    below = np.where(there, logs - logs.max(axis=1, keepdims=True), -np.inf)
    spread = np.maximum(logs.max(axis=1, keepdims=True) - mean, 1 / STEEPEST)
    low, high = 1 / spread, (1 + np.log(rows)) / spread
    shape = (low + high) / 2
    for _ in range(60):
        weights = np.exp(shape * below)
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1.0)
        centre = (weights * logs).sum(axis=1, keepdims=True)
        excess = centre - mean - 1 / shape
        low, high = np.where(excess < 0, shape, low), np.where(excess < 0, high, shape)
        slope = (weights * (logs - centre) ** 2).sum(axis=1, keepdims=True) + 1 / shape**2
        newton = shape - excess / slope
        inside = (newton >= low) & (newton <= high)
        shape = np.where(inside, newton, (low + high) / 2)
    total = np.exp(shape * below).sum(axis=1, keepdims=True)
    log_mean = np.log(np.maximum(total, 1.0) / rows) / shape
    log_scale = logs.max(axis=1, keepdims=True) + log_mean
    return Weibulls(smallest, shape[:, 0], log_scale[:, 0])


def distances_resolved(centres: Host, euclid_weight: float) -> Host:
    """Return what distances (k,) from the centres (k, q) must differ by to differ at all."""
    lengths = np.sqrt((centres**2).sum(axis=1))
    resolved: Host = RESOLUTION * (euclid_weight * lengths + 1.0 - euclid_weight)
    return resolved


def with_steps(fits: Weibulls, equal: Host, edges: Host, widths: Host) -> Weibulls:
    """Return distributions of which the ``equal`` ones are 0 a width below their edge, then 1."""
    widths = np.maximum(widths, np.finfo(np.float64).tiny ** 0.5)
    return Weibulls(
        np.where(equal, edges, fits.smallest),
        np.where(equal, NEGLIGIBLE * TRANSLATION / widths, fits.shape),
        np.where(equal, 0.0, fits.log_scale),
    )


@value
class OwnDistances:
    """Distance () of a vector view from the centre of the class of its label; 0 of void rows."""

    of: View
    centres: Const
    """(k, q)."""
    euclid_weight: float

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | Labels().fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = 4 * floats_nbytes(self.of.shape(schema), min(rows, arrays.TILE_ROWS))
        return Labels().nbytes(schema, rows) + 8 * rows + tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._distances, self.of(chunk), Labels()(chunk))

    def _distances(self, x: Array, y: Array) -> Array:
        xp = arrays.namespace(x, y)
        labelled = y >= 0
        centres = xp.take(self.centres.like(x), xp.where(labelled, y, xp.zeros_like(y)), axis=0)
        found = distances(x, centres, self.euclid_weight)
        return xp.where(labelled, found, xp.zeros_like(found))


def distances(x: Array, centres: Array, euclid_weight: float) -> Array:
    """Return the distance (n,) of each row from its centre: Euclidean and cosine ones, weighted."""
    xp = arrays.namespace(x, centres)
    if euclid_weight == 1:
        return xp.sqrt(squared_norms(x - centres))
    # Lengths are divided by one at a time: their product may overflow.
    cosine = 1 - xp.clip(xp.sum(unit(x) * unit(centres), axis=1), -1.0, 1.0)
    if euclid_weight == 0:
        return cosine
    return euclid_weight * xp.sqrt(squared_norms(x - centres)) + (1 - euclid_weight) * cosine


@value
class OpenMaxScorer:
    """Log odds, or probability, of the unknown class."""

    logits: View
    activations: View
    """Logits whose distances from the centres count."""
    centres: Const
    """Mean activations (k, k)."""
    smallest: Const
    """Least distance of the tail of each class (k,)."""
    shape: Const
    log_scale: Const
    """Weibull distribution of each class: (k,) each."""
    alpha: int
    euclid_weight: float
    as_log_odds: bool
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.logits, self.activations)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._revised, self.logits(chunk), self.activations(chunk))

    def _revised(self, f: Array, activations: Array) -> Array:
        xp = arrays.namespace(f)
        classes = xp.arange(f.shape[1], dtype=xp.int64, device=arrays.device_of(f))
        nothing = xp.full_like(f, -xp.inf)
        rest, lost, left = f, [], []
        for rank in range(self.alpha):
            nearest, largest = xp.argmax(rest, axis=1), xp.max(rest, axis=1)
            rest = xp.where(classes[None, :] == nearest[:, None], nothing, rest)
            share = (self.alpha - rank) / self.alpha
            lost.append(largest * share * self._extremes(activations, nearest))
            left.append(largest - lost[-1])
        known = xp.concat((xp.stack(left, axis=1), rest), axis=1)
        top = xp.max(known, axis=1)
        log_known = top + xp.log(xp.sum(xp.exp(known - top[:, None]), axis=1))
        log_odds = xp.sum(xp.stack(lost, axis=1), axis=1) - log_known
        return log_odds if self.as_log_odds else _sigmoid(log_odds)

    def _extremes(self, activations: Array, classes: Array) -> Array:
        """Return how extreme the distance of each row from the centre of a class is: (n,)."""
        xp = arrays.namespace(activations)
        centres, smallest, shape, log_scale = (
            xp.take(each.like(activations), classes, axis=0)
            for each in (self.centres, self.smallest, self.shape, self.log_scale)
        )
        found = distances(activations, centres, self.euclid_weight)
        # Nothing is as near as TRANSLATION below the tail but what is not extreme at all.
        beyond = xp.clip((found - smallest) / TRANSLATION, -1 + 1e-12, None)
        power = xp.clip(shape * (xp.log1p(beyond) - log_scale), -700.0, 700.0)
        return -xp.expm1(-xp.exp(power))


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), to every digit where it is nearly 0."""
    xp = arrays.namespace(x)
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small, xp.ones_like(x)) / (1.0 + small)
