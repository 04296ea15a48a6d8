"""Faults of metrics of scores that people reported elsewhere: the right values here.

Each test is named after the reports. Scores come in one chunk and row by row.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from pipeline import metrics
from pipeline.chunk import ArraySpec, Block, Chunk, Schema
from pipeline.engine import run
from pipeline.procedure import Estimate
from pipeline.store import ArraySplit
from pipeline.views import Stored

POSITIVE = Stored("positive")


def measured(metric: Any, scores: Any, labels: Any, chunk_rows: int = 10**6) -> dict[str, Any]:
    """Return the numbers of a metric; label 1 is what high scores speak for."""
    arrays = {"scores": np.asarray(scores), "positive": np.asarray(labels) == 1}
    split = ArraySplit(arrays=arrays, classes=0, chunk_rows=chunk_rows)
    return dict(run({"it": metric}, split)["it"])


def auroc(scores: Any, labels: Any, chunk_rows: int = 10**6) -> Estimate:
    found: Estimate = measured(metrics.AUROC(is_ood=POSITIVE), scores, labels, chunk_rows)["auroc"]
    return found


def live(name: str, batches: Sequence[tuple[Any, Any]]) -> float:
    """Return a number as a training loop has it."""
    collection = metrics.Collection([name], task="binary")
    for scores, labels in batches:
        collection.update(np.asarray(scores, np.float64), np.asarray(labels))
    return float(collection.compute()[name])


def sides(inside: Any, outside: Any) -> tuple[Any, Any]:
    scores = np.array([*inside, *outside], np.float64)
    return scores, np.repeat([0, 1], [len(inside), len(outside)])


@pytest.mark.parametrize("chunk_rows", [1, 7, 10**6])
def test_torchmetrics_2819_distances_near_100(chunk_rows: int) -> None:
    """0.5 there: sigmoids of the scores are all 1."""
    scores = (
        "98.0950 98.4612 98.1145 98.1506 97.6037 98.9425 99.2644 99.5014 99.7280 99.6595 "
        "99.6931 99.4667 99.9623 99.8949 99.8768"
    )
    drawn, labels = [float(x) for x in scores.split()], [0] + [1] * 14
    for dtype in (np.float32, np.float64):
        assert auroc(np.array(drawn, dtype), labels, chunk_rows).value == 13 / 14
    assert live("auroc", [(drawn, labels)]) == 13 / 14


def test_torchmetrics_2195_2329_1989_one_row_an_update() -> None:
    """1.0 there: whether scores are turned into sigmoids is decided update by update."""
    assert auroc([-1.0, 0.0, 1.0], [1, 0, 1], chunk_rows=1).value == 0.5
    assert live("auroc", [([-1.0], [1]), ([0.0], [0]), ([1.0], [1])]) == 0.5
    assert live("auroc", [([-1.0, 0.0, 1.0], [1, 0, 1])]) == 0.5


def test_anomalib_2003_scores_about_zero() -> None:
    """0.8990 there."""
    scores = np.arange(-2, 2, 0.2).astype(np.float32)
    labels = (scores > 0).astype(int)
    assert auroc(scores, labels, chunk_rows=1).value == 1.0
    assert live("auroc", [(scores[i : i + 1], labels[i : i + 1]) for i in range(20)]) == 1.0


def test_scikit_learn_6377_one_positive_among_equal_scores() -> None:
    scores, labels = np.zeros(10_000), np.arange(10_000) == 0
    ap = measured(metrics.AveragePrecision(is_ood=POSITIVE), scores, labels)
    trapezoid = measured(metrics.AUPRTrapezoid(is_ood=POSITIVE), scores, labels)
    assert ap["average_precision_ood"].value == 0.0001
    assert trapezoid["aupr_trapezoid_ood"].value == 0.50005
    assert live("average_precision", [(scores, labels.astype(int))]) == 0.0001


def test_pytorch_ood_144_scores_above_37() -> None:
    """0.5 there: sigmoids of float64 end at 37."""
    scores, labels = sides([100, 110, 120, 130], [115, 125, 135, 145])
    assert auroc(scores, labels).value == 0.8125
    assert auroc(scores.astype(np.float32), labels, chunk_rows=1).value == 0.8125


class TestTwoAreasUnderThePrecisionRecallCurve:
    """Average precision (scikit-learn, torchmetrics) and trapezoid (pytorch-ood, OpenOOD)."""

    def both(self, scores: Any, labels: Any, positive: str = "ood") -> tuple[float, float]:
        ap = measured(metrics.AveragePrecision(positive=positive, is_ood=POSITIVE), scores, labels)
        other = measured(metrics.AUPRTrapezoid(positive=positive, is_ood=POSITIVE), scores, labels)
        return (*(n.value for n in ap.values()), *(n.value for n in other.values()))  # type: ignore[return-value]

    def test_ties(self) -> None:
        scores, labels = [0.1, 0.4, 0.4, 0.8, 0.4, 0.4], [0, 0, 1, 1, 0, 1]
        assert self.both(scores, labels) == pytest.approx((11 / 15, 13 / 15), rel=1e-15)
        assert auroc(scores, labels).value == 7 / 9

    def test_all_tied(self) -> None:
        scores, labels = sides([2, 2, 2], [2, 2])
        assert self.both(scores, labels) == (0.4, 0.7)
        assert self.both(scores, labels, "id") == pytest.approx((0.6, 0.8), rel=1e-15)

    def test_the_trapezoid_is_that_of_scikit_learn_points(self) -> None:
        random = np.random.default_rng(0)
        scores, labels = random.random(300).round(2), random.integers(0, 2, 300)
        precision, recall, _ = sk.precision_recall_curve(labels, scores)
        assert self.both(scores, labels)[1] == pytest.approx(sk.auc(recall, precision), rel=1e-13)


CONVENTIONS = [
    ([0, 1, 1, 2], [1, 2, 3, 3], 0.84375, 0.75, 0.50),
    (range(10), [5, 5, 5, 20], 0.6625, 0.50, 0.75),
    (range(20), range(20), 0.5, 0.95, 0.95),  # 20 groups of ties, one row of each class
    ([3] * 4, [3] * 2, 0.5, 1.0, 1.0),
    ([10, 20, 30, 40], [25, 35, 45, 55], 0.8125, 0.5, 0.5),
    ([100, 110, 120, 130], [115, 125, 135, 145], 0.8125, 0.5, 0.5),
]
"""In- and out-of-distribution scores; AUROC, FPR95 of either positive class."""


@pytest.mark.parametrize(("inside", "outside", "area", "fpr_ood", "fpr_id"), CONVENTIONS)
@pytest.mark.parametrize("way", [{}, {"exact": True, "budget": 64}])
def test_both_conventions_of_out_of_distribution_tables(
    inside: Any, outside: Any, area: float, fpr_ood: float, fpr_id: float, way: dict[str, Any]
) -> None:
    scores, labels = sides(inside, outside)
    found: dict[str, Any] = {}
    for metric in (
        metrics.AUROC(is_ood=POSITIVE, **way),
        metrics.FPRAtTPR(is_ood=POSITIVE, **way),
        metrics.FPRAtTPR(positive="id", is_ood=POSITIVE, **way),
    ):
        found |= measured(metric, scores, labels, chunk_rows=1)
    values = {key: number.value for key, number in found.items()}
    assert values == {"auroc": area, "fpr_at_95tpr_ood": fpr_ood, "fpr_at_95tpr_id": fpr_id}


def test_a13_torchmetrics_2819_2195_anomalib_2337_3407_scores_are_not_probabilities() -> None:
    scores, labels = [40.0, 41, 42, 43, 44, 45], [0, 0, 1, 0, 1, 1]
    assert auroc(scores, labels).value == 8 / 9
    assert live("auroc", [(scores, labels)]) == 8 / 9
    first, second = ([0.2, 0.3, 0.4], [1, 1, 1]), ([-2.0, 0.1, 5], [0, 0, 1])
    assert live("auroc", [first, second]) == 1.0
    assert auroc(first[0] + second[0], first[1] + second[1], chunk_rows=3).value == 1.0


NAMES = ("auroc", "average_precision", "aupr_trapezoid", "fpr_at_tpr", "tpr_at_fpr", "max_f1")


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("name", [*NAMES, "detection_accuracy"])
def test_a15_torchmetrics_2494_scikit_learn_8245_19394_one_class_only(
    name: str, label: int
) -> None:
    """0.0 there for AUROC, -0.0 and 1.0 for average precision."""
    collection = metrics.Collection([name], task="binary")
    collection.update(np.array([0.1, 0.2, 0.3, 0.4]), np.full(4, label))
    for number in collection.compute().values():
        assert math.isnan(number.value)
        assert number.reason == f"no element with label {1 - label}"


def test_a15_a_batch_of_one_class_changes_nothing() -> None:
    scores, labels = [0.1, 0.4, 0.4, 0.8, 0.2, 0.4, 0.9], [0, 0, 0, 0, 1, 1, 1]
    batches = [([s], [y]) for s, y in zip(scores, labels, strict=True)]
    for name in ("auroc", "average_precision"):
        assert live(name, batches) == live(name, [(scores, labels)])


def test_a16_openood_308_211_ood_metrics_2_energy_ood_9_which_side_is_positive() -> None:
    """The same scores as confidences of in-distribution rows: outlierness is their negative."""
    inside = -np.arange(1.0, 21.0)
    outside = -np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1.5, 2.5, 3.5, 18.5, 19.5])
    scores, labels = sides(inside, outside)
    found: dict[str, Any] = {}
    for side in ("ood", "id"):
        for kind in (metrics.FPRAtTPR, metrics.AveragePrecision, metrics.AUPRTrapezoid):
            found |= measured(kind(positive=side, is_ood=POSITIVE), scores, labels)
    assert found["fpr_at_95tpr_ood"].value == 0.95
    assert found["fpr_at_95tpr_id"].value == 0.40
    for side, truth, signed in (("ood", labels, scores), ("id", 1 - labels, -scores)):
        theirs = sk.average_precision_score(truth, signed)
        assert found[f"average_precision_{side}"].value == pytest.approx(theirs, rel=1e-14)
        precision, recall, _ = sk.precision_recall_curve(truth, signed)
        ours = found[f"aupr_trapezoid_{side}"].value
        assert ours == pytest.approx(sk.auc(recall, precision), rel=1e-14)


class Steps:
    """The split of case A02: score i, positive by i % 4, the other way round from the middle on."""

    name, is_ood, chunk_rows = "id/test", False, 2**16

    def __init__(self, rows: int) -> None:
        arrays = {"scores": ArraySpec((), "float32"), "positive": ArraySpec((), "bool")}
        self.schema = Schema(rows, 0, arrays, self.name)
        size = min(rows // 10, 16_000)  # of one size where memory is compared
        self.blocks = [Block(i, i * size, (i + 1) * size) for i in range(rows // size)]

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        step = step_rows or self.chunk_rows
        for start in range(block.start, block.stop, step):
            i = np.arange(start, min(start + step, block.stop))
            fourth = i % 4 == 0
            positive = np.where(i < self.schema.rows // 2, fourth, ~fourth)
            contents = {"scores": i.astype(np.float32), "positive": positive}
            yield Chunk(self.schema, start, len(i), contents)

    def identity(self, block: Block, fields: frozenset[str]) -> None:
        return None


def stepped(rows: int, **options: Any) -> tuple[Estimate, int]:
    """Return AUROC over the steps, and the most memory that it held at once."""
    metric = metrics.AUROC(is_ood=POSITIVE, **options)
    tracemalloc.start()
    try:
        found = run({"it": metric}, Steps(rows))["it"]["auroc"]  # type: ignore[arg-type]
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a02_torchmetrics_95_625_1722_3299_exact_at_any_size() -> None:
    for rows in (1_600, 160_000, 1_600_000):
        found, _ = stepped(rows)
        assert (found.value, found.exact) == (0.75, True)
    found, _ = stepped(800_000, exact=True, budget=2**20)
    assert (found.value, found.exact) == (0.75, True)


@pytest.mark.parametrize("way", [{}, {"bins": 200}, {"fixed": True}])
def test_a02_memory_does_not_grow_and_the_bound_is_stated_and_holds(way: dict[str, Any]) -> None:
    stepped(8_000, budget=2**18, **way)  # what is made once and kept
    (small, before), (large, after) = (
        stepped(n, budget=2**18, **way) for n in (400_000, 1_600_000)
    )
    assert after < 1.25 * before
    for found in (small, large):
        assert not found.exact
        assert found.lower <= 0.75 <= found.upper
        assert found.upper - found.lower < 0.02
