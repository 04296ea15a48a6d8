"""What was logged, computed again on one process: from the masks of every step, in plain numpy."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from parts import CLASSES

RANKS = 2
Matrix = np.ndarray[Any, np.dtype[np.int64]]


class Step(NamedTuple):
    """What one rank saw in one step."""

    phase: str
    epoch: int
    step: int
    preds: Matrix
    masks: Matrix


def steps(folder: Path, rank: int) -> list[Step]:
    """Return the steps of a rank in an attempt, in order; the last may be torn by a kill."""
    found = []
    for path in sorted(folder.glob(f"rank{rank}-*.npz")):
        try:
            kept = np.load(path)
            phase = path.stem.rpartition("-")[2]
            found.append(
                Step(phase, int(kept["epoch"]), int(kept["step"]), kept["preds"], kept["masks"])
            )
        except (ValueError, EOFError, OSError, KeyError):
            break
    return found


def evaluations(folder: Path, phase: str) -> list[Matrix]:
    """Return the matrix of each validation or test of an attempt, every sample counted once."""
    by_rank = [
        [
            list(group)
            for name, group in groupby(steps(folder, rank), lambda s: s.phase)
            if name == phase
        ]
        for rank in range(RANKS)
    ]
    return [
        _once([step for rank_steps in together for step in rank_steps])
        for together in zip(*by_rank, strict=False)
    ]


def trained(folders: list[Path], samples: int) -> dict[int, Matrix]:
    """Return the matrix of each epoch of training, over the attempts it took.

    Rank r draws positions r, r + 2, r + 4 ... of the shuffled samples; those at ``samples`` and
    beyond repeat some. An attempt counts up to the checkpoint that the next one began at, which is
    the step of its first batch.
    """
    totals: dict[int, Matrix] = {}
    for number, folder in enumerate(folders):
        later = (
            [s for s in steps(folders[number + 1], 0) if s.phase == "train"][:1]
            if (number + 1 < len(folders))
            else []
        )
        for rank in range(RANKS):
            position: dict[int, int] = {}
            for step in steps(folder, rank):
                if step.phase != "train" or (later and step.step >= later[0].step):
                    continue
                start = position.get(step.epoch, 0)
                position[step.epoch] = start + len(step.masks)
                places = rank + RANKS * (start + np.arange(len(step.masks)))
                counts = places < samples
                matrix = pairs(step.preds[counts], step.masks[counts])
                totals[step.epoch] = totals.get(step.epoch, 0) + matrix
    return totals


def pairs(preds: Matrix, masks: Matrix) -> Matrix:
    """Return the confusion matrix (21, 21), true classes down."""
    index = masks.astype(np.int64) * CLASSES + preds
    counted: Matrix = np.bincount(index.ravel(), minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    return counted


def numbers(matrix: Matrix, prefix: str) -> dict[str, float]:
    """Return every number that has a value, in exact fractions rounded once."""
    tp, truth, predicted = (
        [int(x) for x in part] for part in (matrix.diagonal(), matrix.sum(1), matrix.sum(0))
    )
    parts = {
        "accuracy": [(a, t) for a, t in zip(tp, truth, strict=True)],
        "recall": [(a, t) for a, t in zip(tp, truth, strict=True)],
        "precision": [(a, p) for a, p in zip(tp, predicted, strict=True)],
        "dice": [(2 * a, t + p) for a, t, p in zip(tp, truth, predicted, strict=True)],
        "iou": [(a, t + p - a) for a, t, p in zip(tp, truth, predicted, strict=True)],
    }
    found: dict[str, float] = {}
    for name, quotients in parts.items():
        defined = {c: Fraction(a, b) for c, (a, b) in enumerate(quotients) if b}
        found |= {f"{prefix}{name}_{c}": float(value) for c, value in defined.items()}
        found[f"{prefix}{name}_mean"] = float(sum(defined.values()) / len(defined))
        found[f"{prefix}{name}_classes_averaged"] = float(len(defined))
    return found


def logged(path: Path, phase: str) -> list[dict[str, float]]:
    """Return the numbers of each row of a metrics.csv that has some of a phase."""
    with path.open() as file:
        rows = [
            {key: float(x) for key, x in row.items() if key.startswith(f"{phase}/") and x}
            for row in csv.DictReader(file)
        ]
    return [row for row in rows if row]


def differences(found: Mapping[str, float], right: Mapping[str, float]) -> list[str]:
    """Return the keys that differ; loggers keep numbers as float32."""
    keys = sorted(found.keys() | right.keys())
    return [
        key
        for key in keys
        if key not in found or key not in right or np.float32(found[key]) != np.float32(right[key])
    ]


def _once(group: list[Step]) -> Matrix:
    """Return the matrix of steps, with masks that come twice counted once."""
    total, seen = np.zeros((CLASSES, CLASSES), np.int64), set()
    for step in group:
        for predicted, mask in zip(step.preds, step.masks, strict=True):
            if mask.tobytes() not in seen:
                seen.add(mask.tobytes())
                total += pairs(predicted, mask)
    return total
