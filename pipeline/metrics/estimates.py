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
LEAST_BITS = 8
"""Fewest bits at a time in long division: with fewer, Python integers are faster."""
LIMB_BITS, LIMB_ROWS = 20, 2**20
"""Products of so many digits of so many bits add up to less than 2^63."""


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
    chosen = None if weights is None else weights[defined]
    total = scaled_sum(numerators[defined], denominators[defined], chosen)
    of = int(np.count_nonzero(defined)) if chosen is None else added(chosen)
    return quotient(total, of << GUARD_BITS, reason)


def scaled_sum(numerators: Whole, denominators: Whole, weights: Whole | None = None) -> int:
    """Return the sum of weights x numerators / denominators (k,) in units of 2^-128.

    Each quotient, none below 0, is cut off after at least as many binary places.
    """
    if not len(numerators):
        return 0
    bits = 62 - int(denominators.max()).bit_length()
    if numerators.dtype == object or denominators.dtype == object or bits < LEAST_BITS:
        return _scaled_sum(numerators, denominators, weights)
    # Long division of all quotients at once, by digits of so many bits.
    digits, rest = np.divmod(numerators, denominators)
    total = weighted_sum(digits, weights)
    places = 0
    while places < GUARD_BITS:
        digits, rest = np.divmod(rest << bits, denominators)
        total = (total << bits) + weighted_sum(digits, weights)
        places += bits
    return total >> places - GUARD_BITS


def _scaled_sum(numerators: Whole, denominators: Whole, weights: Whole | None) -> int:
    ones = np.ones(len(numerators), np.int64)
    terms = entries(ones if weights is None else weights, numerators, denominators)
    return sum((w * a << GUARD_BITS) // b for w, a, b in terms)


def weighted_sum(x: Whole, weights: Whole | None) -> int:
    """Return the exact sum of x (k,), or of weights x."""
    return added(x) if weights is None else dot(x, weights)


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
    """Return the exact sum of x y over whole numbers (k,), none below zero."""
    if object in (x.dtype, y.dtype):
        return sum(a * b for a, b in entries(x, y))
    return sum(
        int(np.dot(a, b)) << place + other
        for start in range(0, len(x), LIMB_ROWS)
        for place, a in _limbs(x[start : start + LIMB_ROWS])
        for other, b in _limbs(y[start : start + LIMB_ROWS])
    )


def _limbs(x: Whole) -> Iterator[tuple[int, Whole]]:
    """Yield the digits of LIMB_BITS bits of int64 numbers, and the place of each."""
    for place in range(0, int(x.max()).bit_length(), LIMB_BITS):
        yield place, (x >> place) & (2**LIMB_BITS - 1)


def entries(*columns: Whole) -> Iterator[tuple[int, ...]]:
    """Yield the entries of several arrays (k,) beside each other, as Python integers."""
    for start in range(0, len(columns[0]), STEP):
        yield from zip(*(x[start : start + STEP].tolist() for x in columns), strict=True)
