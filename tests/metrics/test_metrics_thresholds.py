"""Best thresholds, rates at rates and the trapezoid: laws, scikit-learn, labels, monotone maps."""

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
from pipeline.errors import DataError
from pipeline.statistics import Ranks
from pipeline.testing import Data, MetricLaws
from pipeline.testing.drive import outcome
from pipeline.testing.strategies import LAW


def whole(splits: Sequence[Data]) -> tuple[Any, Any]:
    scores = np.concatenate([part.arrays["scores"] for part in splits])
    return scores, np.concatenate([np.full(part.rows, int(part.is_ood)) for part in splits])


class OverlappingLaws(MetricLaws):
    """Scores with ties, both sides mixed."""

    def splits(self) -> Sequence[Data]:
        rng = np.random.default_rng(5)
        inside, outside = np.round(rng.normal(0, 1, 150), 1), np.round(rng.normal(1, 1, 70), 1)
        return (
            Data({"scores": inside}, 2, "id/test"),
            Data({"scores": outside}, 2, "ood/far", is_ood=True),
        )

    def undefined(self) -> Iterable[Sequence[Data]]:
        yield from ((part,) for part in self.splits())


class TestTrapezoidLaws(OverlappingLaws):
    metric = metrics.AUPRTrapezoid(positive="id")

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        scores, is_ood = whole(splits)
        precision, recall, _ = sk.precision_recall_curve(1 - is_ood, -scores)
        return {"aupr_trapezoid_id": sk.auc(recall, precision)}


class TestTPRAtFPRLaws(OverlappingLaws):
    metric = metrics.TPRAtFPR(0.1)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        scores, is_ood = whole(splits)
        fpr, tpr, _ = sk.roc_curve(is_ood, scores, drop_intermediate=False)
        return {"tpr_at_10fpr_ood": float(tpr[fpr <= 0.1].max())}


class TestDetectionAccuracyLaws(OverlappingLaws):
    metric = metrics.DetectionAccuracy()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        scores, is_ood = whole(splits)
        fpr, tpr, thresholds = sk.roc_curve(is_ood, scores, drop_intermediate=False)
        best = int(np.argmax(tpr - fpr))
        return {
            "detection_accuracy": 0.5 + float(tpr[best] - fpr[best]) / 2,
            "detection_accuracy_threshold": float(thresholds[best]),
        }


class TestMaxF1Laws(OverlappingLaws):
    metric = metrics.MaxF1()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        scores, is_ood = whole(splits)
        found = {t: sk.f1_score(is_ood, scores >= t) for t in np.unique(scores)}
        best = max(found, key=lambda t: (found[t], t))
        return {"max_f1_ood": found[best], "max_f1_threshold_ood": float(best)}


class TestMaxF1FromBelowLaws(OverlappingLaws):
    metric = metrics.MaxF1(positive="id")

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        scores, is_ood = whole(splits)
        found = {t: sk.f1_score(1 - is_ood, scores <= t) for t in np.unique(scores)}
        best = max(found, key=lambda t: (found[t], -t))
        return {"max_f1_id": found[best], "max_f1_threshold_id": float(best)}


class TestBinaryLaws(MetricLaws):
    """Labels 0 and 1 say which is which; label 0 and 1 alike may be ignored with others."""

    metric = metrics.AUROC(task="binary", ignore=-7)

    def splits(self) -> Sequence[Data]:
        rng = np.random.default_rng(6)
        labels = rng.integers(0, 2, 160)
        scores = np.round(rng.normal(labels, 1), 1)
        labels[::9] = -7
        return (Data({"scores": scores, "labels": labels}, 2, "id/test"),)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        scores, labels = (
            np.concatenate([part.arrays[name] for part in splits]) for name in ("scores", "labels")
        )
        return {"auroc": sk.roc_auc_score(labels[labels >= 0], scores[labels >= 0])}


