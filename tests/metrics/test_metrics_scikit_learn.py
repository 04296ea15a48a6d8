"""Agreement with scikit-learn on drawn inputs; what is left out is counted, and said why."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from pipeline import metrics
from pipeline.metrics import ratios
from pipeline.testing import Data
from pipeline.testing.drive import fold_all
from pipeline.testing.strategies import LAW

EXAMPLES = 25
TOLERANCE = 1e-12
LEFT_OUT = {
    "undefined here, 0 or a warning there": "one class in all labels or predictions; weighted "
    "averages where every class with a label is undefined",
    "no element, an error there": "every weight is 0",
    "tied scores": "they are in the order of a sort there, of classes here",
}
"""Why an input is not compared."""
AVERAGES = {"macro": "mean", "micro": "micro", "weighted": "weighted"}


class Tally:
    """What was compared, and what was not."""

    def __init__(self) -> None:
        self.compared, self.left_out = Counter[str](), Counter[str]()

    def equal(self, name: str, ours: float, theirs: float) -> None:
        """Fail unless two numbers agree; NaN equals NaN."""
        self.compared[name] += 1
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)

    def skip(self, reason: str) -> None:
        """Count an input that is left out."""
        assert reason in LEFT_OUT
        self.left_out[reason] += 1

    def report(self, names: set[str]) -> None:
        """Print all counts; fail where something was never compared, or mostly left out."""
        print(f"compared {dict(self.compared)}; left out {dict(self.left_out)}")
        assert {name for name, times in self.compared.items() if times >= EXAMPLES / 8} >= names
        assert self.left_out.total() < self.compared.total() / 15


def numbers(name: str, arrays: dict[str, Any], classes: int, **options: Any) -> dict[str, float]:
    """Return the numbers of a metric by key, folded in two chunks."""
    data = Data(arrays, classes)
    metric = metrics.make(name, **options)
    rows = len(arrays["labels"])
    passes = metric.passes(data.schema)
    asked = next(passes)
    cut = data.cut([[rows // 2], [rows - rows // 2]])
    try:
        passes.send({key: fold_all(statistic, cut) for key, statistic in asked.items()})
    except StopIteration as stop:
        return {key: float(number) for key, number in stop.value.items()}
    raise AssertionError("a metric of classes takes one pass")


def quietly(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


@st.composite
def classified(draw: Any, *, weighted: bool = False) -> tuple[int, Any, Any, Any]:
    """Draw classes, labels, predictions and weights: few values, so that classes are absent."""
    k = draw(st.integers(2, 6))
    n = draw(st.sampled_from((1, 7, 20, 60)))
    few = draw(st.sampled_from((1, 2, k, k, k)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    chosen = rng.permutation(k)[:few]
    y, p = rng.choice(chosen, n), rng.integers(0, k, n)
    p = np.where(rng.random(n) < draw(st.sampled_from((0.0, 0.5, 1.0))), y, p)
    w = rng.choice([0.0, 0.1, 0.3, 2.5], n) if weighted else None
    return k, y, p, w


ONE_CLASS = (3, np.array([1, 1]), np.array([1, 1]), None)


def compare_classes(tally: Tally, drawn: tuple[int, Any, Any, Any]) -> None:
    """Compare every metric of classes with scikit-learn on one input."""
    k, y, p, w = drawn
    if w is not None and not w.any():
        tally.skip("no element, an error there")
        return
    arrays = {"labels": y, "predictions": p} | ({} if w is None else {"weights": w})
    options: dict[str, Any] = {} if w is None else {"weights": "weights"}
    given = {"sample_weight": w}
    every = list(range(k))

    def ours(name: str, **more: Any) -> dict[str, float]:
        return numbers(name, arrays, k, **options, **more)

    tally.equal("accuracy", ours("accuracy")["accuracy"], sk.accuracy_score(y, p, **given))
    tally.equal("hamming", ours("hamming")["hamming"], sk.hamming_loss(y, p, **given))
    for name, peer, more in (
        ("precision", sk.precision_score, {}),
        ("recall", sk.recall_score, {}),
        ("f1", sk.f1_score, {}),
        ("fbeta", sk.fbeta_score, {"beta": 0.5}),
        ("iou", sk.jaccard_score, {}),
    ):
        for zero, absent in ((np.nan, "nan"), (0.0, "zero"), (1.0, "one")):
            if name == "iou" and absent == "nan":
                continue  # scikit-learn knows 0 and 1 alone
            asked = {"labels": every, "zero_division": zero, **given, **more}
            by_class = quietly(peer, y, p, average=None, **asked)
            found = ours(name, average=("none", *AVERAGES), absent=absent, **more)
            for c in every:
                tally.equal(f"{name} by class", found[f"{name}_{c}"], by_class[c])
            for average, ending in AVERAGES.items():
                number = found[f"{name}_{ending}"]
                theirs = quietly(peer, y, p, average=average, **asked)
                if average == "weighted" and math.isnan(number):
                    tally.skip("undefined here, 0 or a warning there")
                else:
                    tally.equal(f"{name} {average}", number, theirs)
    compare_specificity(tally, drawn, ours)
    for adjusted in (False, True):
        theirs = quietly(sk.balanced_accuracy_score, y, p, adjusted=adjusted, **given)
        (number,) = ours("balanced_accuracy", adjusted=adjusted).values()
        if math.isnan(number):
            tally.skip("undefined here, 0 or a warning there")
        else:
            tally.equal("balanced_accuracy", number, theirs)
    compare_agreement(tally, drawn, ours)


def compare_specificity(tally: Tally, drawn: Any, ours: Callable[..., dict[str, float]]) -> None:
    k, y, p, w = drawn
    tables = sk.multilabel_confusion_matrix(y, p, labels=range(k), sample_weight=w)
    specificity, npv = ours("specificity", average="none"), ours("npv", average="none")
    for c, ((tn, fp), (fn, _)) in enumerate(tables):
        theirs = tn / (tn + fp) if tn + fp > 1e-12 else math.nan
        tally.equal("specificity", specificity[f"specificity_{c}"], theirs)
        theirs = tn / (tn + fn) if tn + fn > 1e-12 else math.nan
        tally.equal("npv", npv[f"npv_{c}"], theirs)


def compare_agreement(tally: Tally, drawn: Any, ours: Callable[..., dict[str, float]]) -> None:
    k, y, p, w = drawn
    (found,) = ours("mcc").values()
    if math.isnan(found):
        tally.skip("undefined here, 0 or a warning there")
    else:
        tally.equal("mcc", found, sk.matthews_corrcoef(y, p, sample_weight=w))
    for weighting, theirs in (("none", None), ("linear", "linear"), ("quadratic", "quadratic")):
        (found,) = ours("kappa", weighting=weighting).values()
        if math.isnan(found):
            tally.skip("undefined here, 0 or a warning there")
            continue
        peer = sk.cohen_kappa_score(y, p, labels=range(k), weights=theirs, sample_weight=w)
        tally.equal(f"kappa {weighting}", found, peer)


NAMES = {"accuracy", "hamming", "specificity", "npv", "balanced_accuracy", "mcc"}
NAMES |= {f"kappa {weighting}" for weighting in ("none", "linear", "quadratic")}
NAMES |= {
    f"{name} {average}"
    for name in ("precision", "recall", "f1", "fbeta", "iou")
    for average in ("by class", *AVERAGES)
}


def run_over(draws: Any, compare: Callable[[Tally, Any], None], *examples: Any) -> Tally:
    tally = Tally()

    def check(drawn: Any) -> None:
        compare(tally, drawn)

    for one in examples:
        check = example(one)(check)
    checked: Callable[[], None] = settings(LAW, max_examples=EXAMPLES)(given(draws)(check))
    checked()
    return tally


def test_classes() -> None:
    run_over(classified(), compare_classes, ONE_CLASS).report(NAMES)


def test_classes_with_weights() -> None:
    run_over(classified(weighted=True), compare_classes).report(NAMES)


def test_swapped_precision_and_recall_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    precision, recall = ratios.PRECISION, ratios.RECALL
    monkeypatch.setattr(ratios, "PRECISION", recall)
    monkeypatch.setattr(ratios, "RECALL", precision)
    with pytest.raises(AssertionError, match=r"precision|recall"):
        compare_classes(Tally(), (3, np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), None))


@st.composite
def labelled(draw: Any) -> tuple[int, Any, Any, Any]:
    """Draw labels that a row may have several of, scores and weights."""
    k, n = draw(st.integers(1, 5)), draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    y = (rng.random((n, k)) < rng.choice([0.0, 0.3, 1.0], k)).astype(int)
    scores = rng.integers(0, 11, (n, k)) / 10
    w = rng.choice([0.1, 0.3, 2.5], n) if draw(st.booleans()) else None
    return k, y, scores, w


def compare_labels(tally: Tally, drawn: tuple[int, Any, Any, Any]) -> None:
    k, y, scores, w = drawn
    arrays = {"labels": y, "logits": scores} | ({} if w is None else {"weights": w})
    options: dict[str, Any] = {"task": "multilabel", "threshold": 0.5}
    options |= {} if w is None else {"weights": "weights"}
    p = (scores >= 0.5).astype(int)
    given = {"sample_weight": w}

    def ours(name: str, **more: Any) -> dict[str, float]:
        return numbers(name, arrays, k, **options, **more)

    wide = (np.hstack([x, np.zeros_like(x)]) for x in (y, p))  # one column is binary there
    exact = sk.accuracy_score(*wide, **given)
    tally.equal("exact_match", ours("exact_match")["exact_match"], exact)
    wrong = np.average((y != p).mean(axis=1), weights=w)
    tally.equal("hamming", ours("hamming")["hamming"], wrong)
    tally.equal("accuracy", ours("accuracy")["accuracy"], 1 - wrong)
    for name, peer in (
        ("precision", sk.precision_score),
        ("recall", sk.recall_score),
        ("f1", sk.f1_score),
        ("iou", sk.jaccard_score),
    ):
        each = [quietly(peer, y[:, c], p[:, c], zero_division=0.0, **given) for c in range(k)]
        found = ours(name, average=("none", "macro", "micro"), absent="zero")
        for c in range(k):
            tally.equal(f"{name} by label", found[f"{name}_{c}"], each[c])
        tally.equal(f"{name} macro", found[f"{name}_mean"], np.mean(each))
        entries = (y.reshape(-1), p.reshape(-1))
        weights = None if w is None else np.repeat(w, k)
        theirs = quietly(peer, *entries, zero_division=np.nan if name != "iou" else 0.0,
                         sample_weight=weights)  # fmt: skip
        if not math.isnan(found[f"{name}_micro"]):
            tally.equal(f"{name} micro", found[f"{name}_micro"], theirs)
    for name, agreement in (("mcc", sk.matthews_corrcoef), ("kappa", sk.cohen_kappa_score)):
        found = ours(name, average="none")
        for c in range(k):
            if math.isnan(found[f"{name}_{c}"]):
                tally.skip("undefined here, 0 or a warning there")
            else:
                tally.equal(name, found[f"{name}_{c}"], agreement(y[:, c], p[:, c], **given))


def test_labels_that_a_row_may_have_several_of() -> None:
    tally = run_over(labelled(), compare_labels)
    print(f"compared {dict(tally.compared)}; left out {dict(tally.left_out)}")
    assert {"exact_match", "mcc", "kappa", "iou macro", "precision micro"} <= set(tally.compared)
    assert tally.left_out.total() < tally.compared.total() / 4


@st.composite
def scored(draw: Any) -> tuple[int, Any, Any, int]:
    k, n = draw(st.integers(2, 6)), draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = np.round(rng.normal(size=(n, k)), draw(st.sampled_from((2, 12))))
    return k, rng.integers(0, k, n), scores, draw(st.integers(1, k))


def compare_top_k(tally: Tally, drawn: tuple[int, Any, Any, int]) -> None:
    k, y, scores, top_k = drawn
    if any(len(set(row)) < k for row in scores.tolist()):
        tally.skip("tied scores")
        return
    arrays = {"labels": y, "logits": scores}
    found = numbers("top_k_accuracy", arrays, k, top_k=top_k)[f"top_{top_k}_accuracy"]
    if k == 2:  # scikit-learn then wants one score a row
        tally.equal("top_k", found, sk.accuracy_score(y, scores.argmax(1)) if top_k == 1 else 1)
    else:
        theirs = quietly(sk.top_k_accuracy_score, y, scores, k=top_k, labels=range(k))
        tally.equal("top_k", found, theirs)


def test_top_k() -> None:
    tally = run_over(scored(), compare_top_k)
    print(f"compared {dict(tally.compared)}; left out {dict(tally.left_out)}")
    assert tally.compared["top_k"] > tally.left_out["tied scores"]


def test_the_positive_class_of_a_binary_task() -> None:
    rng = np.random.default_rng(0)
    y, scores = rng.integers(0, 2, 50), rng.random(50)
    p = scores >= 0.5
    arrays = {"labels": y, "logits": scores}
    for name, peer in (("precision", sk.precision_score), ("f1", sk.f1_score)):
        found = numbers(name, arrays, 2, task="binary")
        assert found == {name: pytest.approx(peer(y, p), rel=1e-15)}
        both = numbers(name, arrays, 2, task="binary", average="none")
        assert both[f"{name}_0"] == pytest.approx(peer(y, p, pos_label=0), rel=1e-15)
