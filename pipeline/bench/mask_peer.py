"""The other side of ``featfold bench masks``: a collection of torchmetrics over the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.errors import MissingInputError

Masks = Mapping[str, np.ndarray[Any, Any]]


def versions() -> dict[str, str]:
    """Return the versions of what is measured; raises where it is not installed."""
    try:
        return {name: version(name) for name in ("torchmetrics", "torch")}
    except PackageNotFoundError as error:
        raise MissingInputError(
            f"{error.name} is not installed here; install it beside featfold, or leave out --peer"
        ) from None


def collection(masks: Masks, classes: int, batch: int, checked: bool) -> dict[str, list[float]]:
    """Return accuracy, precision, recall, Dice and IoU of each class, as a training loop would."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassF1Score,
        MulticlassJaccardIndex,
        MulticlassPrecision,
        MulticlassRecall,
    )

    kinds = {
        "accuracy": MulticlassAccuracy,
        "precision": MulticlassPrecision,
        "recall": MulticlassRecall,
        "dice": MulticlassF1Score,
        "iou": MulticlassJaccardIndex,
    }
    options = {"num_classes": classes, "average": None, "validate_args": checked}
    metric = MetricCollection({name: kind(**options) for name, kind in kinds.items()})
    for predictions, labels in _batches(masks, batch):
        metric.update(predictions, labels)
    return {name: values.tolist() for name, values in metric.compute().items()}


def matrix(masks: Masks, classes: int, batch: int) -> Any:
    """Return the confusion matrix alone, unchecked."""
    from torchmetrics.classification import MulticlassConfusionMatrix

    metric = MulticlassConfusionMatrix(classes, validate_args=False)
    for predictions, labels in _batches(masks, batch):
        metric.update(predictions, labels)
    return metric.compute()


def _batches(masks: Masks, batch: int) -> Iterator[tuple[Any, Any]]:
    import torch

    torch.set_num_threads(arrays.counting_threads())
    whole = {side: torch.from_numpy(array) for side, array in masks.items()}
    for start in range(0, len(whole["labels"]), batch):
        yield tuple(whole[side][start : start + batch] for side in ("predictions", "labels"))
