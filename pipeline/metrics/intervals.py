"""How far a number would lie elsewhere with other rows of the same kind: confidence intervals.

They say nothing of rounding or of bins: a number may be exact and its interval wide. Where scores
did not fit and are known by bins only, those of a bin count as equal here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.metrics.estimates import exactly, undefined
from pipeline.metrics.grouping import Pieces, grouped
from pipeline.metrics.tallies import AreaUnderROC, Tally, Totals, added_up
from pipeline.procedure import Estimate, MetricResult
from pipeline.statistics import Bins

__all__ = ["BOOTSTRAP", "DELONG", "Confidence", "bootstrap_interval", "delong_interval"]

DELONG, BOOTSTRAP = "delong", "bootstrap"
GROUPS = 2**14
"""Most distinct scores that rows are drawn among: neighbours count as equal where there are more.

The interval is moved by what that changes of the number itself.
"""
TOO_FEW = "a class has fewer than two rows"
THRESHOLD = "threshold"
"""Part of the names of numbers that are scores, which have no interval here."""


class Confidence(NamedTuple):
    """Which interval is wanted."""

    method: str
    level: float = 0.95
    replicates: int = 1000
    seed: int = 0

    def check(self, methods: tuple[str, ...]) -> None:
        """Raise :class:`ConfigError` for options that make no sense."""
        if self.method and self.method not in methods:
            known = " or ".join(methods)
            raise ConfigError(f"interval: {self.method!r} is unknown here; choose {known}")
        if not 0 < self.level < 1:
            raise ConfigError(f"level: {self.level}; expected a share within 0 and 1, such as 0.95")
        if self.replicates < 2:
            raise ConfigError(f"replicates: {self.replicates}; expected at least 2, such as 1000")

    @property
    def tail(self) -> float:
        """Share of the distribution beyond either end."""
        return (1 - self.level) / 2


def with_intervals(
    numbers: MetricResult,
    confidence: Confidence,
    make: Callable[[Totals], Tally],
    totals: Totals,
    pieces: Pieces,
) -> MetricResult:
    """Return numbers with the ends of their intervals, ``{name}_ci_lower`` and ``_ci_upper``."""
    if confidence.method == DELONG:
        found = {name: delong_interval(totals, pieces, confidence.level) for name in numbers}
    else:
        found = bootstrap_interval(make, totals, pieces, confidence)
    ends: dict[str, Estimate] = {}
    for name, (lower, upper) in found.items():
        ends |= {f"{name}_ci_lower": lower, f"{name}_ci_upper": upper}
    return {**numbers, **ends}


def delong_interval(
    totals: Totals, pieces: Pieces, level: float = 0.95
) -> tuple[Estimate, Estimate]:
    """Return the ends of the interval of AUROC: A -+ z sqrt(S_p / P + S_n / N), within [0, 1].

    S_p is the variance of the shares of negative rows below each positive one, S_n that of the
    shares of positive rows above each negative one; ties by half.

    Reference: DeLong, DeLong and Clarke-Pearson 1988, "Comparing the areas under two or more
    correlated receiver operating characteristic curves: a nonparametric approach".
    """
    if totals.lacks or min(totals.negatives, totals.positives) < 2:
        return (undefined(totals.lacks or TOO_FEW),) * 2
    (number,) = added_up(AreaUnderROC(totals), map(_as_tied, pieces())).values()
    area = number.value
    n_all, p_all = totals.negatives, totals.positives
    n_below = p_below = 0
    of_positives, of_negatives = list[float](), list[float]()
    for bins in pieces():
        n, p = bins.negatives, bins.positives
        below = (n_below + np.cumsum(n) - n / 2) / n_all
        above = (p_all - p_below - np.cumsum(p) + p / 2) / p_all
        of_positives.append(float(np.dot(p, (below - area) ** 2)))
        of_negatives.append(float(np.dot(n, (above - area) ** 2)))
        n_below, p_below = n_below + int(n.sum()), p_below + int(p.sum())
    variance = math.fsum(of_positives) / (p_all - 1) / p_all
    variance += math.fsum(of_negatives) / (n_all - 1) / n_all
    reach = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance)
    return exactly(max(0.0, area - reach)), exactly(min(1.0, area + reach))


def bootstrap_interval(
    make: Callable[[Totals], Tally], totals: Totals, pieces: Pieces, confidence: Confidence
) -> dict[str, tuple[Estimate, Estimate]]:
    """Return the ends of the interval of each number: quantiles of what it is of rows drawn anew.

    Rows of either class are drawn with replacement, as many as there are: multinomial counts of its
    distinct scores. The result depends on ``seed`` and on nothing else.

    Reference: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13.
    """
    exact = added_up(make(totals), map(_as_tied, pieces()))
    names = [name for name in exact if THRESHOLD not in name]
    if totals.lacks:
        return dict.fromkeys(names, (undefined(totals.lacks),) * 2)
    bins, whole = grouped(totals, pieces, GROUPS)
    bins = _as_tied(bins)
    here = added_up(make(totals), [bins])
    drawn = np.empty((confidence.replicates, len(names)))
    for replicate in range(confidence.replicates):
        random = np.random.default_rng((confidence.seed, replicate))
        negatives, positives = (random.multinomial(int(x.sum()), x / x.sum()) for x in bins[:2])
        again = bins._replace(negatives=negatives, positives=positives)
        numbers = added_up(make(totals), [again])
        drawn[replicate] = [numbers[name].value for name in names]
    ends = np.quantile(drawn, [confidence.tail, 1 - confidence.tail], axis=0)
    if not whole:
        ends += np.array([exact[name].value - here[name].value for name in names])
    ends = ends.clip(0.0, 1.0)
    return {
        name: (exactly(float(ends[0, i])), exactly(float(ends[1, i])))
        for i, name in enumerate(names)
    }


def _as_tied(bins: Bins) -> Bins:
    """Return the same bins, of equal scores each."""
    return bins._replace(greatest=bins.least)
