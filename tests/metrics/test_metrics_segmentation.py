"""Metrics of images: worked numbers, the three means, and what torchmetrics and MONAI give."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline as ff
from pipeline.engine import Dask, Job, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.procedure import TRAIN
from pipeline.statistics.image_means import DIGIT_BITS, MeanSums
from pipeline.store import open_predictions
from pipeline.testing.strategies import LAW

# Two images of 2 x 2 pixels: A true 0001 predicted 0000; B true 1111 predicted 1110.
TRUE = np.array([[[0, 0], [0, 1]], [[1, 1], [1, 1]]])
FOUND = np.array([[[0, 0], [0, 0]], [[1, 1], [1, 0]]])
EVERY = ("images", "classes", "pairs", "micro", "weighted", "none")


def measured(metric: Any, predicted: Any, true: Any, classes: int) -> dict[str, Any]:
    """Return numbers of blocks of masks, and require them of a training loop as well."""
    found = ff.measure(metric, predicted, true, classes=classes, cluster="threads")
    if not hasattr(metric, "replicates"):
        loop = ff.metrics.Collection(metric, classes=classes)
        for start in range(0, len(true), 2):
            loop.update(predicted[start : start + 2], true[start : start + 2])
        assert {k: repr(v) for k, v in loop.compute().items()} == {
            k: repr(v) for k, v in found.items()
        }
    return found


def assert_numbers(found: dict[str, Any], expected: dict[str, float]) -> None:
    for key, number in expected.items():
        assert float(found[key]) == pytest.approx(number, abs=5e-5, nan_ok=True), key
        assert bool(found[key].reason) == math.isnan(number), key


@pytest.mark.parametrize("classes", [2, 3])
def test_two_images(classes: int) -> None:
    """Section 1.6: pooled and per image; a class that no image has changes no mean."""
    absent = {} if classes == 2 else {"image_iou_2": math.nan}
    found = measured(ff.metrics.ImageIoU(average=EVERY), FOUND, TRUE, classes)
    means = dict.fromkeys(
        ("image_iou_image_mean", "image_iou_class_mean", "image_iou_pair_mean"), 0.375
    )
    assert_numbers(found, {**means, "image_iou_0": 0.375, "image_iou_1": 0.375, **absent})
    dice = measured(ff.metrics.ImageDice(average=EVERY), FOUND, TRUE, classes)
    assert_numbers(
        dice,
        {
            "image_dice_image_mean": 3 / 7,
            "image_dice_micro": 0.75,
            "image_dice_weighted": 0.75,
            "image_dice_0": 3 / 7,
            "image_dice_1": 3 / 7,
        },
    )
    recall = measured(ff.metrics.ImageRecall(average="images"), FOUND, TRUE, classes)
    assert_numbers(recall, {"image_recall_image_mean": 0.625})
    gds = measured(ff.metrics.ImageGeneralisedDice(), FOUND, TRUE, classes)
    assert_numbers(gds, {"image_generalised_dice": 0.5625})
    pooled = measured(
        [
            "iou",
            "dice",
            ff.metrics.Recall(average=("macro", "micro")),
            "generalised_dice",
            "accuracy",
        ],
        FOUND,
        TRUE,
        classes,
    )
    assert_numbers(
        pooled,
        {
            "iou_mean": 0.6,
            "dice_mean": 0.75,
            "recall_mean": 0.8,
            "recall_micro": 0.75,
            "generalised_dice": 0.75,
            "accuracy": 0.75,
        },
    )


@pytest.mark.parametrize(
    ("absent", "two", "three"),
    [
        ("nan_unlabelled", (0.6429, 0.5625), (0.6429, 0.5625)),
        ("one", (0.4286, 0.375), (0.6190, 0.5833)),
    ],
)
def test_both_options_of_monai(absent: str, two: Any, three: Any) -> None:
    """``ignore_empty`` True and False; its mean is that over images."""
    for classes, (dice, iou) in ((2, two), (3, three)):
        for metric, number in ((ff.metrics.ImageDice, dice), (ff.metrics.ImageIoU, iou)):
            found = measured(metric(average="images", absent=absent), FOUND, TRUE, classes)
            ((key, value),) = ((k, v) for k, v in found.items() if k.endswith("_mean"))
            assert_numbers({key: value}, {key: number})


def test_monai_mean_batch_is_the_mean_of_each_class() -> None:
    found = measured(ff.metrics.ImageDice(average="none", absent="nan_unlabelled"), FOUND, TRUE, 3)
    assert_numbers(found, {"image_dice_0": 6 / 7, "image_dice_1": 3 / 7, "image_dice_2": math.nan})


def test_three_means_differ() -> None:
    """IoU of three images: [1, .5, -], [.2, -, -], [.4, .9, .1]."""
    rows = [[(1, 1), (1, 2), None], [(1, 5), None, None], [(2, 5), (9, 10), (1, 10)]]
    digits, images = np.zeros((6, 3), np.int64), np.zeros(6, np.int64)
    one = 1 << 3 * DIGIT_BITS

    def add(place: int, quotient: Fraction) -> None:
        units = int(quotient * one)
        digits[place] += [units >> 60, units >> 30 & (1 << 30) - 1, units & (1 << 30) - 1]
        images[place] += 1

    for row in rows:
        known = [Fraction(*pair) for pair in row if pair]
        for place, pair in enumerate(row):
            if pair:
                add(place, Fraction(*pair))
        add(3, sum(known, Fraction(0)) / len(known))
    found = ff.metrics.image_numbers(
        "iou", MeanSums(digits, images), ("pairs", "classes", "images")
    )
    assert_numbers(
        found,
        {
            "iou_pair_mean": 0.5167,
            "iou_class_mean": 0.4444,
            "iou_image_mean": 0.4722,
            "iou_pairs_averaged": 6,
            "iou_classes_averaged": 3,
            "iou_images_averaged": 3,
        },
    )


def maps() -> tuple[Any, Any]:
    """Return predictions and labels of torchmetrics #3047: row 15 of section 5."""
    true = np.zeros((9, 10), int)
    for rows, columns, c in ((1, 1, 1), (5, 1, 2), (1, 6, 3), (5, 6, 4)):
        true[rows : rows + 3, columns : columns + 3] = c
    true[4] = 5
    found = true.copy()
    found[3, 1:4], found[4, 5:] = 5, 0
    return found, true


