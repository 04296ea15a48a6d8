"""Collections of metrics in a loop: batches, merges, states, and values of public faults."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

import pipeline as ff
from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.procedure import Estimate

K = 5


def drawn(rows: int = 203, shape: tuple[int, ...] = (), seed: int = 0) -> tuple[Any, Any, Any]:
    """Return logits (n, k, ...), predicted classes and targets (n, ...), sorted by class."""
    rng = np.random.default_rng(seed)
    target = np.sort(rng.integers(0, K - 1, (rows, *shape)), axis=0)  # class K - 1 is absent
    logits = rng.normal(size=(rows, K, *shape))
    np.put_along_axis(
        logits, target[:, None], np.take_along_axis(logits, target[:, None], 1) + 1.0, 1
    )
    return logits, logits.argmax(1), target


def batches(rows: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, rows, size)]


def numbers(found: dict[str, Any]) -> dict[str, float]:
    return {key: float(number) for key, number in found.items()}


@pytest.mark.parametrize("size", [1, 7, 202, 203])
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_numbers_are_those_of_scikit_learn_whatever_the_batches(size, shape):
    logits, predicted, target = drawn(shape=shape)
    scores = ff.metrics.Collection(["accuracy", "iou", "recall", "mcc"], classes=K)
    classes = scores.clone()
    for rows in batches(203, size):
        scores.update(logits[rows], target[rows])
        classes.update(predicted[rows], target[rows])
    y, p = target.reshape(-1), predicted.reshape(-1)
    found = numbers(scores.compute())
    assert found == numbers(classes.compute())
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(y, p), rel=1e-15)
    assert found["mcc"] == pytest.approx(sk.matthews_corrcoef(y, p), rel=1e-12)
    present = sorted({*y, *p})
    assert found["iou_mean"] == pytest.approx(
        sk.jaccard_score(y, p, average="macro", labels=present), rel=1e-14
    )
    recall = sk.recall_score(y, p, average="macro", labels=sorted({*y}))
    assert found["recall_mean"] == pytest.approx(recall, rel=1e-14)


def test_numbers_of_torch_tensors_are_those_of_arrays():
    logits, _, target = drawn()
    of_arrays = ff.metrics.Collection(["iou", "confusion_matrix"], classes=K)
    of_tensors = of_arrays.clone()
    of_arrays.update(logits.astype(np.float32), target)
    grad = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
    of_tensors.update(grad, torch.tensor(target))
    table, tensors = (c.compute()["confusion_matrix"] for c in (of_arrays, of_tensors))
    np.testing.assert_array_equal(table.counts, tensors.counts)
    assert table.counts.sum() == 203


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int32, np.int64])
def test_narrow_classes_do_not_overflow(dtype):
    # CASES A07: 120 * 121 + 120 is far beyond a byte
    target = np.full(1000, 120, dtype)
    collection = ff.metrics.Collection(["accuracy", "confusion_matrix"], classes=121)
    collection.update(target, target)
    found = collection.compute()
    assert float(found["accuracy"]) == 1.0
    assert found["confusion_matrix"].counts[120, 120] == 1000


def test_metrics_that_ask_for_the_same_share_one_state():
    collection = ff.metrics.Collection(["precision", "recall", "iou", "dice", "mcc"], classes=K)
    collection.update(np.array([0, 1]), np.array([0, 2]))
    assert len(collection.states) == 1


def test_states_are_shared_by_declaration_and_never_by_value():
    # torchmetrics 2596, 2916: groups formed from equal states after the first batch
    binary = ff.metrics.Collection(
        {
            "low": ff.metrics.Accuracy(task="binary", threshold=0.5),
            "high": ff.metrics.Accuracy(task="binary", threshold=0.8),
        },
        task="binary",
    )
    binary.update(np.array([0.9, 0.1]), np.array([1, 0]))
    binary.update(np.array([0.6, 0.7]), np.array([1, 1]))
    assert numbers(binary.compute()) == {"low": 1.0, "high": 0.5}

    top = ff.metrics.Collection(
        {"top1": ff.metrics.Accuracy(), "top2": ff.metrics.Accuracy(top_k=2)}, classes=3
    )
    top.update(np.array([[0.8, 0.1, 0.1]]), np.array([0]))
    top.update(np.array([[0.5, 0.4, 0.1]]), np.array([1]))
    assert numbers(top.compute()) == {"top1": 0.5, "top2": 1.0}

    ignoring = ff.metrics.Collection(
        {"all": ff.metrics.IoU(), "some": ff.metrics.IoU(ignore=(0,))}, classes=3
    )
    ignoring.update(np.array([1, 2]), np.array([1, 2]))
    ignoring.update(np.array([0, 1]), np.array([0, 0]))
    found = numbers(ignoring.compute())
    assert found["some_mean"] == 1.0
    assert found["all_mean"] == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)


def test_a_refused_batch_changes_nothing():
    _, predicted, target = drawn()
    collection = ff.metrics.Collection(["iou", "confusion_matrix", "accuracy"], classes=K)
    collection.update(predicted, target)
    before = collection.state_dict()
    wrong = target.copy()
    wrong[-1] = K
    with pytest.raises(DataError, match="update 2"):
        collection.update(predicted, wrong)
    wrong[-1] = -1
    with pytest.raises(DataError, match="ignore"):
        collection.update(predicted, wrong)
    with pytest.raises(DataError, match=r"\(203,\)"):
        collection.update(predicted[:-1], target)
    with pytest.raises(DataError, match="all batches alike"):
        collection.update(drawn()[0], target)
    after = collection.state_dict()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_ignored_labels_do_not_count_whatever_was_predicted_there():
    collection = ff.metrics.Collection(["accuracy"], classes=3, ignore=[255, -1])
    collection.update(np.array([0, 1, 2, 2]), np.array([0, 255, -1, 1]))
    assert float(collection.compute()["accuracy"]) == 0.5


def test_compute_changes_nothing_and_updates_go_on_from_there():
    logits, _, target = drawn()
    once = ff.metrics.Collection(["iou", "kappa"], classes=K)
    often = once.clone()
    once.update(logits, target)
    for rows in batches(203, 50):
        often.update(logits[rows], target[rows])
        often.compute()
        often.compute()
    assert numbers(often.compute()) == numbers(once.compute())


def test_merging_is_the_same_as_one_collection_in_any_order():
    logits, _, target = drawn()
    parts = []
    for rows in batches(203, 60):
        parts.append(ff.metrics.Collection(["iou", "accuracy"], classes=K))
        parts[-1].update(logits[rows], target[rows])
    idle = ff.metrics.Collection(["iou", "accuracy"], classes=K)
    there, back = idle.clone(), idle.clone()
    there.merge(*parts, idle)
    back.merge(idle, *parts[::-1])
    whole = idle.clone()
    whole.update(logits, target)
    assert numbers(there.compute()) == numbers(back.compute()) == numbers(whole.compute())
    assert there.updates == len(parts)
    assert idle.updates == 0


def test_the_sum_of_packed_states_is_their_merge():
    logits, _, target = drawn()
    collection = ff.metrics.Collection(["iou", "kappa", "confusion_matrix"], classes=K)
    assert collection.fixed
    halves = [collection.clone(), collection.clone()]
    halves[0].update(logits[:90], target[:90])
    halves[1].update(logits[90:], target[90:])
    idle = collection.packed()
    together = halves[0].with_packed(halves[0].packed() + halves[1].packed() + idle)
    collection.update(logits, target)
    found, expected = together.compute(), collection.compute()
    np.testing.assert_array_equal(
        found.pop("confusion_matrix").counts, expected.pop("confusion_matrix").counts
    )
    assert numbers(found) == numbers(expected)
    assert together.updates == 2
    assert halves[0].updates == 1
    with pytest.raises(DataError, match="packed numbers"):
        collection.with_packed(idle[:-1])


def test_states_that_grow_are_merged_and_saved_but_not_packed(tmp_path):
    rng = np.random.default_rng(1)
    scores, target = rng.normal(size=500).round(1), rng.integers(0, 2, 500)
    collection = ff.metrics.Collection(["auroc", "average_precision"], task="binary")
    for rows in batches(500, 7):
        collection.update(scores[rows], target[rows])
    collection.save(tmp_path / "states.safetensors")
    loaded = ff.metrics.Collection(["auroc", "average_precision"], task="binary")
    loaded.load(tmp_path / "states.safetensors")
    values = list(numbers(loaded.compute()).values())
    assert values[0] == pytest.approx(sk.roc_auc_score(target, scores), rel=1e-14)
    assert values[1] == pytest.approx(sk.average_precision_score(target, scores), rel=1e-14)
    assert not collection.fixed
    with pytest.raises(ConfigError, match="fixed=True"):
        collection.packed()


def test_saved_states_go_on_where_they_stopped(tmp_path):
    logits, _, target = drawn()
    collection = ff.metrics.Collection(["iou", "accuracy"], classes=K, prefix="val/")
    collection.save(tmp_path / "idle")
    collection.update(logits[:100], target[:100])
    collection.save(tmp_path / "half")
    collection.update(logits[100:], target[100:])
    other = ff.metrics.Collection(["iou", "accuracy"], classes=K, prefix="val/")
    other.load(tmp_path / "idle")
    assert other.updates == 0
    other.load(tmp_path / "half")
    other.update(logits[100:], target[100:])
    assert numbers(other.compute()) == numbers(collection.compute())
    with pytest.raises(ConfigError, match="do not belong"):
        ff.metrics.Collection(["iou"], classes=K).load(tmp_path / "half")
    with pytest.raises(MissingInputError):
        other.load(tmp_path / "nowhere")
    (tmp_path / "torn").write_bytes((tmp_path / "half").read_bytes()[:100])
    with pytest.raises(CorruptError):
        other.load(tmp_path / "torn")


def test_clones_are_independent_and_have_a_prefix_of_their_own():
    collection = ff.metrics.Collection(["accuracy"], classes=3)
    collection.update(np.array([0, 1]), np.array([0, 1]))
    val = collection.clone(prefix="val/")
    val.update(np.array([0, 0]), np.array([1, 1]))
    assert numbers(collection.compute()) == {"accuracy": 1.0}
    assert numbers(val.compute()) == {"val/accuracy": 0.5}
    val.reset()
    assert math.isnan(numbers(val.compute())["val/accuracy"])


def test_numbers_without_an_update_are_undefined_with_a_reason():
    collection = ff.metrics.Collection(["accuracy", "iou", "mcc", "kappa"], classes=3)
    found = collection.compute()
    assert float(found.pop("iou_classes_averaged")) == 0
    for number in found.values():
        assert math.isnan(number.value)
        assert number.reason


def test_classes_go_by_their_names():
    collection = ff.metrics.Collection(
        {"jaccard": ff.metrics.IoU(average=("macro", "none"))}, classes=["road", "car", "sky"]
    )
    collection.update(np.array([[0, 1]]), np.array([[0, 0]]))
    found = numbers(collection.compute())
    assert set(found) == {
        *("jaccard_mean", "jaccard_classes_averaged"),
        *("jaccard_road", "jaccard_car", "jaccard_sky"),
    }
    assert found["jaccard_road"] == 0.5
    assert math.isnan(found["jaccard_sky"])
    assert found["jaccard_mean"] == 0.25


def test_binary_and_multilabel_tasks():
    y, s = np.array([[1, 0], [1, 1]]), np.array([[0.5, 0.4], [0.2, 0.9]], np.float16)
    binary = ff.metrics.Collection(["precision", "recall"], task="binary")
    binary.update(s, y)
    assert numbers(binary.compute()) == {"precision": 1.0, "recall": pytest.approx(2 / 3)}
    several = ff.metrics.Collection(["recall"], classes=2, task="multilabel")
    several.update(s, y)
    assert numbers(several.compute())["recall_mean"] == 0.75


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": []}, "no metric"),
        ({"metrics": ["iuo"]}, "iou"),
        ({"metrics": ["iou", "iou"]}, "two metrics"),
        ({"metrics": [42]}, "not a metric"),
        ({"metrics": ["iou"], "classes": ["a", "a"]}, "two are called"),
        ({"metrics": ["iou"], "classes": "road"}, "their number"),
        ({"metrics": ["iou"], "classes": 1}, "2 or more"),
        ({"metrics": ["iou"], "task": "regression"}, "choose"),
        ({"metrics": ["iou"], "task": "binary", "classes": 3}, "have 2"),
    ],
)
def test_what_cannot_be_declared_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ff.metrics.Collection(arguments.pop("metrics"), **{"classes": 3} | arguments)


@pytest.mark.parametrize(
    ("preds", "target", "message"),
    [
        (np.zeros((2, 4)), np.zeros(2), "whole numbers"),
        (np.zeros((2, 4)), np.array(0), "rows first"),
        (np.zeros((2, 4)), np.zeros(2, int), r"expected \(2, 3\)"),
        (np.zeros(2), np.zeros(2, int), "classes to integers"),
        (np.zeros((2, 3), int), np.zeros(2, int), "one-hot"),
        (np.array([0, 3]), np.zeros(2, int), "row 1"),
        (np.array([[0.0, np.nan, 1]] * 2), np.zeros(2, int), "not finite|NaN"),
        (torch.zeros(2, 3), np.zeros(2, int), "same place"),
        ([["a"], [None]], np.zeros(2, int), "numbers"),
    ],
)
def test_batches_that_are_not_as_declared_are_refused(preds, target, message):
    collection = ff.metrics.Collection(["accuracy"], classes=3)
    with pytest.raises(DataError, match=message):
        collection.update(preds, target)
    assert collection.updates == 0


def test_weights_count_for_every_metric_or_are_refused():
    preds, target, weights = np.array([0, 1, 2, 0]), np.array([0, 1, 2, 2]), [1, 1, 1, 100]
    expected = sk.accuracy_score(target, preds, sample_weight=weights)
    collection = ff.metrics.Collection(["accuracy", "recall"], classes=3, weighted=True)
    collection.update(preds, target, weights=np.array(weights, float))
    assert float(collection.compute()["accuracy"]) == pytest.approx(expected, rel=1e-14)
    found = ff.measure("accuracy", preds, target, classes=3, weights=np.array(weights, float))
    assert float(found["accuracy"]) == pytest.approx(expected, rel=1e-14)
    plain = ff.metrics.Collection(["accuracy"], classes=3)
    with pytest.raises(ConfigError, match="accuracy would not count"):
        plain.update(preds, target, weights=np.ones(4))
    assert plain.updates == 0
    with pytest.raises(ConfigError, match="auroc would not count"):
        ff.metrics.Collection(["auroc"], task="binary", weighted=True)
    collection.reset()
    with pytest.raises(ConfigError, match="pass weights= to update"):
        collection.update(preds, target)


def test_no_number_takes_the_key_of_another():
    values = {"low": ff.metrics.TopKAccuracy(top_k=2), "high": ff.metrics.TopKAccuracy(top_k=3)}
    scores, target = np.eye(4)[[0, 1, 2, 3]], np.array([0, 1, 2, 0])
    several = ff.metrics.Collection(values, classes=4)
    several.update(scores, target)
    assert set(several.compute()) == {"low", "high"}
    listed = ff.metrics.Collection(list(values.values()), classes=4)
    listed.update(scores, target)
    assert set(listed.compute()) == {"top_2_accuracy", "top_3_accuracy"}
    with pytest.raises(ConfigError, match="two metrics"):
        ff.metrics.Collection([ff.metrics.Accuracy(), ff.metrics.Accuracy(ignore=0)], classes=4)
    with pytest.raises(ConfigError, match="key of an average"):
        ff.metrics.Collection(["iou"], classes=["road", "mean"])
    both = {"iou": ff.metrics.IoU(average="none"), "iou_a": ff.metrics.Accuracy()}
    clash = ff.metrics.Collection(both, classes=["a", "b"])
    with pytest.raises(ConfigError, match="two numbers"):
        clash.compute()


@pytest.mark.parametrize("name", ["top_k_accuracy", "auroc", "fpr_at_tpr", "max_f1", "iou"])
def test_every_metric_of_classes_names_them(name):
    logits, _, target = drawn()
    options = {"average": "none"} | ({"task": "multiclass"} if name in SCORED else {})
    options |= {"top_k": 2} if name == "top_k_accuracy" else {}
    names = ["1", "0", "a_2", "b", "c"]
    metric = ff.metrics.make(name, **options)
    plain = ff.metrics.Collection({"it": metric}, classes=K)
    named = ff.metrics.Collection({"it": metric}, classes=names)
    for collection in (plain, named):
        collection.update(logits, target)
    numbered = plain.compute()
    for key, number in named.compute().items():
        stem, _, last = key.partition("_threshold_") if "_threshold_" in key else key.partition("_")
        joint = "_threshold_" if "_threshold_" in key else "_"
        own = numbered[f"{stem}{joint}{names.index(last)}"]
        np.testing.assert_equal(float(number), float(own))
    assert any(key.endswith("_a_2") for key in named.compute())


SCORED = ("auroc", "fpr_at_tpr", "max_f1")


def test_metrics_of_images_need_masks():
    collection = ff.metrics.Collection(["image_iou"], classes=3)
    with pytest.raises(DataError, match="need masks"):
        collection.update(np.array([0, 1]), np.array([0, 1]))


def test_states_of_another_version_are_refused_and_nothing_is_lost():
    _, predicted, target = drawn()
    collection = ff.metrics.Collection(["iou"], classes=K)
    collection.update(predicted, target)
    saved = collection.state_dict()
    old = {("0" * 64 + key[64:] if "/" in key else key): array for key, array in saved.items()}
    before = numbers(collection.compute())
    with pytest.raises(CorruptError, match="another version"):
        collection.load_state_dict(old)
    assert numbers(collection.compute()) == before


@pytest.mark.parametrize("task", ["multiclass", "binary"])
@pytest.mark.parametrize("name", ["nll", "ece", "brier", "aurc"])
def test_probabilities_have_the_same_numbers_on_disk_as_in_a_loop(name, task, tmp_path):
    rng = np.random.default_rng(5)
    k = 3 if task == "multiclass" else 2
    p = rng.dirichlet(np.ones(3), 60) if task == "multiclass" else rng.random(60)
    target = rng.integers(0, k, 60)
    metric = ff.metrics.make(name, task=task, kind="probabilities")
    collection = ff.metrics.Collection(metric, classes=k, task=task)
    for rows in batches(60, 17):
        collection.update(p[rows], target[rows])
    np.save(tmp_path / "p.npy", p)
    np.save(tmp_path / "y.npy", target)
    found = ff.measure(metric, tmp_path / "p.npy", tmp_path / "y.npy", classes=k, task=task)
    assert numbers(found) == numbers(collection.compute())
    if name == "nll":
        expected = sk.log_loss(target, p)
        assert next(iter(numbers(found).values())) == pytest.approx(expected, rel=1e-12)


def test_masked_arrays_and_labels_beyond_int64_are_refused():
    collection = ff.metrics.Collection(["accuracy"], classes=3, ignore=-1)
    masked = np.ma.array([0, 1], mask=[True, False])
    with pytest.raises(DataError, match="masked"):
        collection.update(masked, np.array([0, 1]))
    with pytest.raises(DataError, match="unsigned"):
        collection.update(np.array([0, 1]), np.array([2**64 - 1, 1], np.uint64))
    assert collection.updates == 0


@pytest.mark.parametrize("saved", [{}, {"about": np.zeros(3, np.uint8)}, {"about": "junk"}])
def test_what_is_no_saved_state_is_refused(saved):
    with pytest.raises(CorruptError, match="no saved states"):
        ff.metrics.Collection(["iou"], classes=3).load_state_dict(saved)


def test_binary_scores_are_probabilities_for_all_that_have_names():
    p, target = np.array([0.5, 0.2, 0.7, 0.1]), np.array([1, 0, 1, 1])
    collection = ff.metrics.Collection(["accuracy", "brier", "nll"], task="binary")
    collection.update(p, target)
    found = numbers(collection.compute())
    assert found["accuracy"] == 0.75
    assert found["nll"] == pytest.approx(sk.log_loss(target, p), rel=1e-14)
    with pytest.raises(DataError, match="logits"):
        collection.update(np.array([3.0]), np.array([1]))


def test_a_value_that_says_its_task_says_what_its_scores_are():
    scores, positive = np.array([0.25, 0.75]), np.array([0, 1])
    odds = np.log(scores / (1 - scores))
    for metric, given in (
        ("nll", scores),
        (ff.metrics.NLL(), scores),
        (ff.metrics.NLL(task="binary"), odds),
        (ff.metrics.NLL(task="binary", kind="logits"), odds),
        (ff.metrics.NLL(task="binary", kind="probabilities"), scores),
    ):
        collection = ff.metrics.Collection(metric, task="binary")
        collection.update(given, positive)
        assert float(collection.compute()["nll"]) == pytest.approx(-math.log(0.75), rel=1e-14)


def test_an_average_that_names_none_is_refused():
    with pytest.raises(ConfigError, match="none is named"):
        ff.metrics.IoU(average=())


def test_metrics_are_drawn_as_what_they_are():
    logits, _, target = drawn()
    names = ["road", "car", "bus", "sky", "tree"]
    asked = [
        "accuracy",
        ff.metrics.IoU(average=("macro", "none")),
        "confusion_matrix",
        "reliability",
    ]
    collection = ff.metrics.Collection(asked, classes=names, prefix="val/")
    collection.update(logits, target)
    bars = collection.plot()
    assert bars.facts["figure"] == "class_bars"
    assert [one.name for one in bars.facts["classes"]][-1] == "tree"
    assert collection.plot("confusion_matrix", theme="dark").facts["figure"] == "confusion_matrix"
    assert collection.plot("reliability").facts["figure"] == "reliability_diagram"
    with pytest.raises(ConfigError, match="no chart of accuracy"):
        collection.plot("accuracy")
    with pytest.raises(ConfigError, match="no metric is called"):
        collection.plot("dice")
    curve = ff.metrics.Collection(["roc"], task="binary")
    curve.update(np.array([0.1, 0.4, 0.6]), np.array([0, 1, 1]))
    assert curve.plot().facts["figure"] == "roc"


def test_values_take_what_the_others_do_where_they_say_nothing():
    truth, predicted = np.array([0, 1, 2, 2]), np.array([0, 1, 2, 1])
    own = ff.metrics.IoU(average="none")
    chosen = {"mean": "iou", "each": own, "two": ff.metrics.IoU(average="none", ignore=2)}
    found = ff.measure(chosen, predicted, truth, classes=3, ignore=0)
    assert [key for key in found if key.startswith("each_")] == ["each_1", "each_2"]
    assert float(found["mean_mean"]) == np.mean([found["each_1"], found["each_2"]])
    assert [key for key in found if key.startswith("two_")] == ["two_0", "two_1"]
    binary = ["precision", ff.metrics.Accuracy(), ff.metrics.AUROC()]
    scores, positive = np.array([0.6, 0.8, 0.9]), np.array([0, 1, 1])
    found = ff.measure(binary, scores, positive, classes=2, task="binary", threshold=0.7)
    assert found["accuracy"] == found["auroc"] == 1.0


def test_numbers_are_used_like_floats():
    number = Estimate(0.25, 0.2, 0.3, exact=False)
    assert (f"{number:.2f}", round(number, 1), number * 4, max(number, 0.1)) == (
        "0.25",
        0.2,
        1,
        0.25,
    )
    assert json.loads(json.dumps({"iou": number})) == {"iou": 0.25}
    assert np.mean([number, 0.75]) == 0.5
    assert torch.tensor(number) == 0.25
    assert number == 0.25
    assert number != Estimate(0.25, 0.25, 0.25)
    undefined = Estimate(math.nan, math.nan, math.nan, reason="no rows")
    assert undefined == pickle.loads(pickle.dumps(undefined)) == copy.deepcopy(undefined)
    assert undefined != math.nan
    assert np.isnan(undefined)
    assert len({undefined, copy.copy(undefined), number}) == 2
    assert "reason='no rows'" in repr(undefined)


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_logits_are_no_probabilities(task):
    logits = np.array([[-2.0, 0.3], [0.2, 3.0]]).ravel()
    target = np.array([0, 1, 1, 1])
    if task == "multilabel":
        logits, target = logits.reshape(2, 2), target.reshape(2, 2)
    options = {"classes": 2, "task": task}
    with pytest.raises(DataError, match=r"scores of 2 elements are outside \[0, 1\].*threshold=0"):
        ff.metrics.Collection(["recall"], **options).update(logits, target)
    with pytest.raises(DataError, match=r"outside \[0, 1\]"):
        ff.measure("recall", logits, target, **options)
    for metrics, threshold in (("hamming", 0), (ff.metrics.Hamming(threshold=0.0), 0.5)):
        found = ff.measure(metrics, logits, target, threshold=threshold, **options)
        assert all(number in (0.0, 2.0) for number in found.values())
    ranked = ff.metrics.Collection(["auroc"], **options)
    ranked.update(logits, target)
    ignored = target.copy()
    ignored[np.abs(logits) > 1] = 255
    assert ff.measure("hamming", logits, ignored, ignore=255, threshold=0.1, **options)


SHAPES = [
    ((4, 3), (4, 1), "multiclass", "squeeze the target"),
    ((2, 3, 5, 5), (2, 1, 5, 5), "multiclass", "squeeze the target"),
    ((2, 5, 5), (2, 1, 5, 5), "binary", "squeeze the target"),
    ((4, 1), (4,), "binary", "squeeze the preds"),
    ((2, 1, 5, 5), (2, 5, 5), "binary", "squeeze the preds"),
    ((2, 5, 5, 3), (2, 5, 5), "multiclass", r"moveaxis\(preds, -1, 1\)"),
    ((4, 3), (4, 3), "multiclass", r"target.argmax\(1\)"),
    ((2, 3, 5, 5), (2, 3, 5, 5), "multiclass", r"target.argmax\(1\)"),
    ((2, 3, 5, 5), (2, 5, 5, 3), "multiclass", r"target.argmax\(-1\)"),
    ((4, 5), (4,), "multiclass", "5 classes, 3 are declared"),
    ((4,), (4,), "multiclass", "classes to integers"),
    ((4, 2), (4,), "binary", r"preds\[:, 1\]"),
]


@pytest.mark.parametrize(("preds", "target", "task", "remedy"), SHAPES)
def test_shapes_that_do_not_fit_are_told_what_makes_them_fit(preds, target, task, remedy):
    classes = 2 if task == "binary" else 3
    scores, labels = np.zeros(preds), np.zeros(target, int)
    with pytest.raises(DataError, match=remedy):
        ff.metrics.Collection("accuracy", classes=classes, task=task).update(scores, labels)
    remedy = remedy.replace("preds", "predictions").replace("target", "labels")
    with pytest.raises(DataError, match=remedy):
        ff.measure("accuracy", scores, labels, classes=classes, task=task)


def test_a_label_of_a_binary_task_is_not_one_of_three():
    collection = ff.metrics.Collection("accuracy", task="binary")
    with pytest.raises(DataError, match="declare a multiclass task") as raised:
        collection.update(np.array([0, 1]), np.array([0, 2]))
    assert "classes=3" not in str(raised.value)


@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_classes_are_declared(task):
    for call in (ff.metrics.Collection, lambda *a, **k: ff.measure(*a, [0], [0], **k)):
        with pytest.raises(ConfigError, match=f"a {task} task needs their number"):
            call("accuracy", task=task)
    assert ff.measure("accuracy", [0], [0], task="binary") == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("ignore_index", "ignore"),
        ("num_classes", "classes"),
        ("average", "IoU"),
        ("speed", "no op"),
    ],
)
def test_options_of_other_libraries_are_told_what_they_are_called(option, word):
    with pytest.raises(TypeError, match=f"^{option}.*{word}"):
        ff.metrics.Collection("iou", classes=2, **{option: 1})
    with pytest.raises(TypeError, match=f"^{option}.*{word}"):
        ff.ddp.Collection("iou", classes=2, **{option: 1})
    with pytest.raises(TypeError, match=f"^{option}.*{word}"):
        ff.measure("iou", [0], [0], classes=2, **{option: 1})


def test_states_of_another_declaration_are_told_apart(tmp_path):
    here = ff.metrics.Collection("iou", classes=3)
    other = ff.metrics.Collection("iou", classes=4, ignore=255)
    words = r"classes 4, not 3; iou.ignore \(255,\), not \(\)"
    with pytest.raises(ConfigError, match=words):
        here.merge(other)
    other.save(tmp_path / "part.safetensors")
    with pytest.raises(ConfigError, match=words):
        here.load(tmp_path / "part.safetensors")
    with pytest.raises(ConfigError, match=r"part\.load"):
        here.merge("part.safetensors")


def test_states_go_through_files_of_torch(tmp_path):
    here = ff.metrics.Collection("iou", classes=3)
    here.update(np.array([0, 1, 2]), np.array([0, 1, 1]))
    tensors = {key: torch.tensor(x) for key, x in here.state_dict().items()}
    torch.save(tensors, tmp_path / "states.pt")
    there = ff.metrics.Collection("iou", classes=3)
    there.load_state_dict(torch.load(tmp_path / "states.pt", weights_only=True))
    assert there.compute() == here.compute()


def test_tables_of_rows_are_refused_when_a_collection_is_made():
    for name in ("image_table", "image_intervals"):
        with pytest.raises(ConfigError, match=f"{name} keeps a table of all rows"):
            ff.metrics.Collection(name, classes=3)
    with pytest.raises(ConfigError, match="ask for precision"):
        ff.metrics.Collection("confusion_matrix", classes=3, task="multilabel")
