"""Curves and histograms of scores: exact points, thinned without moving one, shared bins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from pipeline import metrics
from pipeline.errors import ConfigError
from pipeline.statistics import Ranks
from pipeline.testing.strategies import LAW


def ranks_from(inside: Any, outside: Any) -> Ranks:
    inside, outside = (np.asarray(side, np.float64) for side in (inside, outside))
    values, at = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    counts = (
        np.bincount(ids, minlength=len(values)).astype(np.int64)
        for ids in (at[: len(inside)], at[len(inside) :])
    )
    return Ranks(values, *counts)


def overlapping(rows: int = 20_000) -> Ranks:
    rng = np.random.default_rng(0)
    return ranks_from(rng.normal(0, 1, rows), rng.normal(1.5, 1, rows // 3))


scores = st.lists(st.integers(-20, 20), min_size=1, max_size=60)


@LAW
@given(scores, scores)
def test_roc_curve_has_every_vertex_of_scikit_learn(inside: list[int], outside: list[int]) -> None:
    curve = metrics.roc_curve(ranks_from(inside, outside))
    is_ood = np.repeat([0, 1], [len(inside), len(outside)])
    fpr, tpr, _ = sk.roc_curve(is_ood, [*inside, *outside], drop_intermediate=False)
    np.testing.assert_allclose(curve.fpr, fpr, rtol=1e-15)
    np.testing.assert_allclose(curve.tpr, tpr, rtol=1e-15)


@LAW
@given(scores, scores, st.sampled_from(["ood", "id"]))
def test_precision_recall_curve_equals_scikit_learn(
    inside: list[int], outside: list[int], positive: str
) -> None:
    ranks = ranks_from(inside, outside)
    curve = metrics.precision_recall_curve(ranks, positive)
    is_ood, every = np.repeat([0, 1], [len(inside), len(outside)]), np.array([*inside, *outside])
    labels, signed = (is_ood, every) if positive == "ood" else (1 - is_ood, -every)
    precision, recall, _ = sk.precision_recall_curve(labels, signed)
    np.testing.assert_allclose(curve.recall, recall[-2::-1], rtol=1e-15)
    np.testing.assert_allclose(curve.precision, precision[-2::-1], rtol=1e-15)
    area = float(np.sum(np.diff(curve.recall, prepend=0) * curve.precision))
    average = metrics.average_precision(ranks, positive).value
    assert area == pytest.approx(average, abs=1e-14)


@pytest.mark.parametrize("max_points", [3, 4, 50, 500])
@pytest.mark.parametrize("make", [metrics.roc_curve, metrics.precision_recall_curve])
def test_thinning_moves_no_point(make: Any, max_points: int) -> None:
    ranks = overlapping()
    whole, thin = make(ranks, max_points=10**9), make(ranks, max_points=max_points)
    assert len(whole[0]) > 20_000
    assert 3 <= len(thin[0]) <= max_points
    points = set(zip(*whole, strict=True))
    assert all(point in points for point in zip(*thin, strict=True))
    for whole_axis, thin_axis in zip(whole, thin, strict=True):
        assert (thin_axis[0], thin_axis[-1]) == (whole_axis[0], whole_axis[-1])


@pytest.mark.parametrize("max_points", [3, 17, 500])
def test_the_point_of_fpr95_is_always_kept(max_points: int) -> None:
    ranks = overlapping()
    curve = metrics.roc_curve(ranks, max_points)
    at = np.flatnonzero(curve.tpr >= 0.95)[0]
    assert curve.fpr[at] == metrics.fpr_at_tpr(ranks).value


def test_thinned_area_is_close_and_points_are_spread() -> None:
    ranks = overlapping()
    curve = metrics.roc_curve(ranks)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(metrics.auroc(ranks).value, abs=1e-4)
    assert np.diff(curve.fpr + curve.tpr).max() < 0.02


def test_curves_of_ties_and_of_one_side() -> None:
    curve = metrics.roc_curve(ranks_from([1, 1], [1]))
    assert (curve.fpr.tolist(), curve.tpr.tolist()) == ([0, 1], [0, 1])
    for ranks in (ranks_from([], [1, 2]), ranks_from([1, 2], []), ranks_from([], [])):
        for make in (metrics.roc_curve, metrics.precision_recall_curve):
            assert [axis.shape for axis in make(ranks)] == [(0,), (0,)]


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 3 points, got 2"):
        metrics.roc_curve(ranks_from([1], [2]), max_points=2)


@LAW
@given(
    st.lists(st.floats(allow_nan=False, min_value=-1e300, max_value=1e300), min_size=1, max_size=40)
    | st.lists(st.floats(allow_nan=False, min_value=5e-324), min_size=1, max_size=40),
    st.lists(st.floats(allow_nan=False, width=32, min_value=-8, max_value=8), max_size=40)
    | st.lists(st.floats(allow_nan=False, min_value=5e-324, max_value=8), max_size=40),
    st.integers(1, 30),
)
def test_histogram_counts_every_row_in_its_bin(
    inside: list[float], outside: list[float], bins: int
) -> None:
    found = metrics.histogram({"id": ranks_from(inside, []), "ood": ranks_from([], outside)}, bins)
    assert found.edges.shape == (bins + 1,)
    assert np.isfinite(found.edges).all()
    assert (np.diff(found.edges) > 0).all()
    low, high = found.edges[[0, -1]]
    for name, rows in (("id", inside), ("ood", outside)):
        assert found.counts[name].dtype == np.int64
        assert found.counts[name].sum() == len(rows)
        expected, _ = np.histogram(np.clip(rows, low, high), found.edges)
        np.testing.assert_array_equal(found.counts[name], expected)
        assert found.beyond[name] == (sum(s < low for s in rows), sum(s > high for s in rows))


def spread(low: float, high: float, rows: int = 2000) -> Any:
    return np.geomspace(low, high, rows)


def test_positive_scores_of_many_decades_have_geometric_bins() -> None:
    found = metrics.histogram(
        {"id": ranks_from(spread(1e-12, 1e-3), []), "ood": ranks_from([], spread(1e-6, 0.5))}, 60
    )
    assert found.scale == "log"
    assert found.edges[[0, -1]] == pytest.approx([1e-12, 0.5])
    ratios = found.edges[1:] / found.edges[:-1]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)
    assert found.counts["id"].max() < 70
    assert found.beyond == {"id": (0, 0), "ood": (0, 0)}


@pytest.mark.parametrize(
    ("shift", "factor", "scale"),
    [(0, 1e4, "log"), (0, 120, "log"), (0, 50, "linear"), (-1, 1e4, "linear")],
)
def test_scale_follows_the_spread_and_the_sign(shift: float, factor: float, scale: str) -> None:
    ranks = ranks_from(spread(1, factor) + shift, [])
    found = metrics.histogram({"all": ranks}, 60)
    assert found.scale == scale
    assert found.beyond["all"] == (0, 0)
    if scale == "linear":
        np.testing.assert_allclose(np.diff(found.edges), np.diff(found.edges)[0], rtol=1e-9)


@pytest.mark.parametrize("low", [0.0, -1e-9, -np.inf])
def test_one_score_that_is_not_positive_makes_bins_linear(low: float) -> None:
    found = metrics.histogram({"all": ranks_from([low, *spread(1e-9, 1)], [])}, 60)
    assert found.scale == "linear"
    assert found.counts["all"].sum() == 2001


@pytest.mark.parametrize("rows", [10, 300, 20_000])
@pytest.mark.parametrize("outlier", [1e12, -1e12, 1e300])
def test_an_outlier_does_not_squeeze_the_bulk(rows: int, outlier: float) -> None:
    bulk = np.random.default_rng(1).normal(50, 3, rows - 1)
    found = metrics.histogram({"id": ranks_from(bulk, []), "ood": ranks_from([], [outlier])}, 60)
    assert found.scale == "linear"
    low, high = found.edges[[0, -1]]
    assert bulk.min() <= low < high <= bulk.max()
    assert high - low > 0.5 * np.ptp(bulk)
    assert found.beyond["ood"] == (int(outlier < 0), int(outlier > 0))
    assert rows == 10 or found.beyond["id"] == (0, 0)
    assert found.counts["ood"][0 if outlier < 0 else -1] == 1


def test_a_tail_beyond_the_reach_counts_in_the_last_bin() -> None:
    found = metrics.histogram({"all": ranks_from(np.arange(1000), [990, 5000, 6000])}, 10)
    assert found.edges.tolist() == pytest.approx(np.linspace(0, 999, 11).tolist())
    assert found.beyond["all"] == (0, 2)
    assert found.counts["all"].tolist() == [100] * 9 + [103]


def test_log_bins_span_a_bounded_number_of_decades() -> None:
    ranks = ranks_from(spread(1e-200, 1), [5e-324, 1e-310])
    found = metrics.histogram({"all": ranks}, 60)
    assert found.scale == "log"
    assert found.edges[-1] == pytest.approx(1, rel=1e-12)
    assert 30 <= -np.log10(found.edges[0]) < 32
    below = int((ranks.values < found.edges[0]).sum())
    assert found.beyond["all"] == (below, 0)
    assert found.counts["all"][0] >= below > 1600


@pytest.mark.parametrize(
    ("rows", "scale"),
    [
        ([5e-324, 1e-323, 3e-320, 1e-310], "linear"),
        ([5e-324, 1e-310, 1e-300, 1e-290], "log"),
        ([5e-324, 1.7e308], "log"),
    ],
)
def test_denormal_scores_have_bins(rows: list[float], scale: str) -> None:
    found = metrics.histogram({"all": ranks_from(rows, [])}, 60)
    assert found.scale == scale
    assert (np.diff(found.edges) > 0).all()
    assert found.counts["all"].sum() == len(rows)


def test_infinite_scores_count_in_the_last_geometric_bin() -> None:
    found = metrics.histogram({"all": ranks_from(spread(1, 1e6), [np.inf] * 900)}, 6)
    assert found.scale == "log"
    assert found.edges == pytest.approx(10.0 ** np.arange(7))
    assert found.counts["all"].sum() == 2900
    assert found.beyond["all"] == (0, 900)


def test_scores_equal_but_for_a_few_keep_their_range() -> None:
    found = metrics.histogram({"all": ranks_from([0] * 999, [8])}, 4)
    assert found.edges.tolist() == [0, 2, 4, 6, 8]


def test_histogram_bins_are_shared_and_span_the_union() -> None:
    found = metrics.histogram({"a": ranks_from([0, 1, 1], []), "b": ranks_from([], [9, 10])}, 10)
    assert found.edges.tolist() == list(range(11))
    assert found.counts["a"].tolist() == [1, 2, *[0] * 8]
    assert found.counts["b"].tolist() == [*[0] * 9, 2]


def test_infinite_scores_count_in_the_end_bins() -> None:
    ranks = ranks_from([-np.inf, 0, 4], [2, np.inf, np.inf])
    found = metrics.histogram({"all": ranks}, 4)
    assert found.edges.tolist() == [0, 1, 2, 3, 4]
    assert found.counts["all"].tolist() == [2, 0, 1, 3]
    assert found.beyond["all"] == (1, 2)
    only = metrics.histogram({"all": ranks_from([-np.inf], [np.inf])}, 2)
    assert only.edges.tolist() == [-0.5, 0, 0.5]
    assert only.counts["all"].tolist() == [1, 1]


@pytest.mark.parametrize("score", [0.0, 1.0, -3e7, 1e17, 1e-300])
def test_constant_scores_have_bins(score: float) -> None:
    found = metrics.histogram({"all": ranks_from([score] * 3, [score])}, 5)
    assert (np.diff(found.edges) > 0).all()
    assert found.counts["all"].sum() == 4
    assert (found.scale, found.beyond["all"]) == ("linear", (0, 0))


def test_scores_a_few_units_in_the_last_place_apart() -> None:
    near = [1e16, 1e16 + 2]
    found = metrics.histogram({"all": ranks_from(near, [])}, 60)
    assert (np.diff(found.edges) > 0).all()
    assert found.counts["all"].sum() == 2


def test_no_rows_at_all() -> None:
    found = metrics.histogram({"all": ranks_from([], [])}, 2)
    assert found.counts["all"].tolist() == [0, 0]
    assert np.isfinite(found.edges).all()


def test_one_side_of_shared_ranks() -> None:
    """A pair of sets gives the histograms of both, over the bins of the rows shown."""
    pair = ranks_from([0, 1, 1], [1, 5])
    inside, outside = metrics.one_side(pair, "id"), metrics.one_side(pair, "ood")
    found = metrics.histogram({"id": inside, "ood": outside}, 5)
    assert found.counts["id"].tolist() == [1, 2, 0, 0, 0]
    assert found.counts["ood"].tolist() == [0, 1, 0, 0, 1]
    assert metrics.histogram({"id": inside}, 2).edges.tolist() == [0, 0.5, 1]
    with pytest.raises(ConfigError, match="side: 'near' is unknown"):
        metrics.one_side(pair, "near")


def test_counts_beyond_float64_stay_whole() -> None:
    counts = np.array([2**53 + 1, 2**53 + 1], np.int64)
    ranks = Ranks(np.array([0.0, 1.0]), counts, np.zeros_like(counts))
    assert metrics.histogram({"all": ranks}, 1).counts["all"].tolist() == [2**54 + 2]