def test_one_image_of_six_classes() -> None:
    found, true = maps()
    right = [44 / 49, 6 / 9, 1.0, 1.0, 1.0, 5 / 13]
    for average, prefix in (("none", "image_iou"), (("none",), "image_iou")):
        numbers = measured(ff.metrics.ImageIoU(average=average), found[None], true[None], 6)
        assert_numbers(numbers, {f"{prefix}_{c}": x for c, x in enumerate(right)})
    pooled = measured(ff.metrics.IoU(average="none"), found[None], true[None], 6)
    assert_numbers(pooled, {f"iou_{c}": x for c, x in enumerate(right)})


def test_classes_of_some_images_alone() -> None:
    """torchmetrics #2846 (row 5 of section 5): pixels of other images belong to no class."""
    true = np.full((4, 8, 8), 255)
    true[0], true[2] = 0, 1
    metric = ff.metrics.ImageDice(average="none", ignore=255)
    found = measured(metric, true, true, 3)
    assert_numbers(found, {"image_dice_0": 1.0, "image_dice_1": 1.0, "image_dice_2": math.nan})
    gds = measured(ff.metrics.ImageGeneralisedDice(ignore=255), true, true, 3)
    assert_numbers(gds, {"image_generalised_dice": 1.0})


def drawn(images: int, classes: int, seed: int = 0, void: bool = True) -> tuple[Any, Any]:
    """Return predictions and labels whose images have some of the classes each."""
    random = np.random.default_rng(seed)
    true = np.stack(
        [random.choice(random.integers(0, classes, 3), (12, 10)) for _ in range(images)]
    )
    found = np.where(random.random(true.shape) < 0.7, true, random.integers(0, classes, true.shape))
    if void:
        true[random.random(true.shape) < 0.1] = 255
    return found, true


def test_the_preset_is_what_torchmetrics_gives() -> None:
    import torch
    from torchmetrics.segmentation import MeanIoU

    found, true = drawn(30, 8, void=False)
    true, found = true % 7, found % 7  # class 7 is nowhere
    numbers = measured(ff.metrics.ImageIoU(preset="torchmetrics-1.9"), found, true, 8)
    theirs = {}
    for per_class in (False, True):
        metric = MeanIoU(num_classes=8, per_class=per_class, input_format="index")
        for start in range(0, 30, 4):
            metric.update(*(torch.from_numpy(x[start : start + 4]) for x in (found, true)))
        theirs[per_class] = metric.compute()
    assert float(numbers["image_iou"]) == pytest.approx(float(theirs[False]), abs=1e-6)
    each = [float(numbers[f"image_iou_{c}"]) for c in range(8)]
    assert each == pytest.approx(theirs[True].tolist(), abs=1e-6)
    assert each[7] == -1.0
    assert set(numbers) == {"image_iou", *(f"image_iou_{c}" for c in range(8))}


