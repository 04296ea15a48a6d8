"""Batches of predictions and targets, as training loops hold them, brought into chunks of rows.

What a batch holds is told by its dtypes and shapes and by what was declared, never by its values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import ArraySpec, Chunk, Schema
from pipeline.errors import DataError
from pipeline.tasks import shape_remedy

SCORES = "scores"
"""Array that metrics of ranks read: scores of elements, one a row."""


def batch(
    preds: Any, target: Any, weights: Any = None, *, task: str, classes: int, name: str
) -> Chunk:
    """Return a batch as a chunk of its rows, with arrays as metrics read them.

    ``target`` (n, ...) integers. ``preds``: integers of the same shape are classes (0 or 1 for
    each label of a multilabel task); floats are scores: (n, k, ...) for multiclass, the shape of
    the target otherwise. ``weights`` (n,) floats. ``name`` names the batch in errors. Raises
    :class:`DataError` for anything else.
    """
    p, y = _array(preds, "preds"), _array(target, "target")
    xp = arrays.namespace(y)
    if arrays.library(p) != arrays.library(y) or arrays.device_of(p) != arrays.device_of(y):
        raise DataError(
            f"{name}: preds are {_where(p)}, target {_where(y)}; bring both to the same place"
        )
    if not xp.isdtype(y.dtype, ("integral", "bool")):
        raise DataError(f"{name}: target has dtype {y.dtype}; expected whole numbers")
    if y.ndim == 0:
        raise DataError(f"{name}: target is one number; expected (n, ...), rows first")
    contents = {"labels": _whole(y), **_predictions(p, y, task, classes, name)}
    if weights is not None:
        contents["weights"] = _weights(weights, y, name)
    return _chunk(contents, classes, name)


def empty_batch(task: str, classes: int) -> Chunk:
    """Return a batch of scores without rows."""
    target = np.zeros((0, classes) if task == "multilabel" else (0,), np.int64)
    scores = np.zeros((0,) if task == "binary" else (0, classes))
    return batch(scores, target, task=task, classes=classes, name="no batch")


def elements(chunk: Chunk) -> Chunk:
    """Return a binary chunk with a row for every element of its masks."""
    xp = arrays.namespace(chunk["labels"])
    if chunk["labels"].ndim == 1:
        return chunk
    flat = {k: xp.reshape(x, (-1,)) for k, x in chunk.arrays.items() if k != "weights"}
    return _chunk(flat, chunk.schema.classes, chunk.split)


def _array(given: Any, what: str) -> Array:
    if hasattr(given, "detach"):  # gradients have no part in metrics
        given = given.detach()
    if isinstance(given, np.ma.MaskedArray):
        raise DataError(f"{what} are masked; fill them in, with a class of ignore in the target")
    array = given if arrays.is_array(given) else np.asarray(given)
    if array.dtype == object:
        raise DataError(f"{what} are of Python objects; expected an array of numbers, (n, ...)")
    return array


def _where(x: Array) -> str:
    return f"of {arrays.library(x)} on {arrays.device_of(x)}"


def _whole(x: Array) -> Array:
    xp = arrays.namespace(x)
    return xp.astype(x, xp.uint8) if xp.isdtype(x.dtype, "bool") else x


def _predictions(p: Array, y: Array, task: str, classes: int, name: str) -> dict[str, Array]:
    """Return ``predictions`` of classes, or ``logits`` where the batch holds scores."""
    xp = arrays.namespace(p)
    floats = xp.isdtype(p.dtype, "real floating")
    by_class = (y.shape[0], classes, *y.shape[1:])
    expected = by_class if floats and task == "multiclass" else tuple(y.shape)
    if task == "multilabel" and (y.ndim < 2 or y.shape[1] != classes):
        raise DataError(
            f"{name}: target has shape {tuple(y.shape)}; expected (n, {classes}, ...), "
            "one number for each label"
        )
    if tuple(p.shape) != expected:
        remedy = shape_remedy(p.shape, y.shape, floats=floats, task=task, classes=classes)
        raise DataError(
            f"{name}: preds of {p.dtype} have shape {tuple(p.shape)}; expected {expected} "
            f"beside a target of {tuple(y.shape)}{remedy}"
        )
    if not floats:
        return {"predictions": _whole(p)}
    return {"logits": p, SCORES: p} if task == "binary" else {"logits": p}


def _weights(weights: Any, y: Array, name: str) -> Array:
    w = _array(weights, "weights")
    if arrays.library(w) != arrays.library(y) or arrays.device_of(w) != arrays.device_of(y):
        w = arrays.like(arrays.to_host(w), y)  # one number a row is soon there
    if tuple(w.shape) != (y.shape[0],):
        raise DataError(
            f"{name}: weights have shape {tuple(w.shape)}; expected ({y.shape[0]},), one a row"
        )
    return w


def _chunk(contents: dict[str, Array], classes: int, name: str) -> Chunk:
    rows = int(contents["labels"].shape[0])
    specs = {key: ArraySpec(tuple(x.shape[1:]), _dtype(x)) for key, x in contents.items()}
    return Chunk(Schema(rows, classes, specs, name), 0, rows, contents)


def _dtype(x: Array) -> str:
    return str(x.dtype).rpartition(".")[2]
