"""Metrics of scores that do not fit into memory: bounds that hold the exact number, and exactness.

Exact numbers are fractions from the definition, over every threshold.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline import metrics
from pipeline.content import replaced
from pipeline.engine import rehearse, run_jobs
from pipeline.errors import ConfigError
from pipeline.jobs import Job, Trace
from pipeline.procedure import Estimate
from pipeline.store import ArraySplit
from pipeline.testing import recipes
from pipeline.testing.strategies import LAW
from pipeline.views import Stored

POSITIVE = Stored("positive")


class Curve:
    """Every threshold of some scores, surest first, with the rows found and raised at it."""

    def __init__(self, scores: Any, positive: Any, side: str) -> None:
        if side == "id":
            scores, positive = -scores, ~positive
        self.thresholds = sorted({float(s) + 0.0 for s in scores}, reverse=True)
        self.found = [int(positive[scores >= t].sum()) for t in self.thresholds]
        self.raised = [int((~positive)[scores >= t].sum()) for t in self.thresholds]
        self.hits, self.misses = int(positive.sum()), int((~positive).sum())
        if side == "id":
            self.thresholds = [-t for t in self.thresholds]

    @property
    def steps(self) -> list[tuple[int, Fraction, Fraction]]:
        """Rows that each threshold adds, its precision, and that of the one before."""
        found = here = Fraction(0)
        before, here = Fraction(1), Fraction(1)
        steps = []
        for f, r in zip(self.found, self.raised, strict=True):
            before, here = here, Fraction(f, f + r)
            steps.append((int(f - found), here, before))
            found = Fraction(f)
        return steps


def area_under_roc(curve: Curve) -> Fraction:
    points = [(0, 0), *zip(curve.found, curve.raised, strict=True)]
    area = sum((r1 - r0) * Fraction(f0 + f1, 2) for (f0, r0), (f1, r1) in pairwise(points))
    return Fraction(area) / (curve.hits * curve.misses)


def average_precision(curve: Curve) -> Fraction:
    return sum((step * here for step, here, _ in curve.steps), Fraction(0)) / curve.hits


def trapezoid(curve: Curve) -> Fraction:
    terms = (step * (here + before) / 2 for step, here, before in curve.steps)
    return sum(terms, Fraction(0)) / curve.hits


def fpr_at(curve: Curve, tpr: float) -> Fraction:
    share = Fraction(str(tpr))
    points = zip(curve.found, curve.raised, strict=True)
    return next(Fraction(r, curve.misses) for f, r in points if Fraction(f, curve.hits) >= share)


def tpr_at(curve: Curve, fpr: float) -> Fraction:
    share = Fraction(str(fpr))
    points = zip([0, *curve.found], [0, *curve.raised], strict=True)
    return max(Fraction(f, curve.hits) for f, r in points if Fraction(r, curve.misses) <= share)


def best(curve: Curve, quotient: Any) -> tuple[Fraction, float]:
    values = [quotient(f, r) for f, r in zip(curve.found, curve.raised, strict=True)]
    return max(values), curve.thresholds[values.index(max(values))]


def exact_numbers(scores: Any, positive: Any, side: str) -> dict[str, Fraction | float]:
    """Return every number of the metrics below, from the definition."""
    high, own = Curve(scores, positive, "ood"), Curve(scores, positive, side)
    gap, gap_at = best(high, lambda f, r: Fraction(f, high.hits) - Fraction(r, high.misses))
    f1, f1_at = best(own, lambda f, r: Fraction(2 * f, f + r + own.hits))
    return {
        "auroc": area_under_roc(high),
        f"average_precision_{side}": average_precision(own),
        f"aupr_trapezoid_{side}": trapezoid(own),
        f"fpr_at_70tpr_{side}": fpr_at(own, 0.7),
        f"tpr_at_30fpr_{side}": tpr_at(own, 0.3),
        "detection_accuracy": (1 + gap) / 2,
        "detection_accuracy_threshold": gap_at,
        f"max_f1_{side}": f1,
        f"max_f1_threshold_{side}": f1_at,
    }


def all_of(side: str, **options: Any) -> dict[str, Any]:
    given = {"is_ood": POSITIVE, **options}
    return {
        "auroc": metrics.AUROC(**given),
        "ap": metrics.AveragePrecision(positive=side, **given),
        "trapezoid": metrics.AUPRTrapezoid(positive=side, **given),
        "fpr": metrics.FPRAtTPR(0.7, positive=side, **given),
        "tpr": metrics.TPRAtFPR(0.3, positive=side, **given),
        "accuracy": metrics.DetectionAccuracy(**given),
        "f1": metrics.MaxF1(positive=side, **given),
    }


def measured(
    scores: Any, positive: Any, side: str = "ood", trace: Trace | None = None, **options: Any
) -> dict[str, Estimate]:
    """Return the numbers of all metrics over scores in small chunks and blocks."""
    split = ArraySplit(
        arrays={"scores": scores, "positive": positive}, chunk_rows=20, block_rows=40
    )
    jobs = {name: Job(m, {"train": (split,)}) for name, m in all_of(side, **options).items()}
    outcomes = run_jobs(jobs, trace=trace)
    return {key: number for outcome in outcomes.values() for key, number in outcome.items()}


finite = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 2.0**-149, 1e300, -1e300, 1 - 2**-53]),
)


def drawn(data: Any) -> tuple[Any, Any]:
    count = data.draw(st.integers(1, 45))
    scores = data.draw(npst.arrays(np.float64, count, elements=finite))
    return scores, data.draw(npst.arrays(bool, count))


WAYS: list[dict[str, Any]] = [
    {"budget": 64},
    {"budget": 200},
    {"budget": 200, "bins": 1},
    {"budget": 200, "bins": 5},
    {"budget": 64, "bins": 1000},
    {"fixed": True},
]


@LAW
@given(data=st.data(), side=st.sampled_from(["ood", "id"]), way=st.sampled_from(WAYS))
def test_bounds_hold_the_exact_number(data: Any, side: str, way: dict[str, Any]) -> None:
    scores, positive = drawn(data)
    found = measured(scores, positive, side, **way)
    if positive.all() or not positive.any():
        assert all(math.isnan(number.value) and number.reason for number in found.values())
        return
    for key, exact in exact_numbers(scores, positive, side).items():
        number = found[key]
        assert number.lower <= number.value <= number.upper, key
        if number.exact:
            assert number.value == pytest.approx(float(exact), rel=1e-15, abs=0), key
        else:
            assert number.lower <= exact <= number.upper, key
    if way.get("bins") == 1000 and len(set(scores + 0.0)) == len(found):
        assert all(number.exact for number in found.values())


@LAW
@given(
    data=st.data(), side=st.sampled_from(["ood", "id"]), budget=st.sampled_from([64, 200, 10**6])
)
def test_exact_is_exact_whatever_the_memory(data: Any, side: str, budget: int) -> None:
    scores, positive = drawn(data)
    found = measured(scores, positive, side, budget=budget, exact=True)
    if positive.all() or not positive.any():
        assert all(math.isnan(number.value) and number.reason for number in found.values())
        return
    for key, exact in exact_numbers(scores, positive, side).items():
        assert found[key].exact, key
        assert found[key].lower == found[key].value == found[key].upper, key
        assert found[key].value == pytest.approx(float(exact), rel=1e-15, abs=0), key


def overlapping(rows: int = 5000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    positive = rng.random(rows) < 0.3
    return 1e8 + rng.standard_normal(rows) + positive, positive  # far from 0: few octaves


def test_more_bins_bring_the_bounds_together() -> None:
    scores, positive = overlapping()
    exact = measured(scores, positive)
    assert all(number.exact for number in exact.values())
    widths: dict[str, list[float]] = {key: [] for key in exact}
    for bins in (10, 100, 1000):
        for key, number in measured(scores, positive, bins=bins, budget=2**12).items():
            assert number.lower <= exact[key].value <= number.upper
            widths[key].append(number.upper - number.lower)
    for key in ("auroc", "average_precision_ood", "aupr_trapezoid_ood", "max_f1_ood"):
        assert widths[key] == sorted(widths[key], reverse=True), key
        assert widths[key][-1] < 5e-3, key


def test_ranges_are_read_one_after_the_other_and_let_go_of() -> None:
    scores, positive = overlapping()
    trace = Trace()
    found = measured(scores, positive, trace=trace, exact=True, budget=2**13)
    assert found == measured(scores, positive)
    assert len(trace.passes) in (6, 7)  # 40,000 bytes of scores, 8,192 at a time, and the first
    asked = [{s for work in p.works for s in work.statistics} for p in trace.passes]
    assert len(asked[0]) == 1
    assert not any(s.transient for s in asked[0])
    assert all(s.transient for later in asked[1:] for s in later)
    for later in trace.passes[1:]:
        assert ("auroc", "ap", "trapezoid") in later.asked_by.values()  # they share every range


def test_a_threshold_takes_one_more_pass() -> None:
    scores, positive = overlapping()
    for name in ("fpr", "tpr", "accuracy"):
        metric = all_of("ood", exact=True, budget=2**13)[name]
        split = ArraySplit(arrays={"scores": scores, "positive": positive})
        trace = Trace()
        outcome = run_jobs({name: Job(metric, {"train": (split,)})}, trace=trace)[name]
        assert all(number.exact for number in outcome.values())
        assert len(trace.passes) == 2, name


def test_heavy_bins_are_cut_again() -> None:
    """Most scores share all but their last bits: no coarse bin parts them."""
    rng = np.random.default_rng(1)
    scores = np.concatenate([1 + 2.0**-52 * rng.integers(0, 700, 2000), rng.normal(0, 1e9, 50)])
    positive = rng.random(len(scores)) < 0.5
    assert measured(scores, positive, exact=True, budget=2**10) == measured(scores, positive)


def test_the_plan_says_how_often_scores_are_read() -> None:
    data = recipes.Data({"scores": np.zeros(0, np.float32), "positive": np.zeros(0, bool)}, 2)

    class Large(recipes.CutSplit):
        @property
        def schema(self) -> Any:
            return replaced(data.schema, rows=10**8)

    for options, passes in (
        ({}, 1),
        ({"bins": 1000}, 2),
        ({"exact": True}, 4),
        ({"exact": True, "budget": 2**30}, 1),
        ({"fixed": True}, 1),
    ):
        metric = metrics.AUROC(is_ood=POSITIVE, **options)
        split = Large(data, ((0,),))
        found, _ = rehearse({"auroc": Job(metric, {"train": (split,)})})
        assert len(found) == passes, options


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="bins: 0"):
        metrics.AUROC(bins=0)
    with pytest.raises(ConfigError, match="expected 1 to 16,777,216"):
        metrics.AUROC(bins=10**12)
    with pytest.raises(ConfigError, match="exact and bins: these exclude each other"):
        metrics.AUROC(bins=5, exact=True)
    with pytest.raises(ConfigError, match="budget: 3 bytes"):
        metrics.AUROC(budget=3)
    with pytest.raises(ConfigError, match="task: 'multi' is unknown"):
        metrics.AUROC(task="multi")
    with pytest.raises(ConfigError, match="is_ood: a binary task is told its classes by labels"):
        metrics.AUROC(task="binary", is_ood=POSITIVE)
    with pytest.raises(ConfigError, match="label 1 is positive in a binary task"):
        metrics.MaxF1(task="binary", positive="id")
    with pytest.raises(ConfigError, match="fpr: expected a share"):
        metrics.TPRAtFPR(1)
    with pytest.raises(ConfigError, match="ignore: 'x'"):
        metrics.AUROC(ignore="x")
