"""Metrics of two classes for each of k: its elements against all others, and their averages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from pipeline.chunk import Schema
from pipeline.errors import ConfigError
from pipeline.metrics.estimates import exactly, undefined
from pipeline.metrics.ranked import Source, tallied
from pipeline.metrics.tallies import Tally, Totals
from pipeline.procedure import Estimate, MetricResult, Passes, together
from pipeline.statistics.bounded_ranks import LEAST_BUDGET_NBYTES
from pipeline.views import OfClass, OneHot, Positive, View

__all__ = ["AVERAGES", "check_averages", "one_vs_rest"]

AVERAGES = ("macro", "weighted", "micro", "none")
MICRO = "micro"
"""Also the name of the one class that holds all pairs of an element and a class."""


class Ranked(Protocol):
    """A metric of scores, for the rows of one class against others."""

    def tally(self, totals: Totals) -> Tally: ...


class _Against:
    """A metric of one class against the rest; remembers the elements of the class."""

    def __init__(self, metric: Ranked, name: str) -> None:
        self.metric, self.name = metric, name
        self.rows = 0

    def totals(self, negatives: int, positives: int) -> Totals:
        self.rows = positives
        names = f"element of any class but {self.name}", f"element of class {self.name}"
        if self.name == MICRO:
            names = ("element that is not of some class", "element with a label")
        lacks = [
            f"no {n}" for n, rows in zip(names, (negatives, positives), strict=True) if not rows
        ]
        return Totals(negatives, positives, " and ".join(lacks))

    def tally(self, totals: Totals) -> Tally:
        return self.metric.tally(totals)


def check_averages(averages: Sequence[str]) -> None:
    """Raise :class:`ConfigError` for an average that is not known."""
    unknown = [average for average in averages if average not in AVERAGES]
    if unknown or not averages:
        named = ", ".join(map(repr, unknown)) or "()"
        raise ConfigError(f"average: {named} is unknown; choose {', '.join(AVERAGES)}")


def one_vs_rest(
    metric: Ranked,
    whole: Source,
    averages: Sequence[str],
    several: bool,
    schema: Schema,
    left_out: Sequence[int] = (),
) -> Passes[MetricResult]:
    """Ask for the ranks of the scores of each class; return numbers of classes and averages.

    ``whole`` has scores (k, ...) of the labels (...), or, with ``several`` labels an element, of
    labels (k, ...). All classes share its budget in one pass. Where exact numbers are wanted and
    all scores do not fit, as many classes as do share a pass.

    ``none``: ``{name}_{class}``; ``macro``: ``{name}_mean`` over the classes where it is defined,
    their number beside it, ``{name}_classes_averaged``; ``weighted``: ``{name}_weighted``, by the
    elements of each class; ``micro``: ``{name}_micro``, all pairs of an element and a class in one
    order. A class without elements, or without any other, is NaN and left out of means.
    """  # fmt: skip
    numbers: dict[str, Estimate] = {}
    classes = [c for c in range(schema.classes) if c not in left_out]
    if set(averages) - {MICRO}:
        against = {c: _Against(metric, str(c)) for c in classes}
        found: dict[int, MetricResult] = {}
        for block in _blocks(whole, classes, schema):
            budget = max(LEAST_BUDGET_NBYTES, whole.budget_nbytes // len(block))
            part = whole._replace(budget_nbytes=budget)
            made = yield from together(
                {str(c): tallied(_of_class(part, c, several), against[c], schema) for c in block}
            )
            found |= {int(c): result for c, result in made.items()}
        rows = {c: one.rows for c, one in against.items()}
        for average in averages:
            numbers |= _averaged(average, found, rows) if average != MICRO else {}
    if MICRO in averages:
        pooled = whole._replace(positive=Positive() if several else OneHot())
        of_pairs = yield from tallied(pooled, _Against(metric, MICRO), schema)
        numbers |= {f"{name}_micro": number for name, number in of_pairs.items()}
    return numbers


def _blocks(whole: Source, classes: Sequence[int], schema: Schema) -> Iterator[Sequence[int]]:
    """Yield the classes that share a pass."""
    size = len(classes)
    if whole.exact and size:
        elements = schema.rows * math.prod(whole.of.shape(schema)[1:])
        size = max(1, min(size, whole.budget_nbytes // max(1, whole.width(schema) * elements)))
    for start in range(0, len(classes), max(1, size)):
        yield classes[start : start + size]


def _of_class(whole: Source, c: int, several: bool) -> Source:
    positive: View = OfClass(Positive(), c) if several else Positive(c)
    where = OfClass(whole.where, c) if several else whole.where
    return whole._replace(of=OfClass(whole.of, c), positive=positive, where=where)


def _averaged(
    average: str, found: Mapping[int, MetricResult], rows: Mapping[int, int]
) -> dict[str, Estimate]:
    if average == "none":
        return {f"{name}_{c}": n for c, numbers in found.items() for name, n in numbers.items()}
    names = next(iter(found.values()), {})
    made: dict[str, Estimate] = {}
    for name in names:
        defined = {c: n[name] for c, n in found.items() if not math.isnan(n[name].value)}
        if average == "macro":
            made[f"{name}_mean"] = _mean(list(defined.values()), [1] * len(defined))
            made[f"{name}_classes_averaged"] = exactly(float(len(defined)))
        else:
            made[f"{name}_weighted"] = _mean(list(defined.values()), [rows[c] for c in defined])
    return made


def _mean(numbers: Sequence[Estimate], weights: Sequence[int]) -> Estimate:
    if not numbers:
        return undefined("it is defined for no class")
    total = sum(weights)

    def of(column: str) -> float:
        terms = (getattr(n, column) * w for n, w in zip(numbers, weights, strict=True))
        return math.fsum(terms) / total

    if all(n.exact for n in numbers):
        return exactly(of("value"))
    lower, upper = math.nextafter(of("lower"), -math.inf), math.nextafter(of("upper"), math.inf)
    return Estimate(of("value"), lower, upper, exact=False)
