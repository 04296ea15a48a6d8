"""CADRef: relative distance from the mean of the predicted class, apart by the signs of weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, DataError
from pipeline.heads import Head, StoredHead, refuse_without_weights, with_weights
from pipeline.procedure import REHEARSING, Passes
from pipeline.statistics import ClassMeans, Means, Sum, Sums
from pipeline.views import LogSoftmax, LogSumExp, Pooled, Predicted, View, memoised

__all__ = ["CADRef"]

CONFIDENCES = ("energy", "max_logit", "msp")
SMALLEST = 1e-100
"""What |z|_1 counts as at least: a row of zeros is far from everything, and still finite."""
LEAST_CONFIDENT = 1e-6
"""What a confidence counts as at least, relative to the mean of the fit rows."""


@value
class CADRef:
    """Relative errors apart by sign: (e+ / s(z) + e- / mean s) / |z|_1.

    z (n, d) are the pooled features that the head reads, y the class it predicts, u = z - mu_y with
    the mean mu_y of the fit rows that are predicted as y. e+ is the sum of |u_j| over the entries
    where u_j has the sign of the weight w_yj, e- over those where it has the other sign. s is the
    ``confidence`` of the logits: ``energy`` (log sum exp), ``max_logit`` or ``msp`` (largest
    softmax). With ``decoupled: false`` the score is CARef, |u|_1 / |z|_1, which needs no weights.

    A class that is predicted for no fit row has the mean zero, so that its relative error is 1. A
    confidence counts as at least 1e-6 of its mean over the fit rows. Fit: one pass, after that of
    the head if it is fitted; state k x d.

    Raises :class:`ConfigError` for a head without weights or over other features where it is
    decoupled, and for an unknown ``confidence``; :class:`DataError` where the mean confidence is
    not positive.

    Reference: Ling, Chang, Zhao, Zhao, Chow and Deng 2025, "CADRef: robust out-of-distribution
    detection via class-aware decoupled relative feature leveraging", CVPR 2025, arXiv 2503.00325.
    Differs from the reference code: float64; it divides by confidences that are not positive, has
    no mean for a class that is never predicted, and has GEN as one more confidence.
    """

    paper: ClassVar[str] = "Ling et al. 2025"
    formula: ClassVar[str] = "relative error to the predicted class mean, apart by sign of W"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    head: Head = StoredHead()
    decoupled: bool = True
    confidence: str = "energy"
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.confidence not in CONFIDENCES:
            raise ConfigError(
                f"confidence: {self.confidence!r} is unknown; choose {', '.join(CONFIDENCES)}"
            )

    @property
    def unused(self) -> dict[str, str]:
        return {} if self.decoupled else {"confidence": "decoupled: false"}

    def passes(self, schema: Schema) -> Passes[CADRefScorer | CARefScorer]:
        if self.decoupled:
            refuse_without_weights(self.head, "cadref")
        features = Pooled(self.pool, self.field)
        logits = yield from self.head.passes(schema)
        predicted = Predicted(logits)
        asked: dict[str, Any] = {"means": ClassMeans(of=features, by=predicted)}
        if not self.decoupled:
            results = yield asked
            return CARefScorer(features, predicted, Const(results["means"].mean))
        weight = with_weights(logits, features, "cadref").weight
        confidence = _confidence(self.confidence, logits)
        results = yield {**asked, "confidence": Sums(of=confidence)}
        means: Means = results["means"]
        usual = self._usual(results["confidence"], schema.split)
        note = f"{(means.count > 0).sum()} of {schema.classes} classes are predicted"
        return CADRefScorer(
            features, predicted, confidence, Const(means.mean), weight, usual, (note,)
        )

    def _usual(self, confidence: Sum, split: str) -> float:
        if REHEARSING.get():
            return 1.0
        if not confidence.mean > 0:
            raise DataError(
                f"{split}: cadref divides by the confidence of the logits, but {self.confidence} "
                f"is {confidence.mean:.3g} on average; choose confidence: msp"
            )
        return float(confidence.mean)


def _confidence(how: str, logits: View) -> View:
    return LogSumExp(logits) if how == "energy" else Highest(logits, probability=how == "msp")


@value
class Highest:
    """The largest logit () of a logits view, or the largest softmax with ``probability``."""

    of: View
    probability: bool

    @property
    def _looked_at(self) -> View:
        return LogSoftmax(self.of) if self.probability else self.of

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        looked_at = self._looked_at.nbytes(schema, rows) if self.probability else 0
        return 16 * rows + looked_at

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self._looked_at(chunk)
        xp = arrays.namespace(x)
        highest = xp.max(x, axis=1)
        return xp.exp(highest) if self.probability else highest


@value
class CARefScorer:
    """L1 distance from the mean of the predicted class, over the L1 norm of the features."""

    features: View
    predicted: View
    means: Const
    """(k, d)."""

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.predicted)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._errors, self.features(chunk), self.predicted(chunk))

    def _errors(self, z: Array, predicted: Array) -> Array:
        xp = arrays.namespace(z)
        errors = z - xp.take(self.means.like(z), predicted, axis=0)
        return xp.sum(xp.abs(errors), axis=1) / _sizes(z)


@value
class CADRefScorer:
    """Relative errors along and against the weights, each over a confidence."""

    features: View
    predicted: View
    confidence: View
    means: Const
    """(k, d)."""
    weight: Const
    """W (k, d)."""
    usual: float
    """Mean confidence of the fit rows."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.predicted, self.confidence)

    def score(self, chunk: Chunk) -> Array:
        rows = (view(chunk) for view in self.views)
        return arrays.by_tiles(self._errors, *rows)

    def _errors(self, z: Array, predicted: Array, confidence: Array) -> Array:
        xp = arrays.namespace(z)
        errors = z - xp.take(self.means.like(z), predicted, axis=0)
        errors *= xp.sign(xp.take(self.weight.like(z), predicted, axis=0))
        zero = xp.zeros_like(errors)
        along = xp.sum(xp.where(errors > 0, errors, zero), axis=1)
        against = -xp.sum(xp.where(errors < 0, errors, zero), axis=1)
        least = xp.full_like(confidence, LEAST_CONFIDENT * self.usual)
        confidence = xp.where(confidence > least, confidence, least)
        return (along / confidence + against / self.usual) / _sizes(z)


def _sizes(z: Array) -> Array:
    xp = arrays.namespace(z)
    sizes = xp.sum(xp.abs(z), axis=1)
    return xp.where(sizes <= SMALLEST, xp.full_like(sizes, SMALLEST), sizes)  # NaN stays NaN
