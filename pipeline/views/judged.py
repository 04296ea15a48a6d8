"""What the scores of a model say of every element, and how well that fits its label.

An element is an image, a pixel of a mask, or a label of a multilabel task. What the scores are is
declared, ``logits`` or ``probabilities``, and never told from their values.
"""

from __future__ import annotations

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import REHEARSING, Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError, DataError
from pipeline.views.base import View, floats_nbytes, memoised
from pipeline.views.class_ids import Labelled, Truth

TASKS = ("multiclass", "binary", "multilabel")
KINDS = ("logits", "probabilities")
QUANTITIES = (
    "confidence", "doubt", "hit", "nll", "brier", "positive", "is_positive", "brier_positive",
)  # fmt: skip
"""What is known of an element, float64.

``confidence``: the probability of the predicted class: the first most probable one, or class 1
from 1/2 on. ``doubt``: orders elements from the surest, also where confidences round to 1. ``hit``:
1 where the prediction is the label. ``nll``: -log of the probability of the label. ``brier``: the
sum over classes of (probability - [it is the label])². ``positive``: the probability of class 1.
``is_positive``: 1 where the label is class 1. ``brier_positive``: the square of their difference.
"""
SUM_TOLERANCE = 0.01
"""How far the sum of probabilities may be from 1: rounding to bfloat16 makes 0.004."""
TILE_SCORES = 2**16
"""Scores that are looked at at a time."""
TILE_ARRAYS = 8
"""Float64 arrays of them that are held then."""


