"""Tables of images and sums of their numbers, against a loop over images in whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.procedure import Rows
from pipeline.statistics import ImageMeans, ImageOverlaps, MeanSums
from pipeline.statistics.image_means import ONE
from pipeline.testing import Data, StatisticLaws, drive, recipes
from pipeline.views import Every, Stored, Valid

K, VOID = 5, 255
IN_ROWS = ImageOverlaps(Stored("predicted"), Stored("masks"), Valid(), (VOID, 2))


def with_masks(data: Data, shape: tuple[int, ...] = (6, 4), classes: int = K) -> Data:
    random = np.random.default_rng(0)
    size = (data.rows, *shape)
    masks = np.minimum(random.integers(0, classes, size), random.integers(0, classes, size))
    masks[:, 0] = np.where(random.random((data.rows, *shape[1:])) < 0.5, VOID, masks[:, 0])
    masks[::7] = VOID
    guesses = random.integers(0, classes, size)
    predicted = np.where(random.random(size) < 0.6, np.minimum(masks, classes - 1), guesses)
    return data.with_arrays(masks=masks.astype(np.uint8), predicted=predicted.astype(np.uint8))


def counted(masks: Any, predicted: Any, ignore: tuple[int, ...]) -> list[Any]:
    """Return tp, t, p of each class by image."""
    images = []
    for y, x in zip(masks, predicted, strict=True):
        kept = ~np.isin(y, ignore)
        y, x = y[kept].astype(int), x[kept].astype(int)
        images.append([(int(((y == c) & (x == c)).sum()), int((y == c).sum()), int((x == c).sum()))
                       for c in range(K)])  # fmt: skip
    return images


def ratio(kind: str, tp: int, t: int, p: int) -> tuple[int, int]:
    return {
        "iou": (tp, t + p - tp),
        "dice": (2 * tp, t + p),
        "precision": (tp, p),
        "recall": (tp, t),
    }[kind]


def expected(kind: str, images: list[Any], absent: str, ignore: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the sums of quotients as fractions, and how many there are."""
    sums, numbers = [Fraction(0)] * (K + 3), [0] * (K + 3)

    def add(place: int, quotient: Fraction) -> None:
        sums[place] += quotient
        numbers[place] += 1

    for classes in images:
        kept = {c: own for c, own in enumerate(classes) if c not in ignore}
        if not any(t for _, t, _ in kept.values()):
            continue
        found = {}
        for c, (tp, t, p) in kept.items():
            a, b = ratio(kind, tp, t, p)
            if absent == "nan_unlabelled" and not t:
                continue
            if b or absent in ("zero", "one"):
                found[c] = Fraction(a, b) if b else Fraction(absent == "one")
        for c, quotient in found.items():
            add(c, quotient)
        if found:
            add(K, sum(found.values(), Fraction(0)) / len(found))
        a, b = ratio(kind, *(sum(own[i] for own in kept.values()) for i in range(3)))
        if b:
            add(K + 1, Fraction(a, b))
        weight = sum(kept[c][1] for c in found)
        if weight:
            add(K + 2, sum((kept[c][1] * found[c] for c in found), Fraction(0)) / weight)
    return sums, numbers


@pytest.mark.parametrize("kind", ["iou", "dice", "precision", "recall"])
@pytest.mark.parametrize("absent", ["nan", "zero", "one", "nan_unlabelled"])
@pytest.mark.parametrize("library", drive.PLACES)
def test_sums_are_those_of_fractions(kind: str, absent: str, library: str) -> None:
    rows = with_masks(recipes.labelled(rows=40))
    ignore = (VOID, 2)
    of = ImageOverlaps(Stored("predicted"), Stored("masks"), Every(), ignore)
    statistic = ImageMeans(of, kind, absent=absent, ignore=ignore)
    result = drive.fold_all(statistic, rows.cut([[7, 1], [0, 32]]), drive.PLACES[library])
    images = counted(rows.arrays["masks"], rows.arrays["predicted"], ignore)
    sums, numbers = expected(kind, images, absent, ignore)
    assert result.images.tolist() == numbers
    for place, total in enumerate(sums):
        found, _ = result.sum(place)
        assert 0 <= total - Fraction(found, ONE) < Fraction(4 * len(images), 2**89)