def test_masks_count_by_pixel_and_labels_that_are_no_class_are_refused() -> None:
    rng = np.random.default_rng(7)
    masks, maps = rng.integers(0, 2, (8, 5, 4)).astype(np.uint8), rng.random((8, 5, 4)).round(1)
    masks[0, 0, :3] = 255
    data = Data({"scores": maps, "labels": masks}, 2, "id/test")
    kept = masks < 2
    for metric, theirs in (
        (metrics.AUROC, sk.roc_auc_score),
        (metrics.AveragePrecision, sk.average_precision_score),
    ):
        (found,) = outcome(metric(task="binary", ignore=255), data.cut([[3], [5]])).values()
        assert found.value == pytest.approx(theirs(masks[kept], maps[kept]), rel=1e-13)
    with pytest.raises(DataError, match=r"id/test: 3 labels are not 0 to 1, first in row 0: 255"):
        outcome(metrics.AUROC(task="binary"), data.cut())
    live = metrics.Collection(["auroc"], task="binary", ignore=255)
    live.update(maps, masks)
    expected = sk.roc_auc_score(masks[kept], maps[kept])
    assert live.compute()["auroc"].value == pytest.approx(expected, rel=1e-13)


EVERY = (
    metrics.AUROC(),
    metrics.AveragePrecision(),
    metrics.AveragePrecision(positive="id"),
    metrics.AUPRTrapezoid(),
    metrics.FPRAtTPR(),
    metrics.TPRAtFPR(),
    metrics.DetectionAccuracy(),
    metrics.MaxF1(),
    metrics.MaxF1(positive="id"),
)


def numbers(inside: Any, outside: Any) -> dict[str, float]:
    """Return all numbers but thresholds, which are scores."""
    splits = [
        Data({"scores": np.asarray(x)}, 2, name, is_ood).cut()
        for x, name, is_ood in ((inside, "id/test", False), (outside, "ood/far", True))
    ]
    found = [outcome(metric, splits) for metric in EVERY]
    return {k: v.value for one in found for k, v in one.items() if "threshold" not in k}


sides = st.lists(st.integers(-200, 200), min_size=1, max_size=40)


@LAW
@given(sides, sides, st.floats(0.01, 100), st.floats(-1e3, 1e3))
def test_monotone_maps_change_no_number(
    inside: list[int], outside: list[int], a: float, b: float
) -> None:
    parts = [np.array(side, np.float64) / 8 for side in (inside, outside)]
    expected = numbers(*parts)
    assert numbers(*(a * x + b for x in parts)) == expected
    assert numbers(*map(np.exp, parts)) == expected
    assert numbers(*(x.astype(np.float32) for x in parts)) == expected
    assert numbers(*(x.astype(np.float16) for x in parts)) == expected


def ranks(hits: Sequence[int], misses: Sequence[int]) -> Ranks:
    return Ranks(np.arange(float(len(hits))), np.array(misses), np.array(hits))


def test_rates_at_counts_beyond_2_to_the_53() -> None:
    """One row in 10^18 decides, and is not rounded away."""
    rows = 10**18
    one = ranks([1, rows - 1], [1, rows - 1])
    assert metrics.tpr_at_fpr(one, 1e-18).value == 0.0
    two = ranks([rows - 1, 1], [rows - 1, 1])
    assert metrics.tpr_at_fpr(two, 1e-18).value == float(Fraction(1, rows))
    assert metrics.fpr_at_tpr(two, 1e-18).value == float(Fraction(1, rows))


def test_trapezoid_and_rates_of_ranks() -> None:
    many = ranks([3, 0, 5, 2], [4, 1, 0, 1])
    scores = np.repeat([0, 1, 2, 3, 0, 1, 2, 3], [3, 0, 5, 2, 4, 1, 0, 1])
    labels = np.repeat([1, 0], [10, 6])
    precision, recall, _ = sk.precision_recall_curve(labels, scores)
    assert metrics.aupr_trapezoid(many).value == pytest.approx(sk.auc(recall, precision), rel=1e-15)
    assert metrics.tpr_at_fpr(many, 0.2).value == 0.7
    assert metrics.tpr_at_fpr(many, 0.1).value == 0.0
    assert math.isnan(metrics.tpr_at_fpr(ranks([0], [3])).value)
