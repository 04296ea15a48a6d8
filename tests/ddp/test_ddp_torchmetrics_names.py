"""Names of torchmetrics for our metrics, against torchmetrics itself."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torchmetrics
from torchmetrics import classification
from torchmetrics.segmentation import MeanIoU

from pipeline.ddp import torchmetrics as ours
from pipeline.errors import ConfigError

STORY = Path(__file__).parents[2] / "workflows" / "story_ddp"
NAMES = (
    "MulticlassAccuracy", "MulticlassF1Score", "MulticlassJaccardIndex", "MulticlassPrecision",
    "MulticlassRecall", "MulticlassSpecificity",
)  # fmt: skip


def batches(classes: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(3)
    shape = (3, 4, 6, 6)
    truth = torch.from_numpy(rng.integers(0, classes, shape))
    wrong = torch.from_numpy(rng.random(shape) < 0.3)
    predicted = torch.where(wrong, torch.from_numpy(rng.integers(0, classes, shape)), truth)
    return list(zip(predicted, truth, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", None])
def test_where_every_class_is_there_the_numbers_are_those_of_torchmetrics(name, average):
    theirs = getattr(classification, name)(num_classes=4, average=average)
    collection = ours.MetricCollection(
        [getattr(ours, name)(num_classes=4, average=average)], prefix="val/", repeats="none"
    )
    for predicted, truth in batches():
        theirs.update(predicted, truth)
        collection.update(predicted, truth)
    numbers, expected = collection.compute(), theirs.compute()
    if average is None:
        found = [float(numbers[f"val/{name}_{c}"]) for c in range(4)]
        assert float(numbers[f"val/{name}_mean"]) == pytest.approx(float(expected.mean()), 1e-6)
    else:
        end = "mean" if average == "macro" else average
        found = [float(numbers[f"val/{name}_{end}"])]
    assert found == pytest.approx(expected.reshape(-1).tolist(), rel=1e-6)


def test_an_ignored_index_and_names_of_ones_own():
    theirs = torchmetrics.MetricCollection(
        {"iou": classification.MulticlassJaccardIndex(4, average=None, ignore_index=255)},
        prefix="val/",
    )
    collection = ours.MetricCollection(
        {"iou": ours.MulticlassJaccardIndex(4, average=None, ignore_index=255)}, prefix="val/",
        repeats="none",
    )  # fmt: skip
    for predicted, truth in batches():
        truth[:, :2] = 255
        theirs.update(predicted, truth)
        collection.update(predicted, truth)
    found = [float(collection.compute()[f"val/iou_{c}"]) for c in range(4)]
    assert found == pytest.approx(theirs.compute()["val/iou"].tolist(), rel=1e-6)


def test_mean_iou_of_images_does_not_jump():
    """Class 4 is nowhere, class 3 in some images only: -1, and no part in the mean."""
    theirs = MeanIoU(num_classes=5, input_format="index")
    each = MeanIoU(num_classes=5, input_format="index", per_class=True)
    collection = ours.MetricCollection({"miou": ours.MeanIoU(num_classes=5)}, repeats="none")
    for number, (predicted, truth) in enumerate(batches()):
        if number:
            predicted, truth = predicted.clamp(max=2), truth.clamp(max=2)
        for metric in (theirs, each, collection):
            metric.update(predicted, truth)
    numbers = collection.compute()
    assert float(numbers["miou"]) == pytest.approx(float(theirs.compute()), rel=1e-6)
    found = [float(numbers[f"miou_{c}"]) for c in range(5)]
    assert found == pytest.approx(each.compute().tolist(), rel=1e-6)
    assert found[4] == -1.0
    assert all(not math.isnan(value) for value in found)


def test_classes_that_differ_are_refused():
    with pytest.raises(ConfigError, match="num_classes differ"):
        ours.MetricCollection([ours.MulticlassRecall(3), ours.MulticlassF1Score(4)])
    with pytest.raises(ConfigError, match="average: 'mean' is unknown"):
        ours.MulticlassRecall(3, average="mean")
    with pytest.raises(ConfigError, match="include_background"):
        ours.MeanIoU(3, include_background=False)


BINARY = (
    "BinaryAccuracy", "BinaryF1Score", "BinaryJaccardIndex", "BinaryPrecision", "BinaryRecall",
    "BinarySpecificity",
)  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary_metrics_are_those_of_torchmetrics(name):
    theirs = getattr(classification, name)(threshold=0.3, ignore_index=255)
    collection = ours.MetricCollection(
        [getattr(ours, name)(threshold=0.3, ignore_index=255)], repeats="none"
    )
    rng = np.random.default_rng(1)
    for _ in range(3):
        scores, truth = torch.from_numpy(rng.random(50)), torch.from_numpy(rng.integers(0, 2, 50))
        truth[:3] = 255
        theirs.update(scores, truth)
        collection.update(scores, truth)
    assert float(collection.compute()[name]) == pytest.approx(float(theirs.compute()), rel=1e-6)


def test_the_confusion_matrix_is_that_of_torchmetrics():
    theirs = classification.MulticlassConfusionMatrix(4, ignore_index=255)
    collection = ours.MetricCollection(
        [ours.MulticlassConfusionMatrix(4, ignore_index=255), ours.MulticlassRecall(4)],
        repeats="none",
    )
    for predicted, truth in batches():
        theirs.update(predicted, truth)
        collection.update(predicted, truth)
    table = collection.compute()["MulticlassConfusionMatrix"]
    assert table.counts.tolist() == theirs.compute().tolist()


def test_a_metric_alone_says_where_it_belongs():
    alone = ours.MulticlassRecall(3)
    for call in (alone, alone.update, alone.compute):
        with pytest.raises(ConfigError, match=r"put it into a collection, MetricCollection"):
            call(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ConfigError, match=r"argmax\(1\)"):
        ours.MeanIoU(3, input_format="one-hot")
    with pytest.raises(ConfigError, match="differ within one collection"):
        ours.MetricCollection([ours.MulticlassRecall(2), ours.BinaryRecall()])


def bodies(path: Path) -> tuple[dict[str, str], set[str]]:
    """Return the methods of the module of a file by name, and the other statements."""
    tree = ast.parse(path.read_text())
    (cls,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    methods = {node.name: ast.dump(node) for node in cls.body if isinstance(node, ast.FunctionDef)}
    others = [n for n in tree.body if not isinstance(n, ast.ClassDef | ast.Import | ast.ImportFrom)]
    return methods, {ast.dump(n) for n in others if not isinstance(n, ast.Expr)}


def test_the_module_of_the_story_differs_in_imports_and_hooks_alone():
    reported, reported_others = bodies(STORY / "with_torchmetrics.py")
    changed, changed_others = bodies(STORY / "with_featfold.py")
    assert reported_others == changed_others == set()
    alike = {name for name in reported.keys() & changed.keys() if reported[name] == changed[name]}
    assert alike == {
        "__init__", "forward", "training_step", "validation_step", "test_step", "_step",
        "configure_optimizers",
    }  # fmt: skip
    assert changed.keys() - alike == {"configure_callbacks"}
    assert reported.keys() - alike == {
        "on_train_epoch_end", "on_validation_epoch_end", "on_test_epoch_end", "_log_per_class",
    }  # fmt: skip
