"""Small image sets that come with scikit-learn: what the demo and the tests run on.

Every set is deterministic, keeps its images at their own size, and enlarges them as they are read.
scikit-learn and pillow belong to the extra ``demo`` and are imported when a set is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.extract.sources import Batch

SIDE = 224
"""Pixels along a side of the images that are handed out: what EfficientNet-Lite0 takes."""
DIGIT_SIDE = 8
"""Pixels along a side of scikit-learn's digits."""
GRAYS = 16
"""Largest gray of scikit-learn's digits, which run from 0."""
TEST_SHARE = 0.25
"""Share of every class that is kept for the test split."""


@dataclass(frozen=True)
class ImageSet:
    """Gray images (n, 8, 8) uint8 with labels and ids, handed out as (n, 224, 224, 3)."""

    name: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, start: int, stop: int) -> Batch:
        """Return the rows ``start`` to ``stop``, enlarged by bicubic interpolation."""
        if not 0 <= start <= stop <= len(self):
            raise DataError(f"{self.name} has rows 0-{len(self)}, got {start}-{stop}")
        image = _demo_package("PIL.Image")
        large = np.empty((stop - start, SIDE, SIDE, 3), np.uint8)
        for row, small in zip(large, self.images[start:stop], strict=True):
            row[:] = np.asarray(
                image.fromarray(small).resize((SIDE, SIDE), image.Resampling.BICUBIC)
            )[..., None]
        return Batch(large, self.labels[start:stop], self.ids[start:stop])


def digits(
    split: str = "train",
    classes: Iterable[int] = range(8),
    rows: int | None = None,
    labelled: bool = True,
) -> ImageSet:
    """Return scikit-learn's handwritten digits of the given classes, labelled by the digit.

    ``split`` is train, test (a quarter of every class, drawn with a fixed seed) or all. The rows
    take turns over the classes, so the first ``rows`` of them are stratified as well. Without
    ``labelled`` every label is -1, as out-of-distribution sets have it. Ids are rows of
    ``load_digits``.
    """
    if split not in ("train", "test", "all"):
        raise ConfigError(f"digits: split is train, test or all, got {split!r}")
    wanted = sorted(set(classes))
    if not wanted or not set(wanted) <= set(range(10)):
        raise ConfigError(f"digits: classes are some of 0-9, got {wanted}")
    data = _demo_package("sklearn.datasets").load_digits()
    per_class = [_share(np.flatnonzero(data.target == digit), digit, split) for digit in wanted]
    ids = _taking_turns(per_class)[: _checked_rows("digits", rows, sum(map(len, per_class)))]
    labels = data.target[ids].astype(np.int64) if labelled else np.full(len(ids), -1, np.int64)
    name = f"digits {','.join(map(str, wanted))} {split}"
    return ImageSet(name, _to_bytes(data.images[ids]), labels, ids)


def photo_patches(rows: int = 200, seed: int = 0, patch: int = 32) -> ImageSet:
    """Return patches of scikit-learn's two photographs in the format of the digits, unlabelled.

    The squares of ``patch`` pixels do not overlap and are drawn with ``seed``. Each is reduced to
    8 x 8 pixels of 17 grays, so that neither colour nor sharpness gives it away: only what it
    shows differs. Ids are the patch's place: photograph, then row and column of the grid.
    """
    if patch < DIGIT_SIDE:
        raise ConfigError(f"photo_patches: patch is at least {DIGIT_SIDE} pixels, got {patch}")
    photos = _demo_package("sklearn.datasets").load_sample_images().images
    small = np.concatenate([_grid(photo, patch) for photo in photos])
    count = _checked_rows("photo_patches", rows, len(small))
    ids = np.random.default_rng(seed).permutation(len(small))[:count].astype(np.int64)
    name = f"photo patches {patch} px seed {seed}"
    return ImageSet(name, _to_bytes(small[ids]), np.full(count, -1, np.int64), ids)


def _share(rows: NDArray[np.int64], digit: int, split: str) -> NDArray[np.int64]:
    """Return the rows of one class that belong to a split, in a fixed random order."""
    shuffled = np.random.default_rng([0, digit]).permutation(rows)
    held = round(TEST_SHARE * len(rows))
    part = {"train": slice(held, None), "test": slice(0, held), "all": slice(None)}[split]
    return shuffled[part]


def _taking_turns(per_class: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Merge the rows of the classes so that every prefix holds each class in proportion."""
    place = np.concatenate([(np.arange(len(rows)) + 0.5) / len(rows) for rows in per_class])
    merged: NDArray[np.int64] = np.concatenate(per_class)[np.argsort(place, kind="stable")]
    return merged


def _grid(photo: NDArray[np.uint8], patch: int) -> NDArray[np.float64]:
    """Cut a photograph into squares, each reduced to 8 x 8 grays from 0 to 16."""
    image = _demo_package("PIL.Image")
    gray = image.fromarray(photo).convert("L")
    columns, rows = gray.width // patch, gray.height // patch
    whole = gray.crop((0, 0, columns * patch, rows * patch))
    reduced = whole.resize((columns * DIGIT_SIDE, rows * DIGIT_SIDE), image.Resampling.BOX)
    grays = np.round(np.asarray(reduced) * (GRAYS / 255))
    cells = grays.reshape(rows, DIGIT_SIDE, columns, DIGIT_SIDE).swapaxes(1, 2)
    return cells.reshape(rows * columns, DIGIT_SIDE, DIGIT_SIDE)


def _to_bytes(grays: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Scale grays from 0..16 to 0..255."""
    return np.round(grays * (255 / GRAYS)).astype(np.uint8)


def _checked_rows(name: str, rows: int | None, available: int) -> int:
    if rows is None:
        return available
    if not 1 <= rows <= available:
        raise ConfigError(f"{name}: rows is between 1 and {available}, got {rows}")
    return rows


def _demo_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingInputError(
            f"the sample images need {error.name}: pip install 'featfold[demo]'"
        ) from error
