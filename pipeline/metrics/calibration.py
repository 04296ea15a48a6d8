"""Calibration errors: how far probabilities are from how often they are right, bin by bin.

Bins of equal width are those from i/b to below (i + 1)/b, the last one closed: i/b is the nearest
number of the type that probabilities are stored in, so what is written 0.7 is in the bin that
begins there. Counts are whole numbers and sums of probabilities exact, so the errors are quotients
of integers, rounded once.

References: Naeini, Cooper and Hauskrecht 2015, "Obtaining well calibrated probabilities using
Bayesian binning"; Guo, Pleiss, Sun and Weinberger 2017, "On calibration of modern neural networks",
arXiv 1706.04599.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple, final

import numpy as np

from pipeline import arrays
from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.metrics.estimates import exactly, undefined
from pipeline.metrics.judging import NO_ELEMENTS, Sided
from pipeline.procedure import Estimate, MetricResult, Passes
from pipeline.statistics.calibration_bins import CalibrationBins, ConfidenceBins
from pipeline.statistics.exact_sums import UNITS

__all__ = [
    "ECE",
    "MCE",
    "RMSCE",
    "Binned",
    "Reliability",
    "ReliabilityDiagram",
    "check_bins",
    "expected_error",
    "gaps",
    "largest_error",
    "root_mean_square_error",
    "width_edges",
]

MOST_BINS = 2**14
"""A bin takes 552 bytes of state."""


class ReliabilityDiagram(NamedTuple):
    """What a reliability diagram shows: b bins of probabilities, those without any element too."""

    of: str
    """Whose probability: ``top_label`` or ``positive``."""
    edges: np.ndarray[Any, np.dtype[np.float64]]
    """(b + 1,), from 0 to 1."""
    rows: np.ndarray[Any, np.dtype[np.int64]]
    """Elements of each bin (b,)."""
    accuracy: np.ndarray[Any, np.dtype[np.float64]]
    """Share of them that is right (b,); NaN of none."""
    confidence: np.ndarray[Any, np.dtype[np.float64]]
    """Their mean probability (b,); NaN of none."""
    ece: Estimate
    mce: Estimate
    rmsce: Estimate


def expected_error(bins: ConfidenceBins) -> Estimate:
    """Return sum_b (n_b / n) |accuracy - mean probability| over bins of n_b elements."""
    rows = int(bins.rows.sum())
    return exactly(sum(gaps(bins)) / (rows * UNITS)) if rows else undefined(NO_ELEMENTS)


def largest_error(bins: ConfidenceBins) -> Estimate:
    """Return the largest |accuracy - mean probability| of a bin with elements."""
    found = [gap / (rows * UNITS) for gap, rows in _filled(bins)]
    return exactly(max(found)) if found else undefined(NO_ELEMENTS)


def root_mean_square_error(bins: ConfidenceBins) -> Estimate:
    """Return the root of sum_b (n_b / n) (accuracy - mean probability)²."""
    filled = list(_filled(bins))
    if not filled:
        return undefined(NO_ELEMENTS)
    squares = sum(Fraction(gap * gap, rows) for gap, rows in filled)
    return exactly(math.sqrt(squares / (int(bins.rows.sum()) * UNITS**2)))


def gaps(bins: ConfidenceBins) -> list[int]:
    """Return |right elements - sum of probabilities| of each bin, in units of 2^-1074."""
    pairs = zip(bins.hits.tolist(), bins.units.tolist(), strict=True)
    return [abs(hits * UNITS - units) for hits, units in pairs]


def _filled(bins: ConfidenceBins) -> list[tuple[int, int]]:
    """Return the gap and the elements of each bin that has some."""
    pairs = zip(gaps(bins), bins.rows.tolist(), strict=True)
    return [(gap, rows) for gap, rows in pairs if rows]


def width_edges(bins: int, dtype: np.dtype[Any]) -> Const:
    """Return the keys (b - 1,) of the edges between bins of equal width for a type of floats."""
    kind = dtype.type if dtype.kind == "f" else np.float64
    edges = [float(kind(number / bins)) for number in range(1, bins)]
    return Const(arrays.sort_keys(np.array(edges)))


def check_bins(bins: int) -> None:
    """Raise :class:`ConfigError` for a number of bins that cannot be."""
    if not 1 <= bins <= MOST_BINS:
        raise ConfigError(f"bins: {bins}; expected 1 to {MOST_BINS:,}, such as 15")


@value
class Binned(Sided):
    """A calibration error over ``bins`` of equal width: an abstract base."""

    bins: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bins(self.bins)

    @final
    def binned(self, schema: Schema) -> Passes[ConfidenceBins]:
        """Ask for the bins."""
        probability, right = self.sides(schema)
        edges = width_edges(self.bins, self.stored(schema))
        where, among = self.rows(schema), self.among(schema)
        asked = CalibrationBins(probability, right, edges, where=where, among=among)
        found: ConfidenceBins = (yield {"bins": asked})["bins"]
        return found


@value
class ECE(Binned):
    """Expected calibration error: ``ece``, see :func:`expected_error`; of the predicted class.

    ``of="positive"``: ``ece_positive``, of the probability of class 1, which torchmetrics has for
    binary tasks. Differs from torchmetrics 1.9, which puts a probability of 1 in a bin of its own.
    """

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        bins = yield from self.binned(schema)
        return {f"ece{self.suffix}": expected_error(bins)}


@value
class MCE(Binned):
    """Maximum calibration error: ``mce`` (``mce_positive``), see :func:`largest_error`."""

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        bins = yield from self.binned(schema)
        return {f"mce{self.suffix}": largest_error(bins)}


@value
class RMSCE(Binned):
    """Root mean square calibration error: ``rmsce``, see :func:`root_mean_square_error`.

    Reference: Hendrycks, Mazeika and Dietterich 2019, "Deep anomaly detection with outlier
    exposure", arXiv 1812.04606.
    """

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        bins = yield from self.binned(schema)
        return {f"rmsce{self.suffix}": root_mean_square_error(bins)}


@value
class Reliability(Binned):
    """Accuracy and mean probability of each bin: a :class:`ReliabilityDiagram`."""

    def passes(self, schema: Schema) -> Passes[ReliabilityDiagram]:
        bins = yield from self.binned(schema)
        with np.errstate(invalid="ignore"):
            accuracy = bins.hits / bins.rows
        confidence = [
            units / (rows * UNITS) if rows else math.nan
            for units, rows in zip(bins.units.tolist(), bins.rows.tolist(), strict=True)
        ]
        edges = np.arange(self.bins + 1) / self.bins
        errors = (expected_error, largest_error, root_mean_square_error)
        return ReliabilityDiagram(
            self.of, edges, bins.rows, accuracy, np.array(confidence), *(e(bins) for e in errors)
        )
