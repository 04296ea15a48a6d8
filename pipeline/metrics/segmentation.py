"""Metrics of images: a number for each image and class first, and then a mean of them.

Pooled metrics, such as :class:`~pipeline.metrics.IoU`, count the pixels of all images together: a
large object weighs more than a small one. Here every image counts alike. There are three means of
such numbers, which differ as soon as a class is not in every image, so each has its own key:
over classes of their means over images, over images of the means of their classes, and over all
pairs of an image and a class.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.counting import Counting, Inputs
from pipeline.metrics.estimates import GUARD_BITS, exactly, quotient, undefined
from pipeline.partials import RowTable
from pipeline.procedure import REHEARSING, Estimate, Rows
from pipeline.statistics.image_means import (
    ABSENT,
    DICE_WEIGHTINGS,
    MEAN,
    MICRO,
    ONE,
    WEIGHTED,
    ImageMeans,
    MeanSums,
)
from pipeline.statistics.image_overlaps import ImageOverlaps

__all__ = [
    "ImageDice",
    "ImageGeneralisedDice",
    "ImageIoU",
    "ImagePrecision",
    "ImageRecall",
    "ImageTable",
    "image_numbers",
]

MEANS = ("images", "classes", "pairs")
AVERAGES = (*MEANS, "micro", "weighted", "none", "binary")
PRESETS = ("", "torchmetrics-1.9")
NO_IMAGES = "no image has a pixel that counts"
NEVER = -1.0
"""What torchmetrics gives a class that no image has."""


def image_numbers(
    name: str, sums: MeanSums, averages: tuple[str, ...], ignore: tuple[int, ...] = ()
) -> dict[str, Estimate]:
    """Return means of the numbers of images and classes, rounded once.

    ``images``: ``{name}_image_mean``, over images of the means over their classes; ``classes``:
    ``{name}_class_mean``, over classes of their means over images; ``pairs``:
    ``{name}_pair_mean``, over all pairs of an image and a class; each beside how many numbers were
    averaged last, ``{name}_images_averaged`` and so on. ``micro``: ``{name}_micro``, over images of
    the quotient of pixels summed over classes. ``weighted``: ``{name}_weighted``, over images of
    means weighted by the true pixels of classes. ``none``: ``{name}_{class}``, the mean over images
    of each class. ``binary``: ``{name}``, that of class 1. Left out is what is undefined.
    """
    own = {c: sums.sum(c) for c in range(len(sums.images) + MEAN) if c not in ignore}
    found: dict[str, Estimate] = {}
    for average in averages:
        if average == "images":
            found |= _counted(name, "image", *sums.sum(MEAN))
        elif average == "classes":
            known = [(total, n) for total, n in own.values() if n]
            total = sum((part << GUARD_BITS) // n for part, n in known)
            found |= _counted(name, "class", total, len(known), GUARD_BITS)
        elif average == "pairs":
            pairs = (sum(column) for column in zip((0, 0), *own.values(), strict=True))
            found |= _counted(name, "pair", *pairs)
        elif average in ("micro", "weighted"):
            total, n = sums.sum({"micro": MICRO, "weighted": WEIGHTED}[average])
            found[f"{name}_{average}"] = quotient(total, n * ONE, NO_IMAGES)
        else:
            alone = own if average == "none" else {c: own[c] for c in own if c == 1}
            for c, (total, n) in alone.items():
                key = name if average == "binary" else f"{name}_{c}"
                found[key] = quotient(total, n * ONE, f"class {c} is in no image that counts")
            if average == "binary" and not alone:
                found[name] = undefined("class 1 is ignored")
    return found


def _counted(name: str, what: str, total: int, number: int, bits: int = 0) -> dict[str, Estimate]:
    plural = {"image": "images", "class": "classes", "pair": "pairs"}[what]
    return {
        f"{name}_{what}_mean": quotient(total, number * ONE << bits, NO_IMAGES),
        f"{name}_{plural}_averaged": exactly(float(number)),
    }


@value
class OfImages(Counting):
    """A metric of the pixels of every image: an abstract base that is only ever derived from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "multilabel":
            raise ConfigError(
                "task: metrics of images need one class a pixel, not multilabel masks"
            )
        if self.weights is not None:
            raise ConfigError("weights: every image counts alike; leave them out")

    @final
    def overlaps(self, inputs: Inputs) -> ImageOverlaps:
        """Return the view of the pixels of each image."""
        if not set(range(inputs.classes)) - set(self.ignored):
            raise ConfigError(f"ignore: {self.ignored} leaves none of {inputs.classes} classes")
        return ImageOverlaps(inputs.of, inputs.by, inputs.where, self.ignored)

    @final
    def means(
        self, inputs: Inputs, kind: str, absent: str = "nan", weighting: str = "square"
    ) -> ImageMeans:
        """Return the statistic of the means of a kind of quotient."""
        inside = tuple(c for c in self.ignored if 0 <= c < inputs.classes)
        return ImageMeans(self.overlaps(inputs), kind, inputs.where, absent, inside, weighting)


