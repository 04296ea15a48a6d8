"""Bootstrap intervals over images, from the table of their pixels, in memory of fixed size.

A replicate draws as many images as there are, with replacement; all it needs of them is how often
each was drawn. The table is read a thousand images at a time, and every replicate adds up whole
numbers: intervals depend on the images, their order and the seed, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics import ratios
from pipeline.metrics.counting import Inputs
from pipeline.metrics.estimates import exactly, undefined
from pipeline.metrics.ratios import averaged, cells
from pipeline.metrics.segmentation import MEANS, OfImages, image_numbers
from pipeline.procedure import Estimate, Rows
from pipeline.statistics import ClassCounts
from pipeline.statistics.image_means import (
    ABSENT,
    DIGIT_BITS,
    MEAN,
    ImageMeans,
    MeanSums,
    sums_of,
)
from pipeline.views import Stored

__all__ = ["ImageIntervals", "image_intervals"]

RATIOS = {
    "iou": ratios.IOU,
    "dice": ratios.DICE,
    "precision": ratios.PRECISION,
    "recall": ratios.RECALL,
}
AVERAGES = ("macro", "none", *MEANS)
GIVEN = {"zero": 0.0, "one": 1.0}
TILE_IMAGES = 1024
"""Images whose draws are formed at a time; another number would draw others."""
TILE_REPLICATES = 1000
SUMS_NBYTES = 512 * 2**20
"""Most memory for the sums of all replicates."""

Table = Iterable[np.ndarray[Any, Any]]
"""Blocks (n, k, 3) of whole numbers, which can be gone through twice."""
Whole = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


def image_intervals(
    table: Table,
    kinds: Sequence[str] = ("iou",),
    averages: Sequence[str] = ("macro", "images"),
    *,
    absent: str = "nan",
    ignore: tuple[int, ...] = (),
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return numbers of a table of images, with the ends of their percentile intervals.

    Of each kind, iou, dice, precision or recall: ``macro``, ``{kind}_mean``, and ``none``,
    ``{kind}_{class}``, from the pixels of all images; ``images``, ``classes`` and ``pairs`` as in
    :func:`~pipeline.metrics.segmentation.image_numbers`, ``image_{kind}_image_mean`` and so on.
    Between ``{key}_lower`` and ``{key}_upper`` lies a share ``level`` of the replicates. Images
    without a pixel that counts are not drawn, and replicates in which a number is undefined have no
    part in its interval. Raises :class:`ConfigError` where the sums of the replicates would take
    more than 512 MiB.

    Reference: Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13.
    """
    means = [ImageMeans(Stored(""), kind, absent=absent, ignore=ignore) for kind in kinds]
    images, sums = _whole(table, means)
    drawn = _replicates(table, means, images, replicates, seed)
    found: dict[str, Estimate] = {}
    for place, kind in enumerate(kinds):
        numbers = _numbers(kind, sums.pixels, sums.means[place], averages, absent, ignore)
        columns = _columns(kind, place, drawn, averages, absent, ignore)
        for key, column in columns.items():
            found |= {key: numbers[key], **_ends(key, column, level, images)}
    return found


class _Sums(NamedTuple):
    """What all images add up to: pixels (k, 3), and the means of each kind."""

    pixels: Whole
    means: list[MeanSums]


def _tiles(table: Table) -> Iterator[Whole]:
    """Yield the images that count, as many at a time as draw together."""
    held: list[Whole] = []
    waiting = 0
    for block in table:
        rest = block[(block[:, :, 1] > 0).any(axis=1)].astype(np.int64)
        while len(rest):
            part, rest = rest[: TILE_IMAGES - waiting], rest[TILE_IMAGES - waiting :]
            held.append(part)
            waiting += len(part)
            if waiting == TILE_IMAGES:
                yield np.concatenate(held)
                held, waiting = [], 0
    if waiting:
        yield np.concatenate(held)