class TestImageMeans(StatisticLaws):
    statistic = ImageMeans(IN_ROWS, "iou", Valid(), ignore=(2,))
    device_shapes = recipes.SHAPES[2:3]  # image by image, thousands are slow

    def rows(self) -> Data:
        return with_masks(recipes.labelled(rows=80))

    def shaped(self, shape: recipes.Shape) -> Data:
        return with_masks(shape.data, (8, 8), min(shape.classes, 200))

    def reference(self, rows: Mapping[str, Any]) -> MeanSums:
        """Return the sums by the same rounding down of every quotient to 90 places."""
        kept = rows["labels"] >= 0
        images = counted(rows["masks"][kept], rows["predicted"][kept], (VOID, 2))
        sums, numbers = np.zeros((K + 3,), object), np.zeros(K + 3, np.int64)
        for classes in images:
            own = {c: x for c, x in enumerate(classes) if c != 2}
            if not any(t for _, t, _ in own.values()):
                continue
            floors = {c: (tp * ONE) // (t + p - tp) for c, (tp, t, p) in own.items() if t + p}
            whole = [sum(x[i] for x in own.values()) for i in range(3)]
            labelled = sum(own[c][1] for c in floors)
            numbers_of = {
                **floors,
                K: sum(floors.values()) // len(floors),
                K + 1: whole[0] * ONE // (whole[1] + whole[2] - whole[0]),
                K + 2: sum(own[c][1] * x for c, x in floors.items()) // labelled,
            }
            for place, x in numbers_of.items():
                sums[place] += x
                numbers[place] += 1
        mask = (1 << 30) - 1
        digits = [[int(x) >> 60, (int(x) >> 30) & mask, int(x) & mask] for x in sums]
        return MeanSums(np.array(digits, np.int64), numbers)


class TestGeneralisedDice(StatisticLaws):
    statistic = ImageMeans(IN_ROWS, "generalised_dice", Valid(), ignore=(2,))
    tolerance = 1e-6
    device_shapes = recipes.SHAPES[2:3]  # image by image, thousands are slow

    def rows(self) -> Data:
        return with_masks(recipes.labelled(rows=80))

    def shaped(self, shape: recipes.Shape) -> Data:
        return with_masks(shape.data, (8, 8), min(shape.classes, 200))

    def reference(self, rows: Mapping[str, Any]) -> MeanSums:
        kept = rows["labels"] >= 0
        total, number = Fraction(0), 0
        for classes in counted(rows["masks"][kept], rows["predicted"][kept], (VOID, 2)):
            own = [x for c, x in enumerate(classes) if c != 2]
            weights = [Fraction(1, t * t) if t else None for _, t, _ in own]
            if known := [w for w in weights if w]:
                filled = [w or max(known) for w in weights]
                shared = sum(w * 2 * tp for w, (tp, _, _) in zip(filled, own, strict=True))
                total += shared / sum(w * (t + p) for w, (_, t, p) in zip(filled, own, strict=True))
                number += 1
        first = int(total * 2**30)
        return MeanSums(np.array([[first, 2**29, 2**29]], float), np.array([number]))

    def assert_as_reference(self, data: Data, partition: Any = None) -> None:
        """Compare the totals: digits behind the first mean nothing by themselves."""
        result = self.result(self.partials(data, partition))
        total = self.reference(data.upcast())
        assert result.images.tolist() == total.images.tolist()
        assert abs(result.sum(0)[0] / ONE - total.digits[0, 0] / 2**30) < 1e-7


def test_a_table_has_a_row_for_every_image() -> None:
    rows = with_masks(recipes.labelled(rows=30))
    of = ImageOverlaps(Stored("predicted"), Stored("masks"), Every(), (VOID,))
    from pipeline.fold import fold

    split = rows.cut([[4, 9], [17]])
    parts = [fold((), split, b, (Rows(of),)).outputs[0][0] for b in split.blocks]
    table = np.concatenate(parts)
    assert table.dtype == np.int32
    assert (
        table.tolist()
        == np.array(counted(rows.arrays["masks"], rows.arrays["predicted"], (VOID,))).tolist()
    )


def test_a_pixel_outside_is_named_by_its_image() -> None:
    masks = np.zeros((5, 2, 2), int)
    masks[3, 1, 1] = 9
    data = Data({"labels": np.arange(5) % 2, "masks": masks, "predicted": masks * 0}, 3)
    of = ImageOverlaps(Stored("predicted"), Stored("masks"))
    with pytest.raises(DataError, match=r"1 label outside 0 to 2, first in row 3: 9; add what"):
        drive.fold_all(ImageMeans(of, "iou"), data.cut([[2, 3]]))
    swapped = ImageOverlaps(Stored("masks"), Stored("predicted"))
    with pytest.raises(DataError, match=r"1 prediction outside 0 to 2, first in row 3: 9"):
        drive.fold_all(ImageMeans(swapped, "iou"), data.cut([[2, 3]]))
    scores = data.with_arrays(predicted=masks.astype(float))
    with pytest.raises(DataError, match="expected integers"):
        drive.fold_all(ImageMeans(of, "iou"), scores.cut())


def test_what_is_no_mask_is_refused() -> None:
    data = recipes.labelled(rows=5)
    with pytest.raises(DataError, match=r"rows of shape \(h, w\)"):
        ImageOverlaps(Stored("labels"), Stored("labels")).shape(data.schema)
    schema = data.with_arrays(masks=np.broadcast_to(np.uint8(0), (5, 2**16, 2**15))).schema
    with pytest.raises(DataError, match="at most 2,147,483,647"):
        ImageOverlaps(Stored("masks"), Stored("masks")).shape(schema)
    for options in (
        {"kind": "f2"},
        {"kind": "iou", "absent": "?"},
        {"kind": "iou", "weighting": ""},
    ):
        with pytest.raises(ConfigError, match="choose"):
            ImageMeans(IN_ROWS, **options)