@value
class ImageRatio(OfImages):
    """A metric with a number for each image and class: an abstract base.

    ``average``: one or several of those of :func:`image_numbers`; by default the three means, and
    binary for a binary task. ``absent``: what a class is given that is 0 / 0 in an image: nan (left
    out), zero or one; nan_unlabelled leaves out classes without true pixels in an image, even where
    they are predicted. MONAI's ``ignore_empty=False`` is one and ``True`` nan_unlabelled, with its
    mean that over images.
    """

    average: str | tuple[str, ...] | None = None
    absent: str = "nan"

    def __post_init__(self) -> None:
        super().__post_init__()
        for average in self.averages:
            if average not in AVERAGES:
                raise ConfigError(f"average: {average!r} is unknown; choose {', '.join(AVERAGES)}")
        if self.absent not in ABSENT:
            raise ConfigError(f"absent: {self.absent!r} is unknown; choose {', '.join(ABSENT)}")

    @property
    @abstractmethod
    def kind(self) -> str:
        """The quotient; keys of numbers begin with ``image_`` and this."""

    @property
    def averages(self) -> tuple[str, ...]:
        """Averages that are asked for."""
        if self.average is None:
            return ("binary",) if self.task == "binary" else MEANS
        return self.average if isinstance(self.average, tuple) else (self.average,)

    @final
    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        return {"sums": self.means(inputs, self.kind, self.absent)}

    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        return image_numbers(f"image_{self.kind}", results["sums"], self.averages, self.ignored)


@final
@value
class ImageIoU(ImageRatio):
    """Intersection over union of the images: tp / (t + p - tp), then means of it.

    ``preset="torchmetrics-1.9"``: ``image_iou``, the mean over pairs that its
    ``segmentation.MeanIoU`` is, and ``image_iou_{class}`` as ``per_class`` gives them, -1 for a
    class that no image has. Differs from it in that sums are exact: in float32 they stop growing.
    Reference: Wang et al. 2023, "Revisiting evaluation metrics for semantic segmentation:
    optimization and evaluation of fine-grained intersection over union", arXiv 2310.19252, where
    the means over images and classes are mIoU^I and mIoU^C.
    """

    preset: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset not in PRESETS:
            known = ", ".join(repr(name) for name in PRESETS if name)
            raise ConfigError(f"preset: {self.preset!r} is unknown; there is {known}")
        if self.preset and (self.average not in (None, "binary") or self.absent != "nan"):
            raise ConfigError(f"preset: {self.preset} says how to average; leave out the others")

    @property
    def kind(self) -> str:
        return "iou"

    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        if not self.preset:
            return super().numbers(results)
        found = image_numbers("image_iou", results["sums"], ("pairs", "none"), self.ignored)
        each = {
            key: number if not math.isnan(number.value) else exactly(NEVER)
            for key, number in found.items()
            if key.removeprefix("image_iou_").isdecimal()
        }
        return {"image_iou": found["image_iou_pair_mean"], **each}


@final
@value
class ImageDice(ImageRatio):
    """Dice coefficient of the images: 2 tp / (t + p), then means of it.

    With average ``micro`` the quotient of the pixels of all classes of an image.
    """

    @property
    def kind(self) -> str:
        return "dice"


@final
@value
class ImagePrecision(ImageRatio):
    """Share of the predicted pixels of an image that are right: tp / p, then means of it."""

    @property
    def kind(self) -> str:
        return "precision"


@final
@value
class ImageRecall(ImageRatio):
    """Share of the true pixels of an image that are predicted as such: tp / t, then means of it."""

    @property
    def kind(self) -> str:
        return "recall"


@final
@value
class ImageGeneralisedDice(OfImages):
    """Generalised Dice of the images, and its mean over them: ``image_generalised_dice``.

    2 sum w tp / sum w (t + p) over classes, w = 1 / t² (``weighting`` square), 1 / t (simple) or 1
    (uniform). A class that an image lacks has the largest w of those that it has, so an image has
    one number whatever comes with it. Reference: Sudre et al. 2017, "Generalised Dice overlap as a
    deep learning loss function", arXiv 1707.03237. Differs from torchmetrics 1.9, which fills in
    the largest weight of a batch, at the place of another class: its number depends on the batch.
    """

    weighting: str = "square"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting not in DICE_WEIGHTINGS:
            raise ConfigError(
                f"weighting: {self.weighting!r} is unknown; choose {', '.join(DICE_WEIGHTINGS)}"
            )

    @final
    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        return {"sums": self.means(inputs, "generalised_dice", weighting=self.weighting)}

    @final
    def numbers(self, results: Mapping[str, Any]) -> dict[str, Estimate]:
        total, images = results["sums"].sum(0)
        return {"image_generalised_dice": quotient(total, images * ONE, NO_IMAGES)}


@final
@value
class ImageTable(OfImages):
    """Pixels of each class of every image, right, true and predicted: a table (n, k, 3) int32.

    Outcome: :class:`~pipeline.partials.RowTable`, in the order of rows, whose blocks last as long
    as the run. With ``path`` they are written to an npy file, which the outcome then reads.
    """

    keeps_rows: ClassVar[bool] = True
    path: str = ""

    @final
    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        return {"table": Rows(self.overlaps(inputs))}

    @final
    def numbers(self, results: Mapping[str, Any]) -> RowTable:
        table: RowTable = results["table"]
        if not self.path or REHEARSING.get():
            return table
        table.save(Path(self.path))
        return RowTable([np.load(self.path, mmap_mode="r")])
