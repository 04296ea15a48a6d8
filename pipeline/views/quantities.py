"""What scores say of elements and of their labels: confidence, loss, error; formulas alone."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array

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


def multiclass(scores: Array, labels: Array, kind: str) -> Array:
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


def binary(scores: Array, labels: Array, kind: str) -> Array:
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