THEIRS = {"images": "macro", "micro": "micro", "weighted": "weighted", "none": "none"}


@pytest.mark.filterwarnings("ignore:DiceScore metric currently defaults")
@pytest.mark.parametrize(("average", "theirs"), THEIRS.items())
def test_dice_of_images_is_what_torchmetrics_gives(average: str, theirs: str) -> None:
    import torch
    from torchmetrics.segmentation import DiceScore

    found, true = drawn(12, 4, void=False)
    metric = DiceScore(num_classes=4, average=theirs, input_format="index")
    metric.update(torch.from_numpy(found), torch.from_numpy(true))
    numbers = measured(ff.metrics.ImageDice(average=average), found, true, 4)
    ours = [float(x) for k, x in numbers.items() if not k.endswith("_averaged")]
    assert ours == pytest.approx(np.ravel(metric.compute().numpy()).tolist(), abs=1e-5)


def test_generalised_dice_does_not_depend_on_batch_or_order() -> None:
    """Section 1.6: torchmetrics gives .5908 to .3043 for batches of 1 to 6 of six images."""
    found, true = drawn(6, 5)
    numbers = set()
    for order in (slice(None), slice(None, None, -1)):
        for size in (1, 2, 3, 6):
            loop = ff.metrics.Collection(ff.metrics.ImageGeneralisedDice(ignore=255), classes=5)
            for start in range(0, 6, size):
                loop.update(found[order][start : start + size], true[order][start : start + size])
            numbers.add(loop.compute()["image_generalised_dice"].value)
    assert len(numbers) == 1


@LAW
@given(st.data())
def test_numbers_are_those_of_fractions_for_every_cut(data: Any) -> None:
    images, classes = data.draw(st.integers(1, 9)), data.draw(st.integers(2, 5))
    found, true = drawn(images, classes, data.draw(st.integers(0, 99)))
    quotients = []
    for y, x in zip(true, found, strict=True):
        kept = y != 255
        y, x = y[kept], x[kept]
        pairs = [
            (int(((y == c) & (x == c)).sum()), int(((y == c) | (x == c)).sum()))
            for c in range(classes)
        ]
        quotients.append([Fraction(a, b) if b else None for a, b in pairs])
    known = [[q for q in row if q is not None] for row in quotients]
    columns = [[q for q in column if q is not None] for column in zip(*quotients, strict=True)]
    mean = {
        "image": [sum(row, Fraction(0)) / len(row) for row in known if row],
        "class": [sum(column, Fraction(0)) / len(column) for column in columns if column],
        "pair": [q for row in known for q in row],
    }
    order = data.draw(st.permutations(range(images)))
    loop = ff.metrics.Collection(ff.metrics.ImageIoU(ignore=255), classes=classes)
    cuts = sorted({0, images, *data.draw(st.lists(st.integers(0, images), max_size=3))})
    for start, stop in pairwise(cuts):
        loop.update(found[order[start:stop]], true[order[start:stop]])
    numbers = loop.compute()
    for what, terms in mean.items():
        number = numbers[f"image_iou_{what}_mean"]
        assert number.value == float(sum(terms, Fraction(0)) / len(terms))


def test_labels_outside_are_named_by_their_image() -> None:
    found, true = drawn(6, 4)
    true[4, 2, 3] = 9
    with pytest.raises(DataError, match=r"1 label outside 0 to 3, first in row 4: 9"):
        ff.measure(ff.metrics.ImageIoU(ignore=255), found, true, classes=4, cluster="threads")


def test_images_without_a_pixel_that_counts_have_no_part() -> None:
    found, true = drawn(3, 4)
    true[1] = 255
    for absent in ("nan", "zero", "one"):
        metric = ff.metrics.ImageIoU(ignore=255, absent=absent)
        both = measured(metric, found, true, 4)
        without = measured(metric, found[[0, 2]], true[[0, 2]], 4)
        assert {k: repr(v) for k, v in both.items()} == {k: repr(v) for k, v in without.items()}
    nothing = measured(ff.metrics.ImageIoU(ignore=255), found[1:2], true[1:2], 4)
    assert nothing["image_iou_image_mean"].reason == "no image has a pixel that counts"


def test_an_ignored_class_has_no_number() -> None:
    found, true = drawn(5, 4)
    numbers = measured(ff.metrics.ImageIoU(average=EVERY, ignore=(1, 255)), found, true, 4)
    assert "image_iou_1" not in numbers
    assert {"image_iou_0", "image_iou_2", "image_iou_3"} <= set(numbers)
    assert float(numbers["image_iou_classes_averaged"]) == 3
    with pytest.raises(ConfigError, match="leaves none of 2 classes"):
        measured(ff.metrics.ImageIoU(ignore=(0, 1, 255)), found % 2, true % 2, 2)