def _whole(table: Table, means: Sequence[ImageMeans]) -> tuple[int, _Sums]:
    """Return how many images count, and what they add up to."""
    classes = next((block.shape[1] for block in table), 0)
    none = np.zeros((1, classes, 3), np.int64)  # an image without pixels adds nothing
    images, pixels = 0, none[0]
    sums = [sums_of(mean.quotients(none)) for mean in means]
    for tile in _tiles(table):
        images += len(tile)
        pixels = pixels + tile.sum(axis=0)
        sums = [
            mean.merge(a, sums_of(mean.quotients(tile)))
            for mean, a in zip(means, sums, strict=True)
        ]
    return images, _Sums(pixels, sums)


def _replicates(
    table: Table, means: Sequence[ImageMeans], images: int, replicates: int, seed: int
) -> Whole:
    """Return the sums of every replicate: (r, k, 3 + 2 kinds) with a last class for whole images.

    Right, true and predicted pixels; then quotients in units of 2^-30, and over how many, of each
    kind. The number of draws of a tile is binomial given those of the tiles before, and the images
    they fall on are even: together a multinomial.
    """
    classes = next((block.shape[1] for block in table), 0)
    width = (classes + 1) * (3 + 2 * len(means))
    if replicates * width * 8 > SUMS_NBYTES:
        raise ConfigError(
            f"replicates: {replicates:,} of {classes} classes need {replicates * width * 8:,} "
            f"bytes for their sums; choose at most {SUMS_NBYTES // (8 * width):,}"
        )
    total = np.zeros((replicates, width), np.int64)
    remaining, left = np.full(replicates, images), images
    for number, tile in enumerate(_tiles(table)):
        random = np.random.default_rng([seed, number])
        share = len(tile) / left
        draws = remaining if len(tile) == left else random.binomial(remaining, share)
        remaining, left = remaining - draws, left - len(tile)
        columns = _addends(tile, means).astype(np.float64)
        for start in range(0, replicates, TILE_REPLICATES):
            part = slice(start, min(start + TILE_REPLICATES, replicates))
            # Sums below 2^53 of whole numbers: exact in float64, whose products are fast.
            total[part] += (_times_drawn(random, draws[part], len(tile)) @ columns).astype(np.int64)
    return total.reshape(replicates, classes + 1, -1)


def _addends(tile: Whole, means: Sequence[ImageMeans]) -> Whole:
    """Return what images (n, k, 3) add to the sums: (n, (k + 1) (3 + 2 kinds))."""
    n, classes, _ = tile.shape
    pixels = np.zeros((n, classes + 1, 3), np.int64)
    pixels[:, :classes] = tile
    found = [pixels]
    for mean in means:
        numbers = mean.quotients(tile)
        places = slice(0, classes - (MEAN + 2))  # the classes, and the mean of an image
        found += [numbers.digits[0][:, places, None], numbers.defined[:, places, None]]
    return np.concatenate(found, axis=2).reshape(n, -1)


def _times_drawn(random: np.random.Generator, draws: Whole, images: int) -> Floats:
    """Return how often each image (r, images) is drawn in replicates with so many draws (r,)."""
    first = np.repeat(np.arange(len(draws)) * images, draws)
    places = first + random.integers(0, images, len(first))
    times = np.bincount(places, minlength=len(draws) * images)
    return times.reshape(len(draws), images).astype(np.float64)


def _numbers(
    kind: str,
    pixels: Whole,
    sums: MeanSums,
    averages: Sequence[str],
    absent: str,
    ignore: tuple[int, ...],
) -> dict[str, Estimate]:
    """Return the numbers of all images, exactly."""
    found = image_numbers(f"image_{kind}", sums, tuple(a for a in averages if a in MEANS), ignore)
    counted = cells(ClassCounts(*pixels.T), ignore)
    for average in averages:
        if average not in MEANS:
            found |= averaged(
                kind, RATIOS[kind], counted, average, absent if absent in GIVEN else "nan"
            )
    return found


