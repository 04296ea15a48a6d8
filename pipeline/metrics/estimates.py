"""Numbers out of counts: quotients of whole numbers, rounded to float64 once, at the very end.

Counts are int64 where no step can overflow, and Python integers (dtype object) elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pipeline.procedure import Estimate

Whole = np.ndarray[Any, Any]
"""Whole numbers (k,): int64, or Python integers in an array of objects."""

GUARD_BITS = 128
"""Binary places that a mean of quotients keeps before it is rounded to the 53 of float64."""
STEP = 65_536
"""Entries that are Python integers at a time: they take ten times the memory of their array."""
INT64_LIMIT = 2**62


def exactly(number: float) -> Estimate:
    """Return an estimate whose bounds are the number itself."""
    return Estimate(number, number, number)


def undefined(reason: str) -> Estimate:
    """Return NaN with the reason why there is no number."""
    return Estimate(math.nan, math.nan, math.nan, reason=reason)


def quotient(numerator: int, denominator: int, reason: str) -> Estimate:
    """Return numerator / denominator, correctly rounded; undefined with ``reason`` where 0 / 0."""
    return exactly(numerator / denominator) if denominator else undefined(reason)


def mean(terms: Iterable[tuple[int, int, int]], reason: str) -> Estimate:
    """Return the weighted mean of the quotients in ``terms``: (weight, numerator, denominator).

    The sum is taken in integers, so that neither the order nor the number of terms changes a bit.
    Undefined with ``reason`` where all weights are zero.
    """
    total = weights = 0
    for weight, numerator, denominator in terms:
        total += (weight * numerator << GUARD_BITS) // denominator
        weights += weight
    return quotient(total, weights << GUARD_BITS, reason)


def mean_quotient(
    numerators: Whole, denominators: Whole, weights: Whole | None, reason: str
) -> Estimate:
    """Return the mean of numerators / denominators (k,), weighted if asked, leaving out 0 / 0.

    Undefined with ``reason`` where nothing is left, or all weights are zero.
    """
    defined = denominators != 0
    weight = np.ones(len(numerators), np.int64) if weights is None else weights
    total = scaled_sum(numerators[defined], denominators[defined], weight[defined])
    return quotient(total, added(weight[defined]) << GUARD_BITS, reason)


def scaled_sum(numerators: Whole, denominators: Whole, weights: Whole) -> int:
    """Return the sum of weights numerators / denominators (k,) in units of 2^-128.

    Each term is rounded down to a unit. Only quotients other than 0 and 1 are looked at one by one.
    """
    whole = numerators == denominators
    between = ~whole & (numerators != 0)
    total = added(weights[whole]) << GUARD_BITS
    for w, a, b in entries(weights[between], numerators[between], denominators[between]):
        total += (w * a << GUARD_BITS) // b
    return total


def root_quotient(numerator: int, left: int, right: int, reason: str) -> Estimate:
    """Return numerator / sqrt(left right), correctly rounded; undefined where left right is 0."""
    square = left * right
    if not square:
        return undefined(reason)
    shift = max(0, 128 + (square.bit_length() - 2 * abs(numerator).bit_length()) // 2)
    scaled = numerator**2 << 2 * shift
    root = math.isqrt(scaled // square)
    inexact = root * root * square != scaled  # a bit below those that are kept decides of ties
    size = (2 * root + inexact) / (2 << shift)
    return exactly(math.copysign(size, numerator) if numerator else 0.0)


def whole_numbers(*columns: Whole) -> tuple[Whole, ...]:
    """Return whole numbers in the proportions of arrays (k,): themselves, or multiples of floats.

    Metrics of counts do not change where all counts are multiplied by one number, so sums of
    float64 weights end as whole numbers of their smallest power of two.
    """
    if all(column.dtype.kind != "f" for column in columns):
        return columns
    mantissas, exponents = np.frexp(np.concatenate(columns))
    places = exponents - 53
    used = mantissas != 0
    least = int(places[used].min()) if used.any() else 0
    units = (mantissas * 2.0**53).astype(np.int64).astype(object)
    whole = units * 2 ** np.where(used, places - least, 0).astype(object)
    ends = np.cumsum([len(column) for column in columns])
    return tuple(np.split(whole, ends[:-1]))


def added(x: Whole) -> int:
    """Return the exact sum of whole numbers (k,)."""
    if x.dtype != object and (not len(x) or int(np.abs(x).max()) * len(x) < INT64_LIMIT):
        return int(x.sum())
    return sum(sum(x[start : start + STEP].tolist()) for start in range(0, len(x), STEP))


def dot(x: Whole, y: Whole) -> int:
    """Return the exact sum of x * y over whole numbers (k,), none below zero."""
    small = x.dtype != object and y.dtype != object and len(x)
    if small and int(x.max()) * int(y.max()) * len(x) < INT64_LIMIT:
        return int(np.dot(x, y))
    return sum(a * b for a, b in entries(x, y))


def entries(*columns: Whole) -> Iterator[tuple[int, ...]]:
    """Yield the entries of several arrays (k,) beside each other, as Python integers."""
    for start in range(0, len(columns[0]), STEP):
        yield from zip(*(x[start : start + STEP].tolist() for x in columns), strict=True)
