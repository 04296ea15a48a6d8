"""Numbers out of counts: quotients of Python integers, rounded to float64 once, at the very end."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pipeline.procedure import Estimate

GUARD_BITS = 128
"""Binary places that a mean of quotients keeps before it is rounded to the 53 of float64."""


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