@value
class Counted:
    """Elements that count: (...) bool, those of rows that ``where`` keeps, but ``ignore``.

    Raises :class:`DataError` for a label of such rows that is not ignored and not one of the
    classes: 0 to k-1, or 0 and 1 where ``task`` is not multiclass.
    """

    task: str = "multiclass"
    ignore: tuple[int, ...] = ()
    where: View = Labelled()

    @property
    def fields(self) -> frozenset[str]:
        return self.where.fields | {"labels"}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return label_shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 6 * floats_nbytes(label_shape(schema), rows, 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        y, counts = Truth()(chunk), self.where(chunk)
        xp = arrays.namespace(y)
        if counts.ndim < y.ndim:
            counts = xp.reshape(counts, (chunk.rows, *(1,) * (y.ndim - 1)))
            counts = counts & xp.ones_like(y, dtype=xp.bool)
        limits = xp.iinfo(y.dtype)
        for ignored in self.ignore:
            if limits.min <= ignored <= limits.max:
                counts = counts & (y != ignored)
        classes = chunk.schema.classes if self.task == "multiclass" else 2
        wrong = y < 0 if limits.min < 0 else xp.zeros_like(counts)
        if classes <= limits.max:
            wrong = wrong | (y >= classes)
        if bool(xp.any(wrong & counts)):
            raise DataError(_not_a_class(chunk, wrong & counts, classes))
        return counts


def _not_a_class(chunk: Chunk, wrong: Array, classes: int) -> str:
    bad = arrays.to_host(wrong)
    values = np.unique(arrays.to_host(Truth()(chunk))[bad])[:5].tolist()
    row = chunk.start + int(np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[0])
    return (
        f"{chunk.split}: {int(bad.sum())} labels are not 0 to {classes - 1}, first in row {row}: "
        f"{', '.join(map(str, values))}; add what does not count to ignore, such as "
        f"ignore=({values[0]},)"
    )


@value
class Judgements:
    """All :data:`QUANTITIES` of each element: (8, ...) float64, ... the shape of a row's labels.

    Scores ``field`` are (k, ...) for multiclass, of the shape of the labels otherwise: for binary
    of class 1, for multilabel one for each label. Where no label counts there may be anything.
    Raises :class:`DataError` where an element that counts has a score that is not finite, or that
    is no probability where it must be one.
    """

    task: str = "multiclass"
    kind: str = "logits"
    field: str = "logits"
    among: View = Counted()

    def __post_init__(self) -> None:
        for option, given, known in (("task", self.task, TASKS), ("kind", self.kind, KINDS)):
            if given not in known:
                raise ConfigError(f"{option}: {given!r} is unknown; choose {' or '.join(known)}")

    @property
    def fields(self) -> frozenset[str]:
        return self.among.fields | {self.field}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return (len(QUANTITIES), *element_shape(schema, self.field, self.task))

    def nbytes(self, schema: Schema, rows: int) -> int:
        scores = max(1, floats_nbytes(schema.spec(self.field).shape, 1, 1))
        tile = scores * min(rows, max(1, TILE_SCORES // scores))
        return floats_nbytes(self.shape(schema), rows) + 8 * TILE_ARRAYS * tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        scores, labels, counts = chunk[self.field], Truth()(chunk), self.among(chunk)
        if scores.ndim - labels.ndim != (self.task == "multiclass"):
            labels = counts = _none_of(scores, self.task)  # of a split without labels
        width = max(1, int(np.prod(scores.shape[1:], dtype=np.int64)))
        found = arrays.by_tiles(
            self._of_tile, scores, labels, tile_rows=max(1, TILE_SCORES // width)
        )
        xp = arrays.namespace(found)
        bad = counts & xp.isnan(found[:, 0, ...])
        if bool(xp.any(bad)):
            raise DataError(self._complaint(chunk, bad))
        return found

    def _of_tile(self, scores: Array, labels: Array) -> Array:
        judge = _multiclass if self.task == "multiclass" else _binary
        with np.errstate(all="ignore"):  # scores that do not count may be anything
            # Made-up rows are logits, whatever they stand for.
            return judge(scores, labels, "logits" if REHEARSING.get() else self.kind)

    def _complaint(self, chunk: Chunk, bad: Array) -> str:
        rows = np.flatnonzero(arrays.to_host(bad).reshape(chunk.rows, -1).any(axis=1))
        found = f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}, first row"
        found = f"{chunk.split}: {self.kind} of {found} {chunk.start + rows[0]},"
        first = arrays.to_host(chunk[self.field])[rows[0]].astype(np.float64)
        if not np.isfinite(first).all():
            return f"{found} are not finite; look for what computed them, or ignore their labels"
        low, high = first.min(), first.max()
        sums = first.sum(axis=0) if self.task == "multiclass" else 1.0
        off = (
            f", with sums from {np.min(sums):g} to {np.max(sums):g}" if low >= 0 <= 1 - high else ""
        )
        return (
            f"{found} lie from {low:g} to {high:g}{off}; expected 0 to 1"
            f"{' with a sum of 1' if self.task == 'multiclass' else ''}: are they logits? "
            "Declare kind='logits' then"
        )


@value
class Judged:
    """One of the :data:`QUANTITIES` of each element: (...) float64."""

    of: Judgements
    quantity: str

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            raise ConfigError(
                f"quantity: {self.quantity!r} is unknown; choose {', '.join(QUANTITIES)}"
            )

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)[1:]

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 0

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return self.of(chunk)[:, QUANTITIES.index(self.quantity), ...]


@value
class Agrees:
    """Whether predictions, of the shape of the labels, are the label: (...) bool."""

    of: View

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | {"labels"}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        given, labels = self.of.shape(schema), label_shape(schema)
        if given != labels:
            raise DataError(
                f"{schema.split}: rows of predictions have shape {given}, those of labels {labels}"
            )
        return labels

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 17 * floats_nbytes(self.shape(schema), rows, 1)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        labels, found = Truth()(chunk), self.of(chunk)
        xp = arrays.namespace(labels, found)
        return xp.astype(labels, xp.int64) == xp.astype(found, xp.int64)


def label_shape(schema: Schema) -> tuple[int, ...]:
    """Return the shape of a row's labels; of a split without labels that of one for each row."""
    return schema.arrays["labels"].shape if "labels" in schema.arrays else ()


def element_shape(schema: Schema, field: str, task: str) -> tuple[int, ...]:
    """Return the shape of the elements of a row, of which each has scores.

    Raises :class:`DataError` where scores and labels do not fit the task.
    """
    given = schema.spec(field).shape
    labels = schema.arrays["labels"].shape if "labels" in schema.arrays else None
    leading = () if task == "binary" else (schema.classes,)
    shape = given[1:] if task == "multiclass" else given
    if given[: len(leading)] != leading or labels not in (None, shape):
        beside = f" beside labels {labels}" if labels is not None else ""
        expected = {
            "multiclass": f"({schema.classes}, ...), a score for each class",
            "binary": "the shape of the labels, the score of class 1",
            "multilabel": f"({schema.classes}, ...) of both, one for each label",
        }
        raise DataError(
            f"{schema.split}: {field} has rows of shape {given}{beside}; expected for {task} "
            f"scores {expected[task]}"
        )
    return shape


def _none_of(scores: Array, task: str) -> Array:
    """Return False for every element: labels of class 0, and a mask that keeps none of them."""
    xp = arrays.namespace(scores)
    return xp.zeros_like(scores[:, 0, ...] if task == "multiclass" else scores, dtype=xp.bool)


def _multiclass(scores: Array, labels: Array, kind: str) -> Array:
    """Return the quantities (n, 8, ...) of scores (n, k, ...) and labels (n, ...)."""
    xp = arrays.namespace(scores, labels)
    k = scores.shape[1]
    last = scores if scores.ndim == 2 else xp.moveaxis(scores, 1, -1)
    x = xp.astype(xp.reshape(last, (-1, k)), xp.float64)
    y = xp.astype(xp.reshape(labels, (-1,)), xp.int64)
    own = xp.where((y >= 0) & (y < k), y, xp.zeros_like(y))
    top = xp.astype(xp.argmax(x, axis=1), xp.int64)
    judge = _by_logits if kind == "logits" else _by_probabilities
    confidence, doubt, nll, brier, positive = judge(x, own, top)
    hit, is_positive = (xp.astype(same, xp.float64) for same in (top == own, y == 1))
    off = (positive - is_positive) ** 2
    every = xp.stack((confidence, doubt, hit, nll, brier, positive, is_positive, off), axis=1)
    if labels.ndim == 1:
        return every
    return xp.moveaxis(xp.reshape(every, (*labels.shape, len(QUANTITIES))), -1, 1)


def _by_logits(f: Array, own: Array, top: Array) -> tuple[Array, ...]:
    """Judge logits (m, k) with labels ``own`` (m,) and predictions ``top`` (m,).

    NaN is the confidence where they are not finite.
    """
    xp = arrays.namespace(f)
    below = f - xp.max(f, axis=1, keepdims=True)
    least, finite = _entries(below, own), xp.isfinite(xp.sum(below, axis=1))
    others = arrays.clear_at(xp.exp(below), top)
    rest = xp.sum(others, axis=1)
    confidence, doubt = 1.0 / (1.0 + rest), rest / (1.0 + rest)
    others = others * confidence[:, None]
    squares = xp.sum(others * others, axis=1)
    p = _entries(others, own)
    missed = squares - p * p + (1.0 - p) ** 2 + confidence**2
    brier = xp.where(own == top, squares + doubt**2, missed)
    positive = xp.where(top == 1, confidence, others[:, min(1, f.shape[1] - 1)])
    nll = xp.log1p(rest) - least
    return _nan_unless(finite, confidence), doubt, nll, brier, positive


def _by_probabilities(p: Array, own: Array, top: Array) -> tuple[Array, ...]:
    """Judge probabilities (m, k); NaN is the confidence where they are none."""
    xp = arrays.namespace(p)
    fit = xp.all((p >= 0.0) & (p <= 1.0), axis=1)
    fit = fit & (xp.abs(xp.sum(p, axis=1) - 1.0) <= SUM_TOLERANCE)
    confidence = _nan_unless(fit, _entries(p, top))
    given = _entries(p, own)
    others = arrays.clear_at(xp.asarray(p, copy=True), own)
    brier = xp.sum(others * others, axis=1) + (1.0 - given) ** 2
    return confidence, -confidence, _surprise(given), brier, p[:, min(1, p.shape[1] - 1)]


def _binary(scores: Array, labels: Array, kind: str) -> Array:
    """Return the quantities (n, 8, ...) of scores (n, ...) of class 1 and labels (n, ...)."""
    xp = arrays.namespace(scores, labels)
    x = xp.astype(scores, xp.float64)
    is_positive = labels == 1
    if kind == "logits":
        size = xp.abs(x)
        rest = xp.exp(-size)
        confidence = _nan_unless(xp.isfinite(x), 1.0 / (1.0 + rest))
        doubt, above = rest / (1.0 + rest), x >= 0.0
        positive = xp.where(above, confidence, doubt)
        hit = above == is_positive
        nll = xp.log1p(rest) + xp.where(hit, xp.zeros_like(size), size)
        off = xp.where(hit, doubt, confidence) ** 2
    else:
        positive, above = x, x >= 0.5
        confidence = xp.where(above, x, 1.0 - x)
        confidence = _nan_unless((x >= 0.0) & (x <= 1.0), confidence)
        doubt, hit = -confidence, above == is_positive
        nll = xp.where(is_positive, _surprise(x), _surprise_at_rest(x))
        off = xp.where(is_positive, 1.0 - x, x) ** 2
    hit, is_positive = (xp.astype(mask, xp.float64) for mask in (hit, is_positive))
    every = (confidence, doubt, hit, nll, 2.0 * off, positive, is_positive, off)
    return xp.stack(every, axis=1)


def _entries(x: Array, ids: Array) -> Array:
    """Return entry ``ids[i]`` of each row i of ``x`` (m, k)."""
    return arrays.namespace(x, ids).take_along_axis(x, ids[:, None], axis=1)[:, 0]


def _nan_unless(mask: Array, x: Array) -> Array:
    xp = arrays.namespace(x)
    return xp.where(mask, x, xp.full_like(x, xp.nan))


def _surprise(p: Array) -> Array:
    """Return -log p, infinite where p is 0."""
    xp = arrays.namespace(p)
    some = p > 0.0
    log = xp.log(xp.where(some, p, xp.ones_like(p)))
    return xp.where(some, -log, xp.full_like(p, xp.inf))


def _surprise_at_rest(p: Array) -> Array:
    """Return -log(1 - p), infinite where p is 1."""
    xp = arrays.namespace(p)
    some = p < 1.0
    log = xp.log1p(-xp.where(some, p, xp.zeros_like(p)))
    return xp.where(some, -log, xp.full_like(p, xp.inf))