def test_binary_masks() -> None:
    numbers = ff.measure("image_iou", FOUND, TRUE, classes=2, task="binary", cluster="threads")
    assert {k: float(v) for k, v in numbers.items()} == {"image_iou": 0.375}


def test_options_are_checked() -> None:
    for options, message in (
        ({"average": "macro"}, "average: 'macro' is unknown; choose images"),
        ({"absent": "skip"}, "absent: 'skip' is unknown; choose nan"),
        ({"task": "multilabel"}, "one class a pixel"),
        ({"weights": "w"}, "every image counts alike"),
        ({"preset": "mmseg"}, "preset: 'mmseg' is unknown"),
        ({"preset": "torchmetrics-1.9", "average": "images"}, "says how to average"),
    ):
        with pytest.raises(ConfigError, match=message):
            ff.metrics.ImageIoU(**options)
    with pytest.raises(ConfigError, match="weighting: 'log' is unknown"):
        ff.metrics.ImageGeneralisedDice(weighting="log")
    with pytest.raises(DataError, match="metrics of images need masks"):
        ff.measure("image_iou", np.zeros(3, int), np.zeros(3, int), classes=2, cluster="threads")


def test_two_processes_give_the_same_bits(
    tmp_path: Any, dask_client: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("pipeline.store.predictions.BLOCK_NBYTES", 3000)
    found, true = drawn(64, 6)
    split = open_predictions(found.astype("u1"), true.astype("u1"), classes=6)
    assert len(split.blocks) > 4
    every = {
        "iou": ff.metrics.ImageIoU(average=EVERY, ignore=255),
        "gds": ff.metrics.ImageGeneralisedDice(ignore=255),
        "intervals": ff.metrics.ImageIntervals(ignore=255, replicates=50),
        "table": ff.metrics.ImageTable(ignore=255),
    }
    jobs = {name: Job(metric, {TRAIN: (split,)}) for name, metric in every.items()}
    here = run_jobs(jobs)
    there = run_jobs(jobs, Dask(dask_client, tmp_path))
    for name in ("iou", "gds", "intervals"):
        assert {k: repr(v) for k, v in here[name].items()} == {
            k: repr(v) for k, v in there[name].items()
        }
    table = here["table"].array()
    assert table.shape == (64, 6, 3)
    np.testing.assert_array_equal(table[:, :, 1].sum(axis=1), (true != 255).reshape(64, -1).sum(1))


def test_the_table_of_images_outlives_the_run(tmp_path: Any) -> None:
    found, true = drawn(9, 4)
    path = tmp_path / "table.npy"
    metric = ff.metrics.ImageTable(ignore=255, path=str(path))
    ff.measure(metric, found, true, classes=4, cluster="threads")
    table = np.load(path)
    assert (table.shape, table.dtype) == ((9, 4, 3), np.int32)
    for image, y, x in zip(table, true, found, strict=True):
        for c, own in enumerate(image.tolist()):
            kept = y != 255
            right = int(((y == c) & (x == c)).sum())
            assert own == [right, int((y == c).sum()), int(((x == c) & kept).sum())]
    again = ff.metrics.image_intervals([table], replicates=100)
    direct = ff.metrics.ImageIntervals(ignore=255, replicates=100)
    numbers = ff.measure(direct, found, true, classes=4, cluster="threads")
    assert {k: repr(v) for k, v in again.items()} == {k: repr(v) for k, v in numbers.items()}


def test_states_of_ranks_are_added() -> None:
    """One sum of whole numbers merges them: the live sync of distributed training."""
    found, true = drawn(10, 5)
    wanted = [ff.metrics.ImageIoU(ignore=255), ff.metrics.ImageGeneralisedDice(ignore=255)]
    ranks = [ff.metrics.Collection(wanted, classes=5) for _ in range(3)]
    whole = ff.metrics.Collection(wanted, classes=5)
    whole.update(found, true)
    for rank, (start, stop) in zip(ranks, ((0, 1), (1, 8), (8, 10)), strict=True):
        rank.update(found[start:stop], true[start:stop])
    assert whole.fixed
    merged = whole.with_packed(sum(rank.packed() for rank in ranks))
    assert {k: repr(v) for k, v in merged.compute().items()} == {
        k: repr(v) for k, v in whole.compute().items()
    }
    with pytest.raises(ConfigError, match="keeps a table of all rows"):
        ff.metrics.Collection(ff.metrics.ImageIntervals(), classes=5).update(found, true)
