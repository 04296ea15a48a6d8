"""Metrics of scores: worked numbers, scikit-learn, public fault cases, ties, huge counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from pipeline import metrics
from pipeline.errors import ConfigError, DataError
from pipeline.statistics import Ranks
from pipeline.testing import Data, MetricLaws
from pipeline.testing.drive import outcome
from pipeline.testing.strategies import LAW
from pipeline.views import Stored


def ranks_from(inside: Any, outside: Any) -> Ranks:
    """Return ranks written from their definition."""
    inside, outside = (np.asarray(side, np.float64) for side in (inside, outside))
    values = np.unique(np.concatenate([inside, outside]))
    counts = ((side == values[:, None]).sum(axis=1) for side in (inside, outside))
    return Ranks(values, *counts)


def splits_of(inside: Any, outside: Any, dtype: str = "float64", chunk_rows: int = 1000) -> Any:
    parts = []
    for scores, name, is_ood in ((inside, "id/test", False), (outside, "ood/far", True)):
        if len(scores):
            data = Data({"scores": np.asarray(scores, dtype)}, 2, name, is_ood)
            sizes = [
                len(data.arrays["scores"][i : i + chunk_rows])
                for i in range(0, len(scores), chunk_rows)
            ]
            parts.append(data.cut([[size] for size in sizes]))
    return parts


def labelled(scores: Any, positive: Any) -> tuple[Any, Any]:
    scores, positive = np.asarray(scores, np.float64), np.asarray(positive)
    return scores[positive == 0], scores[positive == 1]


def table(inside: Any, outside: Any, **options: Any) -> dict[str, float]:
    """Return the numbers of the bundle over in- and out-of-distribution scores."""
    found = outcome(metrics.Ranking(), splits_of(inside, outside, **options))
    return {name: float(estimate) for name, estimate in found.items()}


def fpr_id(inside: Any, outside: Any) -> float:
    return float(metrics.fpr_at_tpr(ranks_from(inside, outside), positive="id"))


@pytest.mark.parametrize(
    ("inside", "outside", "auroc", "fpr95", "fpr95_id"),
    [
        ([0, 1, 1, 2], [1, 2, 3, 3], 0.84375, 0.75, 0.50),
        (range(10), [5, 5, 5, 20], 0.6625, 0.50, 0.75),
        (range(20), range(20), 0.5, 0.95, 0.95),
        ([3] * 4, [3] * 2, 0.5, 1.0, 1.0),
        ([10, 20, 30, 40], [25, 35, 45, 55], 0.8125, 0.5, 0.5),
        ([100, 110, 120, 130], [115, 125, 135, 145], 0.8125, 0.5, 0.5),
    ],
)
def test_worked_tables(
    inside: Any, outside: Any, auroc: float, fpr95: float, fpr95_id: float
) -> None:
    found = table(inside, outside)
    assert (found["auroc"], found["fpr95"]) == (auroc, fpr95)
    assert fpr_id(inside, outside) == fpr95_id


def test_a13_scores_are_not_probabilities() -> None:
    inside, outside = labelled([40, 41, 42, 43, 44, 45], [0, 0, 1, 0, 1, 1])
    assert table(inside, outside)["auroc"] == 8 / 9
    inside, outside = labelled([0.2, 0.3, 0.4, -2, 0.1, 5], [1, 1, 1, 0, 0, 1])
    for chunk_rows in (1, 3):
        assert table(inside, outside, chunk_rows=chunk_rows)["auroc"] == 1.0


def test_torchmetrics_2819_2195_and_anomalib_2003() -> None:
    scores = (
        "98.0950 98.4612 98.1145 98.1506 97.6037 98.9425 99.2644 99.5014 99.7280 99.6595 "
        "99.6931 99.4667 99.9623 99.8949 99.8768"
    )
    inside, outside = labelled([float(x) for x in scores.split()], [0] + [1] * 14)
    assert table(inside, outside)["auroc"] == 13 / 14
    inside, outside = labelled([-1, 0, 1], [1, 0, 1])
    assert table(inside, outside, chunk_rows=1)["auroc"] == 0.5
    steps = np.arange(-2, 2, 0.2).astype(np.float32)
    inside, outside = steps[steps <= 0], steps[steps > 0]
    assert table(inside, outside, dtype="float32", chunk_rows=1)["auroc"] == 1.0


def test_a15_one_class_is_nan_with_a_reason() -> None:
    scores = [0.1, 0.2, 0.3, 0.4]
    for inside, outside, reason in (
        (scores, [], "no out-of-distribution row"),
        ([], scores, "no in-distribution row"),
    ):
        for name, estimate in outcome(metrics.Ranking(), splits_of(inside, outside)).items():
            assert math.isnan(float(estimate)), name
            assert estimate.reason == reason
    for estimate in metrics.ranking_metrics(ranks_from([], [])).values():
        assert estimate.reason == "no in-distribution row and no out-of-distribution row"


def test_a15_a_chunk_of_one_class_changes_nothing() -> None:
    inside, outside = [0.1, 0.4, 0.4, 0.8], [0.2, 0.4, 0.9]
    assert table(inside, outside, chunk_rows=1) == table(inside, outside)


def test_a16_both_conventions() -> None:
    inside = -np.arange(1.0, 21.0)
    outside = -np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1.5, 2.5, 3.5, 18.5, 19.5])
    splits = splits_of(inside, outside)
    assert outcome(metrics.FPRAtTPR(0.95), splits)["fpr_at_95tpr_ood"].value == 0.95
    assert outcome(metrics.FPRAtTPR(0.95, positive="id"), splits)["fpr_at_95tpr_id"].value == 0.40
    out = outcome(metrics.AveragePrecision(), splits)["average_precision_ood"]
    inn = outcome(metrics.AveragePrecision(positive="id"), splits)["average_precision_id"]
    bundle = outcome(metrics.Ranking(), splits)
    assert (bundle["aupr_out"], bundle["aupr_in"]) == (out, inn)
    is_ood = np.repeat([0, 1], [20, 10])
    scores = np.concatenate([inside, outside])
    np.testing.assert_allclose(float(out), sk.average_precision_score(is_ood, scores), rtol=1e-14)
    theirs = sk.average_precision_score(1 - is_ood, -scores)
    np.testing.assert_allclose(float(inn), theirs, rtol=1e-14)


def test_average_precision_steps_where_the_trapezoid_is_too_high() -> None:
    inside, outside = labelled([0.1, 0.4, 0.4, 0.8, 0.4, 0.4], [0, 0, 1, 1, 0, 1])
    found = table(inside, outside)
    np.testing.assert_allclose(found["aupr_out"], 11 / 15, rtol=1e-15)
    assert found["auroc"] == 7 / 9
    found = table([2, 2, 2], [2, 2])
    assert (found["aupr_out"], found["aupr_in"]) == (0.4, 0.6)
    assert table([1] * 9_999, [1])["aupr_out"] == 0.0001


finite = st.one_of(
    st.integers(-3, 3).map(float),  # many ties
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from([-np.inf, np.inf, 0.0, -0.0, 5e-324, 1e300]),
)
two_sides = st.tuples(
    st.lists(finite, min_size=1, max_size=30), st.lists(finite, min_size=1, max_size=30)
)


def first_fpr(is_positive: Any, scores: Any, tpr: float) -> float:
    """Return the FPR at the first vertex with enough recall, from every vertex of the curve."""
    fpr, recall, _ = sk.roc_curve(is_positive, scores, drop_intermediate=False)
    needed = math.ceil(Fraction(str(tpr)) * int(is_positive.sum()))
    return float(fpr[np.rint(recall * is_positive.sum()) >= needed][0])


@LAW
@given(two_sides, st.sampled_from([0.05, 0.1, 0.5, 0.8, 0.95, 1.0]))
def test_agrees_with_scikit_learn(drawn: tuple[list[float], list[float]], tpr: float) -> None:
    inside, outside = drawn
    is_ood = np.repeat([0, 1], [len(inside), len(outside)])
    # scikit-learn refuses infinities: dense ranks hold the same order.
    scores = np.unique([*inside, *outside], return_inverse=True)[1].astype(float)
    ranks = ranks_from(inside, outside)
    ours = metrics.ranking_metrics(ranks)
    assert ours["auroc"].value == pytest.approx(sk.roc_auc_score(is_ood, scores), abs=1e-14)
    for key, labels, signed in (("aupr_out", is_ood, scores), ("aupr_in", 1 - is_ood, -scores)):
        theirs = sk.average_precision_score(labels, signed)
        np.testing.assert_allclose(ours[key].value, theirs, rtol=1e-14)
    for side, labels, signed in (("ood", is_ood, scores), ("id", 1 - is_ood, -scores)):
        theirs = first_fpr(labels, signed, tpr)
        np.testing.assert_allclose(metrics.fpr_at_tpr(ranks, tpr, side).value, theirs, rtol=1e-15)


@LAW
@given(two_sides)
def test_bit_for_bit_invariances(drawn: tuple[list[float], list[float]]) -> None:
    inside, outside = drawn
    ranks = ranks_from(inside, outside)
    ours = metrics.ranking_metrics(ranks)
    moved = ranks._replace(values=np.arange(len(ranks.values)) ** 3 - 1e9)
    assert metrics.ranking_metrics(moved) == ours
    flipped = ranks_from([-x for x in inside], [-x for x in outside])
    total = Fraction(metrics.auroc(flipped).value) + Fraction(ours["auroc"].value)
    assert float(total) == pytest.approx(1.0, abs=1e-15)
    exchanged = ranks_from([-x for x in outside], [-x for x in inside])
    assert metrics.auroc(exchanged) == ours["auroc"]
    assert metrics.average_precision(exchanged, "id") == ours["aupr_out"]
    assert metrics.fpr_at_tpr(exchanged, positive="id") == ours["fpr95"]
    assert metrics.fpr_at_tpr(ranks, 1.0).value >= ours["fpr95"].value


@pytest.mark.parametrize(
    "monotone", [np.exp, lambda s: 1e3 * s + 5e4, lambda s: s / 1e3 - 1, np.arctan]
)
def test_monotone_maps_of_the_scores_change_nothing(monotone: Any) -> None:
    rng = np.random.default_rng(0)
    inside, outside = np.round(rng.normal(0, 3, 200), 2), np.round(rng.normal(2, 3, 90), 2)
    assert table(monotone(inside), monotone(outside)) == table(inside, outside)


@pytest.mark.parametrize("tpr", [0.1, 0.2, 0.3, 0.6, 0.7, 0.9, 0.95, 0.99])
def test_the_share_is_the_decimal_that_was_written(tpr: float) -> None:
    """0.1 and 0.3 x 10 are above one and three in binary: one row more would be asked for."""
    rows = 100
    ranks = ranks_from(np.arange(rows) + 0.5, np.arange(rows))
    found = round(100 * tpr)
    assert metrics.fpr_at_tpr(ranks, tpr).value == found / 100


class TestHugeCounts:
    """More rows than float64 or products in int64 can hold; reference in Python fractions."""

    inside = (3 * 10**12, 1, 10**12 - 7, 0, 5)
    outside = (1, 10**12, 2 * 10**12 + 1, 7, 3 * 10**12)
    ranks = Ranks(np.arange(5.0), np.array(inside, np.int64), np.array(outside, np.int64))

    def auroc(self) -> Fraction:
        pairs = [
            p * n * (2 if i > j else 1 if i == j else 0)
            for i, p in enumerate(self.outside)
            for j, n in enumerate(self.inside)
        ]
        return Fraction(sum(pairs), 2 * sum(self.inside) * sum(self.outside))

    def average_precision(self, hits: Sequence[int], misses: Sequence[int]) -> Fraction:
        found = [sum(hits[: i + 1]) for i in range(5)]
        raised = [sum(misses[: i + 1]) for i in range(5)]
        terms = [Fraction(h * f, f + m) for h, f, m in zip(hits, found, raised, strict=True)]
        return sum(terms, Fraction(0)) / sum(hits)

    def test_exact(self) -> None:
        assert metrics.auroc(self.ranks).value == float(self.auroc())
        down_in, down_out = self.inside[::-1], self.outside[::-1]
        for found, exact in (
            (
                metrics.average_precision(self.ranks),
                self.average_precision(down_out, down_in),
            ),
            (
                metrics.average_precision(self.ranks, "id"),
                self.average_precision(self.inside, self.outside),
            ),
        ):
            assert found.value == pytest.approx(float(exact), rel=5e-16, abs=0)
        assert metrics.fpr_at_tpr(self.ranks, 0.5).value == 5 / sum(self.inside)
        assert metrics.fpr_at_tpr(self.ranks, 0.8).value == (10**12 - 2) / sum(self.inside)

    def test_one_row_in_a_quadrillion_is_seen(self) -> None:
        """Neighbouring integers above 2**53 are one float64."""
        rows = 2**53
        counts = np.array([rows - 1, 1], np.int64)
        ranks = Ranks(np.arange(2.0), counts, counts[::-1].copy())
        exact = Fraction(2 * (rows - 1) ** 2 + 2 * (rows - 1), 2 * rows * rows)
        assert metrics.auroc(ranks).value == float(exact)
        even = Ranks(np.zeros(1), np.array([rows + 1]), np.array([rows + 1]))
        assert metrics.auroc(even).value == 0.5

    def test_many_distinct_scores_of_huge_counts(self) -> None:
        m = 70_000
        counts = np.full(m, 10**9, np.int64)
        huge = Ranks(np.arange(float(m)), counts, counts)
        ones = Ranks(np.arange(float(m)), counts // 10**9, counts // 10**9)
        assert metrics.auroc(huge).value == metrics.auroc(ones).value == 0.5
        assert metrics.fpr_at_tpr(huge) == metrics.fpr_at_tpr(ones)


def test_names_say_rate_and_positive_class() -> None:
    assert metrics.FPRAtTPR().name == "fpr_at_95tpr_ood"
    assert metrics.FPRAtTPR(0.8, positive="id").name == "fpr_at_80tpr_id"
    assert metrics.FPRAtTPR(0.999).name == "fpr_at_99.9tpr_ood"
    assert metrics.FPRAtTPR(1).name == "fpr_at_100tpr_ood"
    assert metrics.FPRAtTPR(task="binary").name == "fpr_at_95tpr"
    assert metrics.TPRAtFPR(0.001, positive="id").name == "tpr_at_0.1fpr_id"


def test_unknown_options_are_named() -> None:
    for make in (metrics.FPRAtTPR, metrics.AveragePrecision):
        with pytest.raises(ConfigError, match="positive: 'out' is unknown; choose ood or id"):
            make(positive="out")
    for tpr in (0.0, 1.01, 95, math.nan):
        with pytest.raises(ConfigError, match="tpr: expected a share"):
            metrics.FPRAtTPR(tpr)


def test_one_statistic_for_all() -> None:
    schema = splits_of([1, 2], [3])[0].schema
    every = [
        metrics.AUROC(),
        metrics.AveragePrecision(positive="id"),
        metrics.AUPRTrapezoid(),
        metrics.FPRAtTPR(0.8),
        metrics.TPRAtFPR(),
        metrics.DetectionAccuracy(),
        metrics.MaxF1(),
        metrics.Ranking(),
    ]
    assert len({next(metric.passes(schema))["ranks"] for metric in every}) == 1


def test_ranks_have_room_for_the_rows_of_the_schema() -> None:
    schema = splits_of([1, 2], [3])[0].schema
    assert metrics.ranks_of(schema, Stored("scores")).max_rows == 2**16
    large = splits_of(np.zeros(2**16 + 1), [])[0].schema
    assert metrics.ranks_of(large, Stored("scores")).max_rows == 2**17
    assert metrics.ranks_of(large, Stored("scores"), max_rows=5).max_rows == 5


def test_nan_scores_are_refused() -> None:
    with pytest.raises(DataError, match=r"row 1\b|columns"):
        table([0.5, math.nan], [1.0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "int16", "uint8"])
def test_scores_of_any_dtype(dtype: str) -> None:
    assert table([0, 1, 1, 2], [1, 2, 3, 3], dtype=dtype)["auroc"] == 0.84375


def reference(splits: Sequence[Data]) -> Mapping[str, float]:
    scores = np.concatenate([part.arrays["scores"] for part in splits])
    is_ood = np.concatenate([np.full(part.rows, int(part.is_ood)) for part in splits])
    return {
        "auroc": sk.roc_auc_score(is_ood, scores),
        "aupr_out": sk.average_precision_score(is_ood, scores),
        "aupr_in": sk.average_precision_score(1 - is_ood, -scores),
        "fpr95": first_fpr(is_ood, scores, 0.95),
    }


class TestRankingLaws(MetricLaws):
    metric = metrics.Ranking()

    def undefined(self) -> Iterable[Sequence[Data]]:
        yield from ((part,) for part in self.splits())

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return reference(splits)


class TestOverlappingRankingLaws(TestRankingLaws):
    """Scores with ties, both sides mixed, so that no number is 0 or 1."""

    def splits(self) -> Sequence[Data]:
        rng = np.random.default_rng(5)
        inside, outside = np.round(rng.normal(0, 1, 150), 1), np.round(rng.normal(1, 1, 70), 1)
        return (
            Data({"scores": inside}, 2, "id/test"),
            Data({"scores": outside}, 2, "ood/far", is_ood=True),
        )

    def test_numbers_are_in_the_open(self) -> None:
        assert all(0.05 < x < 0.95 for x in self.reference(self.splits()).values())


class TestAUROCLaws(TestOverlappingRankingLaws):
    metric = metrics.AUROC()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"auroc": reference(splits)["auroc"]}


class TestAveragePrecisionLaws(TestOverlappingRankingLaws):
    metric = metrics.AveragePrecision(positive="id")

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"average_precision_id": reference(splits)["aupr_in"]}


class TestFPRAtTPRLaws(TestOverlappingRankingLaws):
    metric = metrics.FPRAtTPR(0.8)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        scores = np.concatenate([part.arrays["scores"] for part in splits])
        is_ood = np.concatenate([np.full(part.rows, int(part.is_ood)) for part in splits])
        return {"fpr_at_80tpr_ood": first_fpr(is_ood, scores, 0.8)}


def test_full_spectrum_counts_shifted_rows_as_inside() -> None:
    random = np.random.default_rng(0)
    inside, ood, *shifted = (np.round(random.normal(m, 1, 50), 1) for m in (0, 2, 0.5, 1))
    found = metrics.full_spectrum(
        ranks_from(inside, ood), [ranks_from(inside, one) for one in shifted]
    )
    whole = metrics.ranking_metrics(ranks_from(np.concatenate((inside, *shifted)), ood))
    assert found == {f"{name}_full": number for name, number in whole.items()}
