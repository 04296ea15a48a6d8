"""Confidence intervals of single metrics, against their definitions over rows."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import metrics
from pipeline.engine import run
from pipeline.errors import ConfigError
from pipeline.store import ArraySplit
from pipeline.testing.strategies import LAW
from pipeline.views import Stored

POSITIVE = Stored("positive")


def numbers(metric: Any, negatives: Any, positives: Any) -> dict[str, Any]:
    scores = np.array([*negatives, *positives], np.float64)
    positive = np.arange(len(scores)) >= len(negatives)
    split = ArraySplit(arrays={"scores": scores, "positive": positive}, chunk_rows=50)
    return dict(run({"it": metric}, split)["it"])


def delong(negatives: Any, positives: Any, level: float) -> tuple[float, float]:
    """The definition: variances of the components of every row."""
    n, p = np.asarray(negatives, float), np.asarray(positives, float)
    wins = (p[:, None] > n) + 0.5 * (p[:, None] == n)
    variance = wins.mean(axis=1).var(ddof=1) / len(p) + wins.mean(axis=0).var(ddof=1) / len(n)
    reach = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance)
    return max(0.0, wins.mean() - reach), min(1.0, wins.mean() + reach)


whole = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=30)


@LAW
@given(whole, whole, st.sampled_from([0.5, 0.9, 0.95]))
def test_delong_is_the_variance_of_components(
    negatives: list[float], positives: list[float], level: float
) -> None:
    metric = metrics.AUROC(is_ood=POSITIVE, interval="delong", level=level)
    found = numbers(metric, negatives, positives)
    lower, upper = delong(negatives, positives, level)
    assert set(found) == {"auroc", "auroc_ci_lower", "auroc_ci_upper"}
    np.testing.assert_allclose(found["auroc_ci_lower"].value, lower, atol=1e-12)
    np.testing.assert_allclose(found["auroc_ci_upper"].value, upper, atol=1e-12)


def test_delong_needs_two_rows_of_a_class() -> None:
    metric = metrics.AUROC(is_ood=POSITIVE, interval="delong")
    found = numbers(metric, [0.0, 1.0], [2.0])
    assert found["auroc"].value == 1.0
    assert found["auroc_ci_lower"].reason == "a class has fewer than two rows"
    found = numbers(metric, [0.0, 1.0], [])
    assert found["auroc_ci_upper"].reason == "no out-of-distribution row"


def normal(rows: int = 400) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(0, 1, rows), rng.normal(1, 1, rows)


def test_bootstrap_agrees_with_delong_and_with_the_binomial_distribution() -> None:
    negatives, positives = normal()
    bootstrap = metrics.AUROC(is_ood=POSITIVE, interval="bootstrap", replicates=600)
    found = numbers(bootstrap, negatives, positives)
    lower, upper = delong(negatives, positives, 0.95)
    assert found["auroc_ci_lower"].value == pytest.approx(lower, abs=0.004)
    assert found["auroc_ci_upper"].value == pytest.approx(upper, abs=0.004)
    sure = [*negatives, -9.0], [8.0, 9.0]  # the threshold is 8 or 9: no negative row is beyond it
    metric = metrics.TPRAtFPR(0.0, is_ood=POSITIVE, interval="bootstrap", replicates=50)
    found = numbers(metric, *sure)
    assert [number.value for number in found.values()] == [1.0, 1.0, 1.0]


def test_bootstrap_draws_rows_of_either_class_anew() -> None:
    """One replicate after the other, by the rows themselves."""
    rng = np.random.default_rng(1)
    negatives, positives = (
        rng.integers(0, 4, 30).astype(float),
        rng.integers(1, 6, 20).astype(float),
    )
    kinds: dict[str, Any] = {
        "average_precision_ood": metrics.AveragePrecision,
        "fpr_at_95tpr_ood": metrics.FPRAtTPR,
        "max_f1_ood": metrics.MaxF1,
    }
    for name, kind in kinds.items():
        found = numbers(
            kind(is_ood=POSITIVE, interval="bootstrap", replicates=40, seed=5, level=0.8),
            negatives, positives,
        )  # fmt: skip
        assert {key for key in found if "_ci_" in key} == {f"{name}_ci_lower", f"{name}_ci_upper"}
        drawn = []
        values = np.unique([*negatives, *positives])
        for replicate in range(40):
            random = np.random.default_rng((5, replicate))
            sides = [
                np.repeat(values, random.multinomial(len(x), (x == values[:, None]).mean(axis=1)))
                for x in (negatives, positives)
            ]
            drawn.append(numbers(kind(is_ood=POSITIVE), *sides)[name].value)
        ends = np.quantile(drawn, [0.1, 0.9])
        np.testing.assert_allclose(found[f"{name}_ci_lower"].value, ends[0], rtol=1e-12)
        np.testing.assert_allclose(found[f"{name}_ci_upper"].value, ends[1], rtol=1e-12)


def test_more_scores_than_groups_are_drawn_among_groups() -> None:
    negatives, positives = normal(20_000)
    metric = metrics.AUROC(is_ood=POSITIVE, interval="bootstrap", replicates=60)
    found = numbers(metric, negatives, positives)
    lower, upper = delong(negatives[:2000], positives[:2000], 0.95)
    width = found["auroc_ci_upper"].value - found["auroc_ci_lower"].value
    assert width == pytest.approx((upper - lower) / math.sqrt(10), rel=0.4)
    assert found["auroc_ci_lower"].value < found["auroc"].value < found["auroc_ci_upper"].value


def test_the_same_seed_gives_the_same_interval() -> None:
    negatives, positives = normal(100)
    metric = metrics.AUROC(is_ood=POSITIVE, interval="bootstrap", replicates=20)
    assert numbers(metric, negatives, positives) == numbers(metric, negatives, positives)
    other = metrics.AUROC(is_ood=POSITIVE, interval="bootstrap", replicates=20, seed=1)
    assert numbers(metric, negatives, positives) != numbers(other, negatives, positives)


def test_intervals_are_there_beside_bounds_and_beside_exact_ranges() -> None:
    negatives, positives = normal(300)
    lower, upper = delong(negatives, positives, 0.95)
    for way in ({"budget": 1024}, {"budget": 1024, "exact": True}, {"fixed": True}):
        found = numbers(
            metrics.AUROC(is_ood=POSITIVE, interval="delong", **way), negatives, positives
        )
        assert found["auroc_ci_lower"].value == pytest.approx(lower, abs=0.01)
        assert found["auroc_ci_upper"].value == pytest.approx(upper, abs=0.01)


def test_options_are_checked() -> None:
    for options, complaint in (
        ({"interval": "normal"}, "interval: 'normal' is unknown here; choose bootstrap or delong"),
        ({"interval": "delong", "level": 1.0}, "level: 1.0"),
        ({"interval": "bootstrap", "replicates": 1}, "replicates: 1"),
        ({"interval": "bootstrap", "task": "multiclass"}, "class by class"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            metrics.AUROC(**options)
    with pytest.raises(ConfigError, match="choose bootstrap"):
        metrics.AveragePrecision(interval="delong")
