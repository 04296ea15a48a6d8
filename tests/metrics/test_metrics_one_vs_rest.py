"""Metrics of scores by class: each class against the rest, averages, several labels, live."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.special import softmax
from sklearn import metrics as sk

from pipeline import metrics
from pipeline.engine import run, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.jobs import Job, Trace
from pipeline.store import ArraySplit
from pipeline.testing.strategies import LAW

EVERY = ("macro", "weighted", "micro", "none")


def split_of(logits: Any, labels: Any, classes: int) -> ArraySplit:
    arrays = {"logits": logits, "labels": labels}
    return ArraySplit(arrays=arrays, classes=classes, chunk_rows=7, block_rows=21)


def numbers(metric: Any, logits: Any, labels: Any, classes: int) -> dict[str, Any]:
    return dict(run({"it": metric}, split_of(logits, labels, classes))["it"])


def drawn(rows: int = 300, classes: int = 5, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    logits = rng.standard_normal((rows, classes)).round(1)
    logits[np.arange(rows), labels] += 1
    return logits, labels


def assert_numbers(found: dict[str, Any], expected: dict[str, float]) -> None:
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key].value, value, rtol=1e-13, err_msg=key)
        assert found[key].exact


def by_class(name: str, of: Any, scores: Any, truth: Any) -> dict[str, float]:
    """Return all numbers from scikit-learn, class after class."""
    each = [of(truth[:, c], scores[:, c]) for c in range(scores.shape[1])]
    rows = truth.sum(axis=0)
    return {
        **{f"{name}_{c}": value for c, value in enumerate(each)},
        f"{name}_mean": float(np.mean(each)),
        f"{name}_classes_averaged": len(each),
        f"{name}_weighted": float(np.average(each, weights=rows)),
        f"{name}_micro": of(truth.ravel(), scores.ravel()),
    }


@pytest.mark.parametrize("options", [{}, {"exact": True, "budget": 4096}])
def test_agrees_with_scikit_learn(options: dict[str, Any]) -> None:
    logits, labels = drawn()
    hot = labels[:, None] == np.arange(5)
    found = numbers(metrics.AUROC(task="multiclass", average=EVERY, **options), logits, labels, 5)
    assert_numbers(found, by_class("auroc", sk.roc_auc_score, logits, hot))
    ap = metrics.AveragePrecision(task="multiclass", average=EVERY, **options)
    found = numbers(ap, logits, labels, 5)
    assert_numbers(found, by_class("average_precision", sk.average_precision_score, logits, hot))


def test_softmax_is_the_multiclass_auroc_of_scikit_learn() -> None:
    logits, labels = drawn()
    theirs = sk.roc_auc_score(labels, softmax(logits, axis=1), multi_class="ovr")
    ours = numbers(metrics.AUROC(task="multiclass", softmax=True), logits, labels, 5)
    assert ours["auroc_mean"].value == pytest.approx(theirs, abs=1e-12)
    raw = numbers(metrics.AUROC(task="multiclass"), logits, labels, 5)
    assert raw["auroc_mean"] != ours["auroc_mean"]


def test_softmax_keeps_the_order_where_probabilities_round_to_one() -> None:
    logits = np.array([[50.0, 0.0], [60.0, 0.0], [55.0, 0.0]])
    labels = np.array([1, 0, 0])
    found = numbers(metrics.AUROC(task="multiclass", softmax=True), logits, labels, 2)
    assert found["auroc_mean"].value == 1.0


def test_an_absent_class_is_nan_and_skipped() -> None:
    """torchmetrics gives [1, 1, 0] and 0.6667 here, torcheval [1, 1, 0.5] and 0.8333."""
    probabilities = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.2, 0.8, 0.0], [0.1, 0.9, 0.0]])
    labels = np.array([0, 0, 1, 1])
    metric = metrics.AUROC(task="multiclass", average=("none", "macro", "weighted"))
    found = numbers(metric, probabilities, labels, 3)
    assert [found[f"auroc_{c}"].value for c in (0, 1)] == [1.0, 1.0]
    assert math.isnan(found["auroc_2"].value)
    assert found["auroc_2"].reason == "no element of class 2"
    assert (found["auroc_mean"].value, found["auroc_classes_averaged"].value) == (1.0, 2.0)
    assert found["auroc_weighted"].value == 1.0


def test_one_class_alone_leaves_all_undefined() -> None:
    found = numbers(metrics.AUROC(task="multiclass"), np.eye(3), np.zeros(3, int), 3)
    assert math.isnan(found["auroc_mean"].value)
    assert found["auroc_mean"].reason
    assert found["auroc_classes_averaged"].value == 0


def test_ignored_classes_have_no_value_and_their_elements_do_not_count() -> None:
    logits, labels = drawn()
    labels[::10] = -1
    metric = metrics.AUROC(task="multiclass", average=("none", "macro"), ignore=(1, -1))
    found = numbers(metric, logits, labels, 5)
    kept = (labels != 1) & (labels >= 0)
    each = {c: sk.roc_auc_score(labels[kept] == c, logits[kept, c]) for c in (0, 2, 3, 4)}
    expected = {f"auroc_{c}": value for c, value in each.items()}
    expected |= {"auroc_mean": float(np.mean(list(each.values()))), "auroc_classes_averaged": 4}
    assert_numbers(found, expected)


def test_several_labels_an_element_and_ignored_entries() -> None:
    rng = np.random.default_rng(3)
    scores, labels = rng.random((200, 4)).round(2), rng.integers(0, 2, (200, 4))
    metric = metrics.AveragePrecision(task="multilabel", average=EVERY)
    expected = by_class("average_precision", sk.average_precision_score, scores, labels)
    assert_numbers(numbers(metric, scores, labels, 4), expected)
    spoilt = labels.copy()
    spoilt[rng.random(labels.shape) < 0.2] = -1
    metric = metrics.AUROC(task="multilabel", average=("none", "micro"), ignore=-1)
    kept = spoilt >= 0
    each = [sk.roc_auc_score(spoilt[kept[:, c], c], scores[kept[:, c], c]) for c in range(4)]
    expected = {f"auroc_{c}": value for c, value in enumerate(each)}
    expected["auroc_micro"] = sk.roc_auc_score(spoilt[kept], scores[kept])
    assert_numbers(numbers(metric, scores, spoilt, 4), expected)


def test_masks_count_by_pixel() -> None:
    rng = np.random.default_rng(4)
    logits, labels = rng.standard_normal((9, 3, 4, 5)).round(1), rng.integers(0, 3, (9, 4, 5))
    metric = metrics.AUROC(task="multiclass", average="none")
    flat = np.moveaxis(logits, 1, -1).reshape(-1, 3)
    each = [sk.roc_auc_score(labels.ravel() == c, flat[:, c]) for c in range(3)]
    expected = {f"auroc_{c}": value for c, value in enumerate(each)}
    assert_numbers(numbers(metric, logits, labels, 3), expected)


@LAW
@given(
    data=st.data(),
    way=st.sampled_from([{"budget": 200}, {"fixed": True}, {"bins": 3, "budget": 200}]),
)
def test_bounds_hold_the_exact_numbers(data: Any, way: dict[str, Any]) -> None:
    rows = data.draw(st.integers(2, 40))
    logits = data.draw(npst.arrays(np.float64, (rows, 3), elements=st.integers(-4, 4).map(float)))
    labels = data.draw(npst.arrays(np.int64, rows, elements=st.integers(0, 2)))
    for kind in (metrics.AUROC, metrics.AveragePrecision, metrics.FPRAtTPR):
        exact = numbers(kind(task="multiclass", average=EVERY), logits, labels, 3)
        found = numbers(kind(task="multiclass", average=EVERY, **way), logits, labels, 3)
        assert found.keys() == exact.keys()
        for key, number in exact.items():
            if math.isnan(number.value):
                assert math.isnan(found[key].value)
                continue
            slack = 1e-14  # both are rounded
            assert found[key].lower - slack <= number.value <= found[key].upper + slack, key


def test_classes_share_passes_as_far_as_they_fit() -> None:
    logits, labels = drawn(rows=100)
    for budget, passes in ((10**6, 1), (100 * 8 * 2, 3), (100 * 8, 5)):
        trace = Trace()
        metric = metrics.AUROC(task="multiclass", exact=True, budget=budget)
        job = Job(metric, {"train": (split_of(logits, labels, 5),)})
        found = run_jobs({"it": job}, trace=trace)["it"]
        assert found["auroc_mean"].exact
        assert len(trace.passes) == passes


def test_collections_rank_batches_and_add_fixed_counts() -> None:
    logits, labels = drawn()
    whole = numbers(metrics.AUROC(task="multiclass"), logits, labels, 5)
    live = metrics.Collection(["auroc", "average_precision"], task="multiclass", classes=5)
    for start in range(0, 300, 32):
        live.update(logits[start : start + 32], labels[start : start + 32])
    found = live.compute()
    assert found["auroc_mean"].value == pytest.approx(whole["auroc_mean"].value, abs=1e-15)
    fixed = [
        metrics.Collection(
            [metrics.AUROC(task="multiclass", fixed=True)], task="multiclass", classes=5
        )
        for _ in range(2)
    ]
    for rank, one in enumerate(fixed):
        one.update(logits[rank::2], labels[rank::2])
        assert one.fixed
    added = fixed[0].with_packed(fixed[0].packed() + fixed[1].packed()).compute()["auroc_mean"]
    assert added.lower <= whole["auroc_mean"].value <= added.upper
    assert added.upper - added.lower < 0.03


def test_fixed_counts_of_many_classes_stay_within_the_budget() -> None:
    for classes in (2, 1000):
        schema = split_of(np.zeros((1, classes)), np.zeros(1, int), classes).schema
        metric = metrics.AUROC(task="multiclass", fixed=True)
        asked = next(metric.passes(schema)).values()
        assert sum(request.state_nbytes(schema) for request in asked) <= metric.budget


def test_options_are_checked() -> None:
    for options, complaint in (
        ({"average": "mean"}, "average: 'mean' is unknown"),
        ({"average": ()}, "average"),
        ({"task": "binary", "softmax": True}, "softmax"),
        ({"task": "multiclass", "positive": "id"}, "label 1 is positive"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            metrics.AveragePrecision(**options)
    with pytest.raises(DataError, match=r"expected \(4, ...\), one entry for each class"):
        numbers(metrics.AUROC(task="multiclass"), np.zeros((5, 3)), np.zeros(5, int), 4)
    metric = metrics.AUROC(task="multiclass", average="micro")
    with pytest.raises(DataError, match="one order where there is one label a row"):
        numbers(metric, np.zeros((5, 3, 2)), np.zeros((5, 2), int), 3)
