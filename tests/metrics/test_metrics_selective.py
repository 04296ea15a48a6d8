"""Risk and coverage: every order of ties, worked numbers, bounds, and sums that are long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_metrics_calibration import data_of, kept, measured, softmax

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.metrics.selective import AURC, AURRA, RiskCoverage, _harmonic_step
from pipeline.testing import Data, MetricLaws
from pipeline.testing.drive import PLACES, at, outcome
from pipeline.testing.strategies import LAW, partitions

PROBABILITIES: Any = {"task": "binary", "kind": "probabilities"}


def of_order(wrong: Sequence[int]) -> Fraction:
    """Return the area for elements in one order, from the surest on."""
    errors = np.cumsum(wrong).tolist()
    return sum((Fraction(e, k + 1) for k, e in enumerate(errors)), Fraction()) / len(errors)


def expected(doubt: Any, wrong: Any) -> Fraction:
    """Return the mean area over all orders of equal doubts: each error may be anywhere in a tie."""
    total, taken, errors = Fraction(), 0, 0
    for value in np.unique(doubt):
        tied = np.asarray(doubt) == value
        m, e = int(tied.sum()), int(np.asarray(wrong)[tied].sum())
        total += sum(
            (Fraction(errors * m + e * j, m * (taken + j)) for j in range(1, m + 1)), Fraction()
        )
        taken, errors = taken + m, errors + e
    return total / taken


def doubted(doubt: Any, wrong: Any) -> Data:
    """Return rows with doubts of their own, and predictions that are right or wrong."""
    arrays = {"doubts": np.asarray(doubt, float), "labels": np.zeros(len(doubt), int)}
    return Data({**arrays, "predictions": np.asarray(wrong, int)}, 2)


class TestAURC(MetricLaws):
    metric: Any = AURC()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, y = kept(splits)
        others = np.sort(p, axis=1)[:, :-1].sum(axis=1)  # tells confidences that round to 1
        return {"aurc": float(expected(others.round(14), p.argmax(axis=1) != y))}


class TestAURRA(TestAURC):
    metric = AURRA()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"aurra": 1 - super().reference(splits)["aurc"]}


def test_worked_numbers_and_the_range_of_orders() -> None:
    confidence, right = np.array([0.9, 0.7, 0.7, 0.7, 0.2]), np.array([1, 0, 1, 1, 0])
    found = outcome(AURC(doubt="doubts"), doubted(-confidence, 1 - right).cut())["aurc"]
    assert found.value == pytest.approx(0.2077777777777778, rel=1e-15)
    orders = [of_order([0, *middle, 1]) for middle in permutations([1, 0, 0])]
    assert found.value == pytest.approx(float(sum(orders) / len(orders)), rel=1e-15)
    assert [round(float(x), 4) for x in (min(orders), max(orders))] == [0.13, 0.2967]


def test_pytorch_ood_aurra_does_not_depend_on_the_order_of_ties() -> None:
    """Its value is .25 or .75 for one confidence, one right and one wrong answer."""
    for wrong in ([0, 1], [1, 0]):
        data = doubted([-0.5, -0.5], wrong)
        assert outcome(AURRA(doubt="doubts"), data.cut())["aurra"].value == 0.5


@LAW
@given(data=st.data())
def test_ties_are_the_mean_over_orders(data: Any) -> None:
    n = data.draw(st.integers(1, 80))
    doubt = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    wrong = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    rows = doubted(doubt, wrong)
    found = outcome(AURC(doubt="doubts"), rows.cut(data.draw(partitions(n))))["aurc"]
    assert found.value == pytest.approx(float(expected(doubt, wrong)), rel=1e-14, abs=1e-15)
    assert found.lower == found.upper == found.value


@LAW
@given(data=st.data(), budget=st.integers(64, 500))
def test_bounds_hold_the_exact_value(data: Any, budget: int) -> None:
    n = data.draw(st.integers(20, 300))
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    doubt = rng.standard_normal(n).round(data.draw(st.sampled_from((0, 1, 17))))
    wrong = rng.random(n) < data.draw(st.sampled_from((0.0, 0.3, 1.0)))
    rows = doubted(doubt, wrong).cut([[n // 3], [n - n // 3]])
    found = outcome(AURC(doubt="doubts", budget=budget), rows)["aurc"]
    exact = float(expected(doubt, wrong))
    others = [
        outcome(AURC(doubt="doubts", budget=budget, exact=True), rows)["aurc"],
        outcome(AURC(doubt="doubts", budget=budget, bins=100_000), rows)["aurc"],
        outcome(AURC(doubt="doubts", fixed=True), rows)["aurc"],
    ]
    assert others[0].exact
    for one in (found, *others):
        assert one.lower <= one.value <= one.upper
        if one.exact:
            assert one.value == pytest.approx(exact, rel=1e-14, abs=1e-15)
        else:
            assert one.lower <= exact <= one.upper
    aurra = outcome(AURRA(doubt="doubts", budget=budget), rows)["aurra"]
    assert (aurra.lower, aurra.upper) == (1 - found.upper, 1 - found.lower)


def test_more_memory_brings_the_bounds_together() -> None:
    rng = np.random.default_rng(1)
    doubt = rng.standard_normal(20_000)
    wrong = rng.random(20_000) < 1 / (1 + np.exp(-doubt))
    rows = doubted(doubt, wrong).cut([[5000] * 4])
    exact = outcome(AURC(doubt="doubts"), rows)["aurc"].value
    widths = []
    for budget in (1_000, 10_000, 100_000):
        found = outcome(AURC(doubt="doubts", budget=budget), rows)["aurc"]
        assert found.lower <= exact <= found.upper
        widths.append(found.upper - found.lower)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 2e-3


@pytest.mark.parametrize("step", [1, 16, 17, 1000, 10**6])
def test_steps_of_harmonic_numbers(step: int) -> None:
    for start in (0, 1, 100, 511, 512, 10_000, 10**9, 10**12):
        terms = 1.0 / np.arange(start + 1, start + step + 1, dtype=np.float64)
        found = _harmonic_step(np.array([start]), np.array([start + step]))
        assert found[0] == pytest.approx(math.fsum(terms.tolist()), rel=2e-14)


def test_large_groups_of_ties_are_summed_in_closed_form() -> None:
    rng = np.random.default_rng(2)
    doubt = rng.integers(0, 4, 5000)
    wrong = rng.random(5000) < 0.2
    found = outcome(AURC(doubt="doubts"), doubted(doubt, wrong).cut())["aurc"].value
    assert found == pytest.approx(float(expected(doubt, wrong)), rel=1e-14)


def test_confidences_that_round_to_one_keep_their_order() -> None:
    f = np.array([[0.0, 40.0], [0.0, 50.0], [0.0, 60.0], [0.0, 45.0]])
    assert np.ptp(softmax(f).max(axis=1)) == 0
    found = measured(AURC(), [0, 1, 1, 1], f)["aurc"]
    assert found == pytest.approx(1 / 4 / 4)


def test_predictions_that_are_brought_decide() -> None:
    arrays = {
        "labels": np.array([0, 1, 1, -1]), "predictions": np.array([0, 1, 0, 5]),
        "logits": np.array([[0.0, 9.0], [9.0, 0.0], [0.0, 1.0], [0.0, 0.0]]),
    }  # fmt: skip
    data = Data(arrays, 2)
    assert outcome(AURC(), data.cut())["aurc"].value == pytest.approx(1 / 3 / 3)
    data = data.with_arrays(predictions=np.zeros((4, 2), int))
    with pytest.raises(DataError, match=r"rows of predictions have shape \(2,\)"):
        outcome(AURC(), data.cut())


def test_a_doubt_needs_predictions_or_scores() -> None:
    with pytest.raises(MissingInputError, match="AURC needs an array of logits"):
        outcome(AURC(), Data({"labels": np.array([0, 1])}, 2).cut())
    with pytest.raises(ConfigError, match="budget: 1 bytes"):
        AURC(budget=1)
    with pytest.raises(ConfigError, match="exact and bins: these exclude each other"):
        AURC(exact=True, bins=50)


def test_masks_are_as_their_elements() -> None:
    rng = np.random.default_rng(3)
    f = rng.standard_normal((4, 3, 5)).astype(np.float32)
    y = rng.integers(0, 3, (4, 5)).astype(np.uint8)
    y[0, :2] = 255
    flat, labels = np.moveaxis(f, 1, -1).reshape(-1, 3), y.reshape(-1)
    counts = labels < 255
    alone = measured(AURC(), labels[counts], flat[counts], 3)
    for cut in (None, [[1, 0], [3]]):
        assert measured(AURC(ignore=255), y, f, 3, cut) == pytest.approx(alone, rel=1e-14)


@pytest.mark.parametrize("library", PLACES)
def test_libraries_agree(library: str) -> None:
    rng = np.random.default_rng(4)
    p, y = softmax(rng.standard_normal((70, 3))), rng.integers(0, 3, 70)
    split = data_of(y, p, 3).cut([[30], [40]])
    metric = AURC(kind="probabilities")
    assert outcome(metric, split, at(PLACES[library])) == outcome(metric, split)


def test_the_curve_has_whole_ties_and_few_points() -> None:
    doubt, wrong = [1, 2, 2, 3, 3, 3], [0, 1, 0, 1, 1, 0]
    found = outcome(RiskCoverage(doubt="doubts"), doubted(doubt, wrong).cut())
    np.testing.assert_array_equal(found.coverage, [1 / 6, 3 / 6, 1])
    np.testing.assert_array_equal(found.risk, [0, 1 / 3, 3 / 6])
    rng = np.random.default_rng(5)
    rows = doubted(rng.random(3000), rng.random(3000) < 0.3)
    whole = outcome(RiskCoverage(doubt="doubts", max_points=3000), rows.cut())
    assert len(whole.coverage) == 3000
    few = outcome(RiskCoverage(doubt="doubts", max_points=40), rows.cut())
    assert 20 <= len(few.coverage) <= 40
    points = set(zip(whole.coverage.tolist(), whole.risk.tolist(), strict=True))
    kept = list(zip(few.coverage.tolist(), few.risk.tolist(), strict=True))
    assert points >= set(kept)
    assert kept[0] == (whole.coverage[0], whole.risk[0])
    assert kept[-1] == (1.0, whole.risk[-1])
    with pytest.raises(ConfigError, match="at least 2 points, got 1"):
        outcome(RiskCoverage(doubt="doubts", max_points=1), rows.cut())
