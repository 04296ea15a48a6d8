"""Metrics that are one quotient per class, and their averages.

Of a class: tp elements predicted right, t elements of it, p predictions of it, n elements that
count. Numerators and denominators are linear in these four, with whole coefficients.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.metrics.estimates import (
    INT64_LIMIT,
    Whole,
    added,
    entries,
    exactly,
    mean_quotient,
    quotient,
    undefined,
    whole_numbers,
)
from pipeline.procedure import REHEARSING, Estimate
from pipeline.statistics import ClassSums, LabelCounts

AVERAGES = ("macro", "micro", "weighted", "none", "binary")
BY_CLASS = ("macro", "weighted", "none", "micro")
ABSENT = {"nan": (0, 0), "zero": (0, 1), "one": (1, 1)}
NO_ROWS = "no row with a label counts"
Coefficients = tuple[int, int, int, int]


class Ratio(NamedTuple):
    """A metric of one class: coefficients of (tp, t, p, n), and what the denominator counts."""

    numerator: Coefficients
    denominator: Coefficients
    made_of: str


PREDICTIONS, ROWS, EITHER = "predictions", "rows", "rows or predictions"
PRECISION = Ratio((1, 0, 0, 0), (0, 0, 1, 0), PREDICTIONS)
RECALL = Ratio((1, 0, 0, 0), (0, 1, 0, 0), ROWS)
SPECIFICITY = Ratio((1, -1, -1, 1), (0, -1, 0, 1), "rows of other classes")
NPV = Ratio((1, -1, -1, 1), (0, 0, -1, 1), "predictions of other classes")
DICE = Ratio((2, 0, 0, 0), (0, 1, 1, 0), EITHER)
IOU = Ratio((1, 0, 0, 0), (-1, 1, 1, 0), EITHER)
ONE_AGAINST_REST = Ratio((2, -1, -1, 1), (0, 0, 0, 1), ROWS)
ERRORS = Ratio((-2, 1, 1, 0), (0, 0, 0, 1), ROWS)
MISSES = Ratio((-1, 1, 0, 0), (0, 1, 0, 0), ROWS)


def fbeta(beta: float) -> Ratio:
    """Return (1 + b²) tp / (b² t + p), with b the decimal number that ``beta`` is written as."""
    square = Fraction(str(beta)) ** 2
    b, one = square.numerator, square.denominator
    return Ratio((one + b, 0, 0, 0), (0, b, one, 0), EITHER)


class Cells(NamedTuple):
    """What is known of each class that has a value: four times (k,) whole numbers."""

    classes: Whole
    """Numbers of the classes, in ascending order."""
    tp: Whole
    t: Whole
    p: Whole
    n: Whole
    rows: int
    """Elements that count for any class."""
    occur: np.ndarray[Any, np.dtype[np.bool_]]
    """Which classes are the label or the prediction of some element; every label occurs."""
    undecided: int
    """Elements that were predicted as none of the classes, but as a value that is ignored."""

    def combined(self, coefficients: Coefficients) -> Whole:
        """Return the sum (k,) of tp, t, p and n with these coefficients, exactly."""
        columns = (self.tp, self.t, self.p, self.n)
        size = sum(abs(c) for c in coefficients)
        if len(self.n) and size * int(self.n.max()) >= INT64_LIMIT:
            columns = tuple(column.astype(object) for column in columns)  # type: ignore[assignment]
        total = np.zeros_like(columns[0])
        for coefficient, column in zip(coefficients, columns, strict=True):
            if coefficient:
                total = total + coefficient * column
        return total

    def quotients(self, ratio: Ratio) -> tuple[Whole, Whole]:
        """Return the numerators and denominators (k,) of a metric."""
        return self.combined(ratio.numerator), self.combined(ratio.denominator)


def cells(counts: Any, ignore: Iterable[int] = ()) -> Cells:
    """Return the counts of the classes that have a value: all but those of ``ignore``.

    ``counts``: :class:`~pipeline.statistics.ClassCounts`, or what the statistics of labels and of
    weights give.
    """
    undecided = 0
    if isinstance(counts, LabelCounts):
        tp, missed, raised, rest = whole_numbers(*counts)
        t, p = tp + missed, tp + raised
        n = t + raised + rest
    elif isinstance(counts, ClassSums):
        tp, missed, raised, (undecided,) = whole_numbers(*counts)
        t, p = tp + missed, tp + raised
        # Sums over the same elements in another order may differ in their last bits.
        n = np.maximum(np.full_like(t, t.sum()), t + raised)
    else:
        tp, t, p = counts
        n = np.full_like(t, t.sum())
        undecided = int(t.sum() - p.sum())
    keep = np.ones(len(t), bool)
    keep[[c for c in ignore if 0 <= c < len(t)]] = False
    occur = (t + p > 0) | isinstance(counts, LabelCounts)
    rows = int(n.max()) if len(n) else 0
    return Cells(
        np.flatnonzero(keep), tp[keep], t[keep], p[keep], n[keep], rows, occur[keep], int(undecided)
    )


def averaged(
    name: str,
    ratio: Ratio,
    found: Cells,
    average: str,
    absent: str = "nan",
) -> dict[str, Estimate]:
    """Return an average of a metric over classes, or its number for each of them.

    ``macro``: ``{name}_mean`` over the classes that occur and where it is defined, and how many
    these are, ``{name}_classes_averaged``. ``weighted``: ``{name}_weighted``, weighted by the
    elements of each class. ``micro``: ``{name}_micro``, the quotient of summed counts. ``none``:
    ``{name}_{class}`` for each. ``binary``: ``{name}``, that of class 1. A class of 0 / 0 is NaN
    and left out of means; ``absent="zero"`` or ``"one"`` gives it that value, and every class a
    place in means. Without any element all is undefined.
    """
    numerators, denominators = found.quotients(ratio)
    reason = f"no class that counts has {ratio.made_of}" if found.rows else NO_ROWS
    if average == "micro":
        return {f"{name}_micro": quotient(added(numerators), added(denominators), reason)}
    if found.rows:
        lacking = denominators == 0
        numerators = np.where(lacking, ABSENT[absent][0], numerators)
        denominators = np.where(lacking, ABSENT[absent][1], denominators)
    if average == "macro":
        if absent == "nan":
            denominators = np.where(found.occur, denominators, 0)
        return {
            f"{name}_mean": mean_quotient(numerators, denominators, None, reason),
            f"{name}_classes_averaged": exactly(float(np.count_nonzero(denominators))),
        }
    if average == "weighted":
        if found.rows:
            reason = f"no class with rows has {ratio.made_of}"
        return {f"{name}_weighted": mean_quotient(numerators, denominators, found.t, reason)}
    if average == "binary":
        chosen = found.classes == 1
        pairs = entries(numerators[chosen], denominators[chosen])
        lacks = f"class 1 has no {ratio.made_of}" if found.rows else NO_ROWS
        alone = next((quotient(a, b, lacks) for a, b in pairs), undefined("class 1 is ignored"))
        return {name: alone}
    return _by_class(name, ratio, found, numerators, denominators)


def _by_class(
    name: str, ratio: Ratio, found: Cells, numerators: Whole, denominators: Whole
) -> dict[str, Estimate]:
    known: dict[tuple[int, int], Estimate] = {}  # a million classes have few different counts
    numbers = {}
    # Of made-up rows one class stands for all: a million undefined numbers take a minute.
    columns = [x[:1] if REHEARSING.get() else x for x in (found.classes, numerators, denominators)]
    for c, a, b in entries(*columns):
        number = known.get((a, b))
        if number is None:
            lacks = f"class {c} has no {ratio.made_of}" if found.rows else NO_ROWS
            number = quotient(a, b, lacks)
            if b:
                known[a, b] = number
        numbers[f"{name}_{c}"] = number
    return numbers


def check_options(average: object, absent: str, known: Iterable[str] = AVERAGES) -> None:
    """Raise :class:`ConfigError` for an average, or one of several, or an ``absent`` not known."""
    several = average if isinstance(average, tuple) else (average,)
    for option, one, choices in (
        *(("average", one, tuple(known)) for one in several),
        ("absent", absent, tuple(ABSENT)),
    ):
        if one not in choices:
            raise ConfigError(f"{option}: {one!r} is unknown; choose {', '.join(choices)}")
