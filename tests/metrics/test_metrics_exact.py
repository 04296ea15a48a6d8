"""Metrics of classes at counts of 10^12 and beyond, against fractions; and what must not matter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import metrics
from pipeline.metrics.estimates import root_quotient, whole_numbers
from pipeline.statistics import ClassCounts, ClassSums
from pipeline.testing.memory_laws import peak
from pipeline.testing.strategies import LAW

RATIOS = ("precision", "recall", "specificity", "npv", "f1", "dice", "iou")


def counts_of(matrix: Any) -> ClassCounts:
    """Return the margins of a matrix of Python integers."""
    columns = list(zip(*matrix, strict=True))
    return ClassCounts(
        np.array([row[i] for i, row in enumerate(matrix)], np.int64),
        np.array([sum(row) for row in matrix], np.int64),
        np.array([sum(column) for column in columns], np.int64),
    )


def distances_of(matrix: Any) -> Any:
    apart = [0] * len(matrix)
    for i, row in enumerate(matrix):
        for j, count in enumerate(row):
            apart[abs(i - j)] += count
    return np.array(apart, np.int64)


@st.composite
def matrices(draw: Any) -> list[list[int]]:
    """Draw matrices of which some cells are large, some small and many are nought."""
    k = draw(st.integers(2, 4))
    cell = st.one_of(
        st.just(0), st.integers(0, 3), st.integers(10**12, 10**12 + 9), st.integers(0, 10**17)
    )
    return draw(st.lists(st.lists(cell, min_size=k, max_size=k), min_size=k, max_size=k))  # type: ignore[no-any-return]


def rounded_root(square: Fraction, sign: int) -> float:
    """Return the float64 nearest the root of a fraction, by bisection between neighbours."""
    near = math.sqrt(square)
    steps = [near]
    for _ in range(3):
        steps = [math.nextafter(steps[0], 0.0), *steps, math.nextafter(steps[-1], 2.0)]
    below = max((x for x in steps if Fraction(x) ** 2 <= square), default=0.0)
    above = math.nextafter(below, 2.0)
    middle = (Fraction(below) + Fraction(above)) / 2
    return sign * (below if middle**2 > square else above)


@LAW
@given(matrices())
def test_mcc_is_correctly_rounded(matrix: list[list[int]]) -> None:
    found = metrics.mcc(counts_of(matrix))
    t, p = [sum(row) for row in matrix], [sum(c) for c in zip(*matrix, strict=True)]
    n = sum(t)
    covariance = n * sum(row[i] for i, row in enumerate(matrix)) - sum(map(int.__mul__, t, p))
    product = (n * n - sum(x * x for x in t)) * (n * n - sum(x * x for x in p))
    if not product:
        assert math.isnan(found.value)
        assert found.reason
    else:
        sign = (covariance > 0) - (covariance < 0)
        assert found.value == rounded_root(Fraction(covariance**2, product), sign)
        assert found.lower == found.value == found.upper


@LAW
@given(matrices())
def test_kappa_is_correctly_rounded(matrix: list[list[int]]) -> None:
    counts, distances = counts_of(matrix), distances_of(matrix)
    t, p = [sum(row) for row in matrix], [sum(c) for c in zip(*matrix, strict=True)]
    cells = [(i, j) for i in range(len(t)) for j in range(len(t))]
    weights: dict[str, Callable[[int], int]] = {
        "none": lambda d: int(d > 0),
        "linear": lambda d: d,
        "quadratic": lambda d: d * d,
    }
    for weighting, weight in weights.items():
        found = metrics.kappa(counts, distances, weighting)
        expected = sum(weight(abs(i - j)) * t[i] * p[j] for i, j in cells)
        if not expected:
            assert math.isnan(found.value)
            continue
        observed = sum(weight(abs(i - j)) * matrix[i][j] for i, j in cells)
        assert found.value == float(1 - Fraction(sum(t) * observed, expected))


@LAW
@given(matrices())
def test_means_of_quotients_are_correctly_rounded(matrix: list[list[int]]) -> None:
    counts = counts_of(matrix)
    tp, t, p = (column.tolist() for column in counts)
    n = sum(t)
    quotients: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
        "precision": lambda tp, t, p: (tp, p),
        "recall": lambda tp, t, p: (tp, t),
        "specificity": lambda tp, t, p: (n - t - p + tp, n - t),
        "npv": lambda tp, t, p: (n - t - p + tp, n - p),
        "iou": lambda tp, t, p: (tp, t + p - tp),
        "dice": lambda tp, t, p: (2 * tp, t + p),
    }
    for name, of in quotients.items():
        pairs = [of(*one) for one in zip(tp, t, p, strict=True)]
        occur = [a + b > 0 for a, b in zip(t, p, strict=True)]
        defined = [Fraction(a, b) for (a, b), c in zip(pairs, occur, strict=True) if b and c]
        found = metrics.class_metric(name, counts)
        assert found[f"{name}_classes_averaged"].value == len(defined)
        if defined:
            assert found[f"{name}_mean"].value == float(sum(defined) / len(defined))
        weights = [w for w, (_, b) in zip(t, pairs, strict=True) if b]
        weighted = metrics.class_metric(name, counts, "weighted")[f"{name}_weighted"].value
        if sum(weights):
            parts = (w * Fraction(a, b) for w, (a, b) in zip(t, pairs, strict=True) if b)
            assert weighted == float(sum(parts, Fraction(0)) / sum(weights))


@pytest.mark.parametrize(("numerator", "left", "right"), [(1, 2, 1), (7, 10**40, 3), (-5, 3, 25)])
def test_roots_of_quotients(numerator: int, left: int, right: int) -> None:
    found = root_quotient(numerator, left, right, "never").value
    sign = -1 if numerator < 0 else 1
    assert found == rounded_root(Fraction(numerator**2, left * right), sign)
    assert root_quotient(0, left, right, "never").value == 0
    assert root_quotient(numerator, 0, right, "no spread").reason == "no spread"


def every_number(counts: Any, distances: Any) -> dict[str, float]:
    found = {
        "accuracy": metrics.accuracy(counts),
        "balanced": metrics.balanced_accuracy(counts),
        "adjusted": metrics.balanced_accuracy(counts, adjusted=True),
        "mcc": metrics.mcc(counts),
        "kappa": metrics.kappa(counts),
        "linear": metrics.kappa(counts, distances, "linear"),
        "quadratic": metrics.kappa(counts, distances, "quadratic"),
    }
    found |= {w: metrics.generalised_dice(counts, w) for w in ("square", "simple", "uniform")}
    for name in RATIOS:
        for average in ("macro", "micro", "weighted"):
            found |= metrics.class_metric(name, counts, average)
    return {name: number.value for name, number in found.items()}


SMALL = [[5, 1, 0, 2], [0, 3, 0, 0], [1, 0, 0, 0], [4, 0, 1, 7]]


def test_factors_of_all_counts_change_nothing() -> None:
    expected = every_number(counts_of(SMALL), distances_of(SMALL))
    for factor in (3, 10**12, 10**16 * 7):
        large = [[factor * count for count in row] for row in SMALL]
        assert every_number(counts_of(large), distances_of(large)) == expected


def test_absent_classes_change_no_number() -> None:
    """But two sums over the pairs of an element and a class it is not of: more of them."""
    wide = [[*row, 0, 0, 0] for row in SMALL] + [[0] * 7] * 3
    ours = every_number(counts_of(wide), distances_of(wide))
    theirs = every_number(counts_of(SMALL), distances_of(SMALL))
    differ = {name for name in ours if ours[name] != theirs[name]}
    assert differ == {"specificity_micro", "npv_micro"}


def test_permuted_classes_permute_their_numbers() -> None:
    order = [2, 0, 3, 1]
    moved = [[SMALL[i][j] for j in order] for i in order]
    ours, theirs = (
        every_number(counts_of(moved), distances_of(moved)),
        every_number(counts_of(SMALL), distances_of(SMALL)),
    )
    for name in ours:
        if name not in ("linear", "quadratic"):  # the order of classes means something there
            assert ours[name] == theirs[name] or math.isnan(ours[name]), name
    for name in RATIOS:
        found = metrics.class_metric(name, counts_of(moved), "none")
        before = metrics.class_metric(name, counts_of(SMALL), "none")
        for place, c in enumerate(order):
            np.testing.assert_equal(found[f"{name}_{place}"].value, before[f"{name}_{c}"].value)


def test_reversed_classes_leave_weighted_kappa() -> None:
    back = [row[::-1] for row in SMALL[::-1]]
    for weighting in ("linear", "quadratic"):
        ours = metrics.kappa(counts_of(back), distances_of(back), weighting)
        assert ours == metrics.kappa(counts_of(SMALL), distances_of(SMALL), weighting)


@pytest.mark.parametrize("exponent", [-60, 0, 200])
def test_sums_of_weights_end_as_whole_numbers(exponent: int) -> None:
    floats = np.array([0.1, 3.0, 0.0, 1e-9, 2.0**-52]) * 2.0**exponent
    (whole,) = whole_numbers(floats)
    ratios = [Fraction(int(x), int(whole[1])) for x in whole]
    assert ratios == [Fraction(x) / Fraction(floats[1]) for x in floats.tolist()]


def test_weights_that_are_whole_give_the_numbers_of_counts() -> None:
    counts = counts_of(SMALL)
    right = counts.true_positive
    sums = [right, counts.truth - right, counts.predicted - right, np.zeros(1)]
    weighted = ClassSums(*(x * 0.5 for x in sums))
    distances = distances_of(SMALL)
    assert every_number(weighted, distances * 0.5) == every_number(counts, distances)


MILLION = 1_000_000


def test_a_million_classes_need_little_memory_and_time() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, MILLION, 3 * MILLION)
    p = np.where(rng.random(len(y)) < 0.5, y, rng.integers(0, MILLION, len(y)))
    columns = (y[y == p], y, p)
    counts = ClassCounts(*(np.bincount(ids, minlength=MILLION) for ids in columns))
    distances = np.bincount(np.abs(y - p), minlength=MILLION)
    start = time.perf_counter()
    accuracy, coefficient = metrics.accuracy(counts).value, metrics.mcc(counts).value
    quadratic = metrics.kappa(counts, distances, "quadratic").value
    mean = metrics.class_metric("iou", counts)["iou_mean"].value
    each = metrics.class_metric("iou", counts, "none")
    dice = metrics.generalised_dice(counts).value
    assert time.perf_counter() - start < 60  # about 5 where nothing else runs
    assert accuracy == np.mean(y == p)
    assert coefficient == pytest.approx(accuracy, abs=1e-5)  # chance is right once in a million
    apart = np.square(y - p, dtype=float).mean()
    by_chance = np.square(y - rng.permutation(p), dtype=float).mean()
    assert quadratic == pytest.approx(1 - apart / by_chance, abs=0.01)
    assert len(each) == MILLION
    values = np.array([number.value for number in each.values()])
    assert mean == pytest.approx(np.nanmean(values), rel=1e-12)
    tp, t, either = (counts.true_positive, counts.truth, counts.truth + counts.predicted)
    weights = 1.0 / np.maximum(t, 1) ** 2
    assert dice == pytest.approx(2 * weights @ tp / (weights @ either), rel=1e-12)
    for one in (metrics.mcc, metrics.generalised_dice, partial(metrics.class_metric, "iou")):
        _, used = peak(one, counts)
        assert used < 25 * 8 * MILLION
