"""Curves of scores as metrics: exact points, few of them, and bands that hold the whole curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from pipeline import metrics
from pipeline.engine import run
from pipeline.errors import ConfigError
from pipeline.store import ArraySplit
from pipeline.testing.strategies import LAW
from pipeline.views import Stored

POSITIVE = Stored("positive")


def drawn(metric: Any, scores: Any, positive: Any) -> Any:
    split = ArraySplit(arrays={"scores": scores, "positive": positive}, chunk_rows=100_000)
    return run({"it": metric}, split)["it"]


def vertices(scores: Any, positive: Any, side: str) -> tuple[Any, Any]:
    """Return all rows found and raised, from scikit-learn's rates."""
    labels, signed = (positive, scores) if side == "ood" else (~positive, -scores)
    fpr, tpr, _ = sk.roc_curve(labels, signed, drop_intermediate=False)
    return np.rint(tpr * labels.sum()), np.rint(fpr * (~labels).sum())


def overlapping(rows: int, digits: int = 9) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    positive = rng.random(rows) < 0.3
    return (rng.standard_normal(rows) + positive).round(digits), positive


scores = st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=1, max_size=60)


@LAW
@given(scores, st.sampled_from(["ood", "id"]))
def test_small_curves_have_every_vertex(given_: list[tuple[int, bool]], side: str) -> None:
    values = np.array([float(s) for s, _ in given_])
    positive = np.array([p for _, p in given_])
    roc = drawn(metrics.ROC(positive=side, is_ood=POSITIVE), values, positive)
    pr = drawn(metrics.PrecisionRecall(positive=side, is_ood=POSITIVE), values, positive)
    assert roc.band is pr.band is None
    if positive.all() or not positive.any():
        assert len(roc.curve.fpr) == len(pr.curve.recall) == 0
        return
    found, raised = vertices(values, positive, side)
    np.testing.assert_allclose(roc.curve.tpr, found / found[-1], rtol=1e-15)
    np.testing.assert_allclose(roc.curve.fpr, raised / raised[-1], rtol=1e-15)
    np.testing.assert_allclose(pr.curve.recall, found[1:] / found[-1], rtol=1e-15)
    np.testing.assert_allclose(pr.curve.precision, found[1:] / (found + raised)[1:], rtol=1e-15)
    assert (roc.positives, roc.negatives) == (found[-1], raised[-1])


@pytest.mark.parametrize("side", ["ood", "id"])
@pytest.mark.parametrize("rows", [5_000, 200_000])
def test_long_curves_keep_few_points_and_move_none(rows: int, side: str) -> None:
    values, positive = overlapping(rows)
    found, raised = vertices(values, positive, side)
    every = set(zip(found.tolist(), raised.tolist(), strict=True))
    roc = drawn(metrics.ROC(positive=side, is_ood=POSITIVE, max_points=500), values, positive)
    assert roc.band is None
    assert 400 < len(roc.curve.fpr) <= 500
    kept = [np.rint(roc.curve.tpr * found[-1]), np.rint(roc.curve.fpr * raised[-1])]
    assert set(zip(*(x.tolist() for x in kept), strict=True)) <= every
    assert (roc.curve.fpr[0], roc.curve.tpr[0], roc.curve.fpr[-1], roc.curve.tpr[-1]) == (
        0,
        0,
        1,
        1,
    )
    marked = float(roc.curve.fpr[np.argmax(roc.curve.tpr >= 0.95)])
    rate = drawn(metrics.FPRAtTPR(positive=side, is_ood=POSITIVE), values, positive)
    assert marked == float(next(iter(rate.values())))
    area = float(np.trapezoid(roc.curve.tpr, roc.curve.fpr))
    exact = float(drawn(metrics.AUROC(is_ood=POSITIVE), values, positive)["auroc"])
    assert area == pytest.approx(exact, abs=1e-4)


def test_a_corner_is_kept() -> None:
    """Equal scores make one long straight piece among ten thousand short ones."""
    values = np.concatenate(
        [np.linspace(5, 9, 10_000), np.zeros(10_000), np.linspace(-9, -5, 10_000)]
    )
    positive = np.concatenate(
        [np.arange(10_000) % 9 > 0, np.arange(10_000) < 3, np.zeros(10_000) > 0]
    )
    roc = drawn(metrics.ROC(is_ood=POSITIVE, max_points=40), values, positive).curve
    found, raised = vertices(values, positive, "ood")
    corner = int(np.argmax(np.diff(raised)))
    for place in (corner, corner + 1):
        off = np.abs(roc.fpr - raised[place] / raised[-1]) + np.abs(
            roc.tpr - found[place] / found[-1]
        )
        assert off.min() < 2e-4  # two of twenty thousand steps; even distances leave 0.05


@pytest.mark.parametrize(
    "way", [{"budget": 2**12}, {"budget": 2**12, "bins": 300}, {"fixed": True}]
)
@pytest.mark.parametrize("side", ["ood", "id"])
@pytest.mark.parametrize("digits", [1, 9])
def test_bands_hold_the_whole_curve(side: str, way: dict[str, Any], digits: int) -> None:
    values, positive = overlapping(20_000, digits)
    found, raised = vertices(values, positive, side)
    tpr, fpr = found / found[-1], raised / raised[-1]
    roc = drawn(metrics.ROC(positive=side, is_ood=POSITIVE, **way), values, positive)
    if roc.band is None:
        assert digits == 1
        return
    assert (np.diff(roc.band.across) >= 0).all()
    assert_within(roc.band, fpr, tpr)
    pr = drawn(metrics.PrecisionRecall(positive=side, is_ood=POSITIVE, **way), values, positive)
    assert_within(pr.band, tpr[1:], found[1:] / (found + raised)[1:])
    assert len(pr.curve.recall) <= 2000


def assert_within(band: Any, across: Any, up: Any) -> None:
    """Fail unless each point is in one of the boxes that meet at its place."""
    starts, stops = band.across[::2], band.across[1::2]
    for x, y in zip(across.tolist(), up.tolist(), strict=True):
        boxes = np.flatnonzero((starts <= x + 1e-12) & (x <= stops + 1e-12))
        lower = np.minimum(band.lower[::2], band.lower[1::2])[boxes]
        upper = np.maximum(band.upper[::2], band.upper[1::2])[boxes]
        assert ((lower <= y + 1e-12) & (y <= upper + 1e-12)).any()


def test_more_bins_make_a_narrower_band() -> None:
    values, positive = overlapping(20_000)
    areas = []
    for bins in (10, 100, 1000):
        metric = metrics.ROC(is_ood=POSITIVE, budget=2**12, bins=bins)
        band = drawn(metric, values, positive).band
        areas.append(float(np.trapezoid(band.upper - band.lower, band.across)))
    assert areas == sorted(areas, reverse=True)
    assert areas[-1] < 0.003


def test_collections_draw_curves_of_batches() -> None:
    values, positive = overlapping(500)
    live = metrics.Collection(["roc", "precision_recall"], task="binary")
    for start in range(0, 500, 64):
        live.update(values[start : start + 64], positive[start : start + 64].astype(int))
    found = live.compute()
    whole = drawn(metrics.ROC(is_ood=POSITIVE), values, positive)
    np.testing.assert_array_equal(found["roc"].curve.fpr, whole.curve.fpr)
    assert set(found) == {"roc", "precision_recall"}


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_points: 2"):
        metrics.ROC(max_points=2)
    with pytest.raises(ConfigError, match="precision_recall has no multiclass task"):
        metrics.PrecisionRecall(task="multiclass")
