"""Calibration errors over bins of equal mass, and class by class.

Bin i of b begins at the probability of rank floor(i n / b) of n, counted from 0, and all elements
with that probability are in it: ties do not part. So bins may be of different size, or empty.

Reference: Nixon, Dusenberry, Zhang, Jerfel and Tran 2019, "Measuring calibration in deep learning",
arXiv 1904.01685.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.metrics.calibration import check_bins, expected_error, gaps, width_edges
from pipeline.metrics.estimates import exactly, mean, undefined
from pipeline.metrics.judging import NO_ELEMENTS, Judging, Sided
from pipeline.procedure import Estimate, MetricResult, Passes
from pipeline.quantiles import order_statistics
from pipeline.statistics import BoundedRanks, Ordered
from pipeline.statistics.bounded_ranks import BUDGET_NBYTES
from pipeline.statistics.calibration_bins import CalibrationBins, ConfidenceBins
from pipeline.statistics.exact_sums import (
    TILE_ELEMENTS,
    UNITS,
    Limbs,
    added,
    carried,
    no_sums,
    whole_numbers,
)
from pipeline.statistics.value_counts import values_of
from pipeline.views.class_probabilities import ClassProbabilities, IsClass

__all__ = ["ACE", "ClasswiseECE", "MassBins", "equal_mass"]

ROUNDING = 2.0**-50
"""More than a few roundings to float64 change a number up to 1 by."""


class MassBins(NamedTuple):
    """Bins of equal mass, and how far their error may be off."""

    bins: ConfidenceBins
    off: float
    """Most that the elements of bins which may lie elsewhere, and their rounded probabilities, can
    change in the sum of all gaps; 0 where the bins are exact."""


def equal_mass(probabilities: Ordered, bins: int) -> MassBins:
    """Return bins of equal mass, from the probabilities of wrong (negatives) and right elements.

    Where these did not fit the memory, what an edge cuts may lie on either side of it, and moves
    two gaps by at most 1 for each element.
    """
    edges = np.array(_first_ranks(sum(probabilities.rows), bins), np.int64)
    rows, hits = np.zeros((2, bins), np.int64)
    sums, taken, off = no_sums(bins), 0, 0.0
    for piece in probabilities.pieces():
        wrong, right, least, greatest = (arrays.to_host(x) for x in piece)
        count = wrong + right
        upto = taken + np.cumsum(count)
        ids = np.searchsorted(edges, upto)
        np.add.at(rows, ids, count)
        np.add.at(hits, ids, right)
        low, high = values_of(least), values_of(greatest)
        cut = (ids > np.searchsorted(edges, upto - count, side="right")) & (low < high)
        off += math.fsum((count * (high - low) / 2 + np.where(cut, 2.0 * count, 0.0)).tolist())
        sums = _with(sums, np.repeat(low + (high - low) / 2, count), np.repeat(ids, count))
        taken = int(upto[-1])
    units = np.array(whole_numbers(sums.limbs), object)
    return MassBins(ConfidenceBins(rows, hits, units), off)


def _with(sums: Limbs, x: Any, ids: Any) -> Limbs:
    for tile in arrays.tiles(len(x), TILE_ELEMENTS):
        sums = added(sums, x[tile], ids[tile])
    return carried(sums)


def _first_ranks(count: int, bins: int) -> list[int]:
    """Return the ranks that bins begin at, without that of the first."""
    return [number * count // bins for number in range(1, bins)]


@value
class ACE(Sided):
    """Adaptive calibration error: ``ace`` (``ace_positive``), the ECE over bins of equal mass.

    Undefined where there are fewer elements than ``bins``. Probabilities are kept while they fit
    into ``budget`` bytes, 8 each; of more the value has bounds, or with ``exact`` they are read
    about three times, in bounded memory, and it is exact whatever their number.

    Differs from Nixon et al. 2019, who average it over all classes: that is ``classwise_ace``.
    """

    bins: int = 15
    budget: int = BUDGET_NBYTES
    exact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bins(self.bins)

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        probability, right = self.sides(schema)
        where, among = self.rows(schema), self.among(schema)
        if self.exact:
            edges = yield from mass_edges(schema, probability, among, self.bins)
            asked = CalibrationBins(probability, right, edges, where=where, among=among)
            found = MassBins((yield {"bins": asked})["bins"], 0.0)
        else:
            kept = BoundedRanks(probability, right, among, self.budget)
            found = equal_mass((yield {"ranks": kept})["ranks"], self.bins)
        return {f"ace{self.suffix}": _adaptive_error(found)}


def mass_edges(
    schema: Schema, of: Any, where: Any, bins: int, per_column: bool = False
) -> Passes[Const]:
    """Find the keys (b - 1,), or (k, b - 1), of the values that bins of equal mass begin at."""
    _, values = yield from order_statistics(
        schema, of, lambda n: _first_ranks(n, bins), where=where, per_column=per_column
    )
    keys = arrays.sort_keys(values.T)
    return Const(keys if per_column else keys[0])


def _adaptive_error(found: MassBins) -> Estimate:
    rows, wanted = int(found.bins.rows.sum()), len(found.bins.rows)
    if rows < wanted:
        return undefined(f"{rows} elements count, too few for {wanted} bins of equal mass")
    error = expected_error(found.bins)
    if not found.off:
        return error
    off = math.nextafter(found.off / rows, math.inf) + ROUNDING
    lower, upper = max(0.0, error.value - off), min(1.0, error.value + off)
    return Estimate(error.value, lower, upper, exact=False)


@value
class ClasswiseECE(Judging):
    """Class-wise calibration error: ``classwise_ece``, the mean over classes of the ECE of each.

    That is of the probability of the class, for all elements, right where it is the label. Beside
    it is the number of classes, ``classwise_ece_classes_averaged``; ignored ones have no part.
    ``adaptive``: ``classwise_ace``, over bins of equal mass, for one label a row.

    Reference: Kull, Perello Nieto, Kängsepp, Silva Filho, Song and Flach 2019, "Beyond temperature
    scaling", arXiv 1910.12656; Nixon et al. 2019, who call it static calibration error.
    """

    bins: int = 15
    adaptive: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bins(self.bins)
        if self.task == "binary":
            raise ConfigError(
                "task: binary scores are of one class; choose ECE(of='positive'), or ACE"
            )

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        judgements = self.judgements(schema)
        probability, right = ClassProbabilities(judgements), IsClass(judgements)
        where, among = self.rows(schema), judgements.among
        if not self.adaptive:
            edges = width_edges(self.bins, self.stored(schema))
        elif len(probability.shape(schema)) > 1 or self.task == "multilabel":
            raise ConfigError("adaptive: it needs one label a row; choose adaptive=False, or ACE")
        else:
            edges = yield from mass_edges(schema, probability, among, self.bins, per_column=True)
        asked = CalibrationBins(probability, right, edges, True, where, among)
        return self._averaged((yield {"bins": asked})["bins"])

    def _averaged(self, bins: ConfidenceBins) -> MetricResult:
        name = "classwise_ace" if self.adaptive else "classwise_ece"
        least = self.bins if self.adaptive else 1
        terms: Sequence[tuple[int, int, int]] = [
            (1, sum(gaps(ConfidenceBins(*of_class))), int(of_class[0].sum()) * UNITS)
            for c, of_class in enumerate(zip(*bins, strict=True))
            if int(of_class[0].sum()) >= least and not self._leaves_out(c)
        ]
        reason = NO_ELEMENTS if least == 1 else f"no class has {least} elements"
        return {
            name: mean(terms, reason),
            f"{name}_classes_averaged": exactly(float(len(terms))),
        }

    def _leaves_out(self, c: int) -> bool:
        return self.task == "multiclass" and c in self.ignored
