"""``featfold bench masks``: five metrics of each class of masks, beside torchmetrics and floors."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import arrays, metrics
from pipeline.bench.measuring import Outcome, Say, alternate, medians, spread, table
from pipeline.bench.stored_masks import Stored
from pipeline.collection import Collection
from pipeline.errors import FeatfoldError

NAMES: Mapping[str, Any] = {
    "accuracy": metrics.Recall,  # of one class it is the recall
    "precision": metrics.Precision,
    "recall": metrics.Recall,
    "dice": metrics.Dice,
    "iou": metrics.IoU,
}
OURS, NARROW, FLOOR = "featfold, int64", "featfold, uint8", "floor: one bincount, int64"
PEER = "torchmetrics: collection"
UNCHECKED = "torchmetrics: collection, unchecked"
MATRIX = "torchmetrics: confusion matrix, unchecked"
PATCH = 16
"""Pixels of the side of a square of one class in made-up masks."""


@dataclass(frozen=True)
class Shape:
    """Masks that are made up: squares of one class, and some pixels that are predicted wrong."""

    images: int = 1000
    side: int = 224
    classes: int = 21
    wrong: float = 0.1
    batch: int = 1000
    """Images of a batch, the same for both sides."""

    @property
    def pixels(self) -> int:
        """Pixels of all masks of one side."""
        return self.images * self.side**2


def made(shape: Shape, images: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return predictions and labels (images, side, side), uint8."""
    random = np.random.default_rng(seed)
    patches = math.ceil(shape.side / PATCH)
    squares = random.integers(0, shape.classes, (images, patches, patches), np.uint8)
    labels = squares.repeat(PATCH, axis=1).repeat(PATCH, axis=2)[:, : shape.side, : shape.side]
    predictions = np.ascontiguousarray(labels)
    wrong = random.random(predictions.shape, np.float32) < shape.wrong
    predictions = predictions.copy()
    predictions[wrong] = random.integers(0, shape.classes, np.count_nonzero(wrong), np.uint8)
    return {"predictions": predictions, "labels": np.ascontiguousarray(labels)}


def bench(
    shape: Shape,
    stored_images: int,
    peer: bool,
    repeat: int,
    workers: int,
    scratch: Path,
    say: Say = lambda text: None,
) -> Outcome:
    """Time metrics of masks in memory, and, where asked, of more of them in zarr."""
    narrow = made(shape, shape.images)
    wide = {side: masks.astype(np.int64) for side, masks in narrow.items()}
    found: dict[str, Any] = {}
    sides: dict[str, Callable[[], float]] = {
        OURS: partial(_timed, partial(_ours, shape, wide), found, OURS),
        NARROW: partial(_timed, partial(_ours, shape, narrow), found, NARROW),
        FLOOR: partial(_floor_seconds, shape, wide),
    }
    versions: Mapping[str, str] = {}
    if peer:
        from pipeline.bench import mask_peer

        versions = mask_peer.versions()
        for name, checked in ((PEER, True), (UNCHECKED, False)):
            task = partial(mask_peer.collection, wide, shape.classes, shape.batch, checked)
            sides[name] = partial(_timed, task, found, name)
        sides[MATRIX] = partial(
            _timed, partial(mask_peer.matrix, wide, shape.classes, shape.batch), found, MATRIX
        )
    few = {side: masks[:2] for side, masks in narrow.items()}
    _ours(shape, few)  # imports, and tables that are kept
    taken = alternate(sides, repeat, say)
    _check(found)
    numbers, shown = _compared(shape, taken, versions)
    tables = {_title(shape): shown}
    notes = [
        f"masks are squares of {PATCH} pixels, {shape.wrong:.0%} of the pixels predicted at random;"
        f" batches of {shape.batch}; all sides use {arrays.counting_threads()} threads",
        "featfold and the checked collection look at the range of every class; the unchecked one "
        "counts a class that is outside as another",
        "floor: pairs of classes that are numbered already, counted once by numpy",
    ]
    if stored_images:
        with tempfile.TemporaryDirectory(prefix="bench-masks-", dir=scratch) as inside:
            stored = Stored(Path(inside), shape, stored_images, workers)
            stored.write(partial(made, shape), say)
            more, more_shown, more_notes = stored.measured(repeat, say)
        numbers |= {"stored": more}
        tables |= more_shown
        notes += more_notes
    return Outcome("masks", numbers, tables, notes)


def _ours(shape: Shape, masks: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """Return the numbers of five metrics as a training loop gets them."""
    each = {name: kind(average="none") for name, kind in NAMES.items()}
    loop = Collection(each, classes=shape.classes)
    for start in range(0, shape.images, shape.batch):
        batch = {side: x[start : start + shape.batch] for side, x in masks.items()}
        loop.update(batch["predictions"], batch["labels"])
    found = loop.compute()
    return {name: [float(found[f"{name}_{c}"]) for c in range(shape.classes)] for name in NAMES}


def _floor_seconds(shape: Shape, masks: Mapping[str, np.ndarray[Any, Any]]) -> float:
    codes = (masks["labels"] * shape.classes + masks["predictions"]).reshape(-1)
    began = time.perf_counter()
    with arrays.several_threads():
        arrays.each_part(
            lambda part: np.bincount(codes[part], minlength=shape.classes**2), len(codes)
        )
    return time.perf_counter() - began


def _timed(task: Callable[[], Any], found: dict[str, Any], name: str) -> float:
    began = time.perf_counter()
    found[name] = task()
    return time.perf_counter() - began


def _check(found: Mapping[str, Any]) -> None:
    """Raise where two sides do not agree: what is wrong is not worth its time."""
    reference = found[OURS]
    for name, numbers in found.items():
        if name == MATRIX:
            continue
        for metric, values in numbers.items():
            apart = np.nanmax(np.abs(np.subtract(values, reference[metric])))
            if not apart < 1e-5:
                raise FeatfoldError(f"{name}: {metric} differs from {OURS} by {apart:g}")


def _compared(
    shape: Shape, taken: dict[str, list[float]], versions: Mapping[str, str]
) -> tuple[dict[str, Any], Any]:
    middle = medians(taken)
    ratios = {
        name: {side: middle[name] / middle[side] for side in (OURS, NARROW)}
        for name in middle
        if name not in (OURS, NARROW, FLOOR)
    }
    numbers: dict[str, Any] = {
        "shape": asdict(shape),
        "pixels": shape.pixels,
        "threads": arrays.counting_threads(),
        "peer": dict(versions) or None,
        "seconds": taken,
        "median_seconds": middle,
        "over_floor": {side: middle[side] / middle[FLOOR] for side in (OURS, NARROW)},
        "times_faster": ratios,
    }
    shown = table("", "median s", "range s", "Mpixel/s", "times featfold, int64")
    for name, seconds in taken.items():
        rate = f"{shape.pixels / middle[name] / 1e6:,.0f}"
        shown.add_row(
            name, f"{middle[name]:.3f}", spread(seconds), rate, f"{middle[name] / middle[OURS]:.2f}"
        )
    return numbers, shown


def _title(shape: Shape) -> str:
    return (
        f"five metrics of each of {shape.classes} classes, {shape.images:,} masks of "
        f"{shape.side} x {shape.side}"
    )