def _columns(
    kind: str,
    place: int,
    drawn: Whole,
    averages: Sequence[str],
    absent: str,
    ignore: tuple[int, ...],
) -> dict[str, Floats]:
    """Return each number in all replicates, NaN where it is undefined: (r,) by key."""
    classes = [c for c in range(drawn.shape[1] - 1) if c not in ignore]
    tp, t, p = (drawn[:, classes, column].astype(np.float64) for column in range(3))
    numbers, images = (drawn[:, :, 3 + 2 * place + i].astype(np.float64) for i in range(2))
    numbers = numbers / (1 << DIGIT_BITS)
    top, bottom = {
        "iou": (tp, t + p - tp),
        "dice": (2 * tp, t + p),
        "precision": (tp, p),
        "recall": (tp, t),
    }[kind]
    pooled = _divided(top, bottom)
    if absent in GIVEN:
        pooled = np.where(np.isnan(pooled), GIVEN[absent], pooled)
    of_classes = _divided(numbers[:, classes], images[:, classes])
    found = {
        "macro": {f"{kind}_mean": _mean(pooled)},
        "none": {f"{kind}_{c}": pooled[:, i] for i, c in enumerate(classes)},
        "images": {f"image_{kind}_image_mean": _divided(numbers[:, -1], images[:, -1])},
        "classes": {f"image_{kind}_class_mean": _mean(of_classes)},
        "pairs": {
            f"image_{kind}_pair_mean": _divided(
                numbers[:, classes].sum(axis=1), images[:, classes].sum(axis=1)
            )
        },
    }
    return {key: column for average in averages for key, column in found[average].items()}


def _divided(numerators: Floats, denominators: Floats) -> Floats:
    some = denominators > 0
    return np.where(some, numerators / np.where(some, denominators, 1.0), np.nan)


def _mean(x: Floats) -> Floats:
    """Return the means (r,) of what is not NaN of each row."""
    return _divided(np.nansum(x, axis=1), np.count_nonzero(~np.isnan(x), axis=1).astype(np.float64))


def _ends(key: str, drawn: Floats, level: float, images: int) -> dict[str, Estimate]:
    """Return the ends of an interval: order statistics of the replicates."""
    defined = drawn[~np.isnan(drawn)]
    names = (f"{key}_lower", f"{key}_upper")
    if images < 2 or not len(defined):
        reason = "no replicate has it" if images > 1 else "one image cannot be drawn anew"
        return dict.fromkeys(names, undefined(reason))
    ends = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return {name: exactly(float(end)) for name, end in zip(names, ends, strict=True)}


@final
@value
class ImageIntervals(OfImages):
    """Numbers of images with bootstrap intervals; see :func:`image_intervals` for all options.

    Keeps the table of :class:`~pipeline.metrics.segmentation.ImageTable` on disk.
    """

    keeps_rows: ClassVar[bool] = True
    kinds: tuple[str, ...] = ("iou",)
    averages: tuple[str, ...] = ("macro", "images")
    absent: str = "nan"
    replicates: int = 1000
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, given, known in (
            ("kinds", self.kinds, tuple(RATIOS)),
            ("averages", self.averages, AVERAGES),
            ("absent", (self.absent,), ABSENT),
        ):
            for one in given:
                if one not in known:
                    raise ConfigError(f"{option}: {one!r} is unknown; choose {', '.join(known)}")
        if self.replicates < 1 or self.seed < 0:
            raise ConfigError(
                f"replicates: {self.replicates} with seed {self.seed}; expected 1 or more, and a "
                "seed from 0 on"
            )
        if not 0 < self.level < 1:
            raise ConfigError(f"level: {self.level}; expected a share such as 0.95")

    @final
    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        return {"table": Rows(self.overlaps(inputs))}

    @final
    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        return image_intervals(
            results["table"],
            self.kinds,
            self.averages,
            absent=self.absent,
            ignore=self.ignored,
            replicates=self.replicates,
            level=self.level,
            seed=self.seed,
        )
