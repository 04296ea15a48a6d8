"""Means over images of quotients of pixels, exactly, in a few integers for each class.

A quotient is three digits to the base 2^30: 90 binary places. Sums of digits are sums of whole
numbers, so neither the order of images nor how they are cut into chunks changes a bit.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics.base import fields_of, kept
from pipeline.views import Every, View

DIGIT_BITS, DIGITS = 30, 3
ONE = 1 << DIGIT_BITS * DIGITS
"""What a sum of quotients is that is 1."""
KINDS = ("iou", "dice", "precision", "recall", "generalised_dice")
ABSENT = ("nan", "zero", "one", "nan_unlabelled")
DICE_WEIGHTINGS = ("square", "simple", "uniform")
MEAN, MICRO, WEIGHTED = -3, -2, -1
"""Places of the numbers of whole images, behind those of the classes."""


class Quotients(NamedTuple):
    """Quotients (n, m) of images: their digits, 3 times (n, m) int64, and which are defined."""

    digits: tuple[Array, ...]
    defined: Array


class MeanSums(NamedTuple):
    """Sums over images: digits (m, 3) int64, and over how many (m,) int64.

    First the k classes, then three numbers of an image: the mean of its classes, the quotient of
    their summed pixels, and the mean weighted by true pixels of each class. ``generalised_dice``
    has but one number, m = 1.
    """

    digits: Array
    images: Array

    def sum(self, place: int) -> tuple[int, int]:
        """Return the sum of quotients at a place in units of 1 / :data:`ONE`, and their number."""
        total = 0
        for digit in self.digits[place].tolist():
            total = (total << DIGIT_BITS) + digit
        return total, int(self.images[place])


@value
class ImageMeans:
    """Sums over images of a quotient of the pixels of each class: :class:`MeanSums`.

    ``of`` is a table (k, 3) of each image, :class:`ImageOverlaps`: tp, t, p. ``kind``: iou
    tp / (t + p - tp), dice 2 tp / (t + p), precision tp / p, recall tp / t, or generalised_dice
    2 sum w tp / sum w (t + p), where w is 1 / t² (``weighting`` square), 1 / t (simple) or 1
    (uniform), and a class without true pixels has the largest w that another one of its image has.
    ``absent``: what a class is given that is 0 / 0 in an image: nan (left out), zero or one;
    nan_unlabelled leaves out whatever has no true pixel, even where it is predicted. Classes of
    ``ignore``, and images without a pixel that counts, are left out.
    """

    of: View
    kind: str
    where: View = Every()
    absent: str = "nan"
    ignore: tuple[int, ...] = ()
    weighting: str = "square"
    version: ClassVar[int] = 1
    additive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for option, given, known in (
            ("kind", self.kind, KINDS),
            ("absent", self.absent, ABSENT),
            ("weighting", self.weighting, DICE_WEIGHTINGS),
        ):
            if given not in known:
                raise ConfigError(f"{option}: {given!r} is unknown; choose {', '.join(known)}")

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of, self.where)

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.views)

    def empty(self, schema: Schema) -> MeanSums:
        places = self._places(schema)
        return MeanSums(np.zeros((places, DIGITS), np.int64), np.zeros(places, np.int64))

    def absorb(self, state: MeanSums, chunk: Chunk) -> MeanSums:
        (table,) = kept(chunk, self.where, self.of)
        found = sums_of(self.quotients(table))
        return MeanSums(*(arrays.add_into(a, b) for a, b in zip(state, found, strict=True)))

    def quotients(self, table: Array) -> Quotients:
        """Return the numbers (n, m) of images from their table (n, k, 3) of whole numbers."""
        xp = arrays.namespace(table)
        kept = [c for c in range(table.shape[1]) if c not in self.ignore]
        classes = xp.asarray(kept, dtype=xp.int64, device=arrays.device_of(table))
        counts = xp.astype(table, xp.int64)
        tp, t, p = (xp.take(counts[:, :, column], classes, axis=1) for column in range(3))
        some = xp.sum(t, axis=1, keepdims=True) > 0
        if self.kind == "generalised_dice":
            return _masked(_generalised_dice(tp, t, p, self.weighting), some)
        each = self._given(_divided(*_fraction(self.kind, tp, t, p)), t)
        whole = tuple(xp.sum(column, axis=1, keepdims=True) for column in (tp, t, p))
        images = (
            _weighted_mean(each, xp.ones_like(t)),
            _divided(*_fraction(self.kind, *whole)),
            _weighted_mean(each, t),
        )
        every = [_spread(_masked(each, some), kept, table.shape[1])]
        every += [_masked(number, some) for number in images]
        digits = zip(*(number.digits for number in every), strict=True)
        return Quotients(
            tuple(xp.concat(digit, axis=1) for digit in digits),
            xp.concat([number.defined for number in every], axis=1),
        )

    def _given(self, each: Quotients, t: Array) -> Quotients:
        """Return the quotients of classes with the value that absent ones are given."""
        xp = arrays.namespace(t)
        if self.absent == "nan_unlabelled":
            return _masked(each, t > 0)
        if self.absent == "nan":
            return each
        first = each.digits[0]
        if self.absent == "one":
            first = xp.where(each.defined, first, xp.full_like(first, 1 << DIGIT_BITS))
        return Quotients((first, *each.digits[1:]), xp.ones_like(each.defined))

    def close(self, state: MeanSums) -> MeanSums:
        return state

    def merge(self, a: MeanSums, b: MeanSums) -> MeanSums:
        return MeanSums(a.digits + b.digits, a.images + b.images)

    def finalize(self, state: MeanSums) -> MeanSums:
        digits, images = (arrays.to_host(x).copy() for x in state)
        for place in range(DIGITS - 1, 0, -1):  # a sum has one form, whatever it was merged from
            digits[:, place - 1] += digits[:, place] >> DIGIT_BITS
            digits[:, place] &= (1 << DIGIT_BITS) - 1
        return MeanSums(digits, images)

    def state_nbytes(self, schema: Schema) -> int:
        return 8 * (DIGITS + 1) * self._places(schema)

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        return 8 * 24 * (schema.classes - MEAN) * rows + self.state_nbytes(schema)

    def _places(self, schema: Schema) -> int:
        return 1 if self.kind == "generalised_dice" else schema.classes - MEAN

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results


def sums_of(numbers: Quotients) -> MeanSums:
    """Return the sums of the numbers of some images, and over how many they are."""
    xp = arrays.namespace(numbers.defined)
    digits = xp.stack([xp.sum(digit, axis=0) for digit in numbers.digits], axis=1)
    return MeanSums(digits, xp.sum(xp.astype(numbers.defined, xp.int64), axis=0))


def _fraction(kind: str, tp: Array, t: Array, p: Array) -> tuple[Array, Array]:
    """Return numerators and denominators of quotients of pixels."""
    if kind == "iou":
        return tp, t + p - tp
    if kind == "dice":
        return 2 * tp, t + p
    return tp, p if kind == "precision" else t


def _divided(numerator: Array, denominator: Array) -> Quotients:
    """Return quotients of at most 1, of whole numbers below 2^33; those of 0 / 0 are undefined."""
    xp = arrays.namespace(numerator, denominator)
    defined = denominator > 0
    divisor = xp.where(defined, denominator, xp.ones_like(denominator))
    first = numerator << DIGIT_BITS
    return Quotients(_long_division((first, 0, 0), divisor), defined)


def _long_division(dividend: tuple[Any, ...], divisor: Array) -> tuple[Array, ...]:
    """Return the digits of a dividend, given by its own, over whole numbers.

    A remainder moved up by a digit, with the next one added, must fit into int64.
    """
    digits, rest = [], 0
    for digit in dividend:
        rest = (rest << DIGIT_BITS) + digit
        digits.append(rest // divisor)
        rest = rest - digits[-1] * divisor
    return tuple(digits)


def _weighted_mean(each: Quotients, weights: Array) -> Quotients:
    """Return the mean (n, 1) of the quotients (n, k) that are defined, by weights below 2^31."""
    xp = arrays.namespace(weights)
    weights = xp.where(each.defined, weights, xp.zeros_like(weights))
    total = xp.sum(weights, axis=1, keepdims=True)
    sums = tuple(xp.sum(weights * digit, axis=1, keepdims=True) for digit in each.digits)
    divisor = xp.where(total > 0, total, xp.ones_like(total))
    return Quotients(_long_division(sums, divisor), total > 0)


def _generalised_dice(tp: Array, t: Array, p: Array, weighting: str) -> Quotients:
    """Return the generalised Dice (n, 1) of images, class after class in float64."""
    xp = arrays.namespace(tp, t, p)
    labelled = t > 0
    pixels = xp.astype(xp.where(labelled, t, xp.ones_like(t)), xp.float64)
    weights = {"square": 1.0 / (pixels * pixels), "simple": 1.0 / pixels}.get(
        weighting, xp.ones_like(pixels)
    )
    if weighting != "uniform":
        known = xp.where(labelled, weights, xp.zeros_like(weights))
        weights = xp.where(labelled, weights, xp.max(known, axis=1, keepdims=True))
    shared, both = xp.zeros_like(weights[:, 0]), xp.zeros_like(weights[:, 0])
    for c in range(t.shape[1]):  # one order of sums, whatever the library
        shared = shared + weights[:, c] * xp.astype(2 * tp[:, c], xp.float64)
        both = both + weights[:, c] * xp.astype(t[:, c] + p[:, c], xp.float64)
    defined = both > 0
    rest = shared / xp.where(defined, both, xp.ones_like(both))
    digits = []
    for _ in range(DIGITS):
        rest = rest * float(1 << DIGIT_BITS)
        digits.append(xp.astype(xp.floor(rest), xp.int64))
        rest = rest - xp.floor(rest)
    return Quotients(tuple(digit[:, None] for digit in digits), defined[:, None])


def _masked(numbers: Quotients, among: Array) -> Quotients:
    """Return quotients (n, m) of which those not ``among`` are undefined, and count as 0."""
    xp = arrays.namespace(among)
    defined = numbers.defined & among
    digits = (xp.where(defined, digit, xp.zeros_like(digit)) for digit in numbers.digits)
    return Quotients(tuple(digits), defined)


def _spread(numbers: Quotients, places: list[int], width: int) -> Quotients:
    """Return quotients (n, width) with columns at their places; others are undefined."""
    xp = arrays.namespace(numbers.defined)

    def spread(x: Array) -> Array:
        out = xp.zeros((x.shape[0], width), dtype=x.dtype, device=arrays.device_of(x))
        for column, place in enumerate(places):
            out[:, place] = x[:, column]
        return out

    return Quotients(tuple(map(spread, numbers.digits)), spread(numbers.defined))
