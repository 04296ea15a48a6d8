"""Calibration errors: definitions in fractions, worked numbers, public fault cases, any cut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.metrics.adaptive import ACE, ClasswiseECE
from pipeline.metrics.calibration import ECE, MCE, RMSCE, Reliability, width_edges
from pipeline.statistics.value_counts import values_of
from pipeline.testing import Data, MetricLaws
from pipeline.testing.drive import PLACES, at, outcome
from pipeline.testing.strategies import LAW, partitions

BINARY: Any = {"task": "binary", "kind": "probabilities"}


def data_of(labels: Any, scores: Any, classes: int = 2) -> Data:
    return Data({"labels": np.asarray(labels), "logits": np.asarray(scores)}, classes)


def measured(metric: Any, labels: Any, scores: Any, classes: int = 2, cut: Any = None) -> Any:
    found = outcome(metric, data_of(labels, scores, classes).cut(cut))
    return {name: estimate.value for name, estimate in found.items()}


def softmax(f: Any) -> Any:
    e = np.exp(f - f.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def kept(splits: Sequence[Data]) -> tuple[Any, Any]:
    """Return the probabilities and labels of all rows that have a label."""
    p = softmax(np.concatenate([part.arrays["logits"] for part in splits]))
    y = np.concatenate([part.arrays["labels"] for part in splits])
    return p[y >= 0], y[y >= 0]


def by_width(p: Any, edges: Sequence[float]) -> list[Any]:
    """Return which probabilities are in each bin: from its edge to below the next, the last all."""
    ends = [*edges[1:-1], math.inf]
    return [(p >= low) & (p < high) for low, high in zip(edges[:-1], ends, strict=True)]


def by_mass(p: Any, bins: int) -> list[Any]:
    """Return the same for bins that begin at values of equally spaced ranks."""
    ordered = np.sort(p)
    first = [ordered[i * len(p) // bins] for i in range(1, bins)]
    low, high = [-math.inf, *first], [*first, math.inf]
    return [(p >= a) & (p < b) for a, b in zip(low, high, strict=True)]


def gaps(p: Any, hit: Any, within: list[Any]) -> list[tuple[int, Fraction]]:
    """Return rows and |right rows - sum of probabilities| of each bin that has rows."""
    return [
        (
            int(mask.sum()),
            abs(Fraction(int(hit[mask].sum())) - sum(map(Fraction, p[mask].tolist()), Fraction())),
        )
        for mask in within
        if mask.any()
    ]


def ece(p: Any, hit: Any, within: list[Any]) -> Fraction:
    return sum((gap for _, gap in gaps(p, hit, within)), Fraction(0)) / len(p)


def edges(bins: int) -> list[float]:
    return [i / bins for i in range(bins + 1)]


def top_label(splits: Sequence[Data]) -> tuple[Any, Any]:
    p, y = kept(splits)
    return p.max(axis=1), p.argmax(axis=1) == y


class TestECE(MetricLaws):
    metric = ECE(bins=12)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, hit = top_label(splits)
        return {"ece": float(ece(p, hit, by_width(p, edges(12))))}

    def undefined(self) -> Iterable[Sequence[Data]]:
        part = self.splits()[0]
        labels = np.where(part.arrays["labels"] < 0, -1, 3)
        self.metric = ECE(bins=12, ignore=3)
        yield (part.with_arrays(labels=labels),)


class TestMCE(MetricLaws):
    metric = MCE(bins=7)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, hit = top_label(splits)
        return {"mce": float(max(gap / rows for rows, gap in gaps(p, hit, by_width(p, edges(7)))))}


class TestRMSCE(MetricLaws):
    metric = RMSCE(bins=10)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, hit = top_label(splits)
        squares = sum(gap**2 / rows for rows, gap in gaps(p, hit, by_width(p, edges(10))))
        return {"rmsce": math.sqrt(squares / len(p))}


class TestACE(MetricLaws):
    metric = ACE(bins=9)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, hit = top_label(splits)
        return {"ace": float(ece(p, hit, by_mass(p, 9)))}


class TestACERefined(TestACE):
    metric = ACE(bins=9, exact=True)


class TestClasswiseECE(MetricLaws):
    metric = ClasswiseECE(bins=8)
    name = "classwise_ece"

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, y = kept(splits)
        each = [ece(p[:, c], y == c, self.within(p[:, c])) for c in range(p.shape[1])]
        return {self.name: float(sum(each) / len(each)), f"{self.name}_classes_averaged": len(each)}

    def within(self, p: Any) -> list[Any]:
        return by_width(p, edges(8))


class TestClasswiseACE(TestClasswiseECE):
    metric = ClasswiseECE(bins=8, adaptive=True)
    name = "classwise_ace"

    def within(self, p: Any) -> list[Any]:
        return by_mass(p, 8)


drawn = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 20).map(lambda i: i / 20), min_size=n, max_size=n),
        st.lists(st.integers(0, 1), min_size=n, max_size=n),
        partitions(n),
    )
)


@LAW
@given(drawn=drawn, bins=st.integers(1, 25))
def test_ties_and_edges_are_as_defined(drawn: Any, bins: int) -> None:
    p, y, cut = drawn
    x, hit = np.array(p), np.array(y)
    found = measured(ECE(**BINARY, of="positive", bins=bins), y, x, cut=cut)
    assert found["ece_positive"] == float(ece(x, hit, by_width(x, edges(bins))))
    for exact in (False, True):
        found = measured(ACE(**BINARY, of="positive", bins=bins, exact=exact), y, x, cut=cut)
        if bins > len(p):
            assert math.isnan(found["ace_positive"])
        else:
            assert found["ace_positive"] == float(ece(x, hit, by_mass(x, bins)))


@LAW
@given(data=st.data(), budget=st.integers(64, 600), bins=st.integers(1, 6))
def test_bounds_of_ace_hold_the_exact_value(data: Any, budget: int, bins: int) -> None:
    n = data.draw(st.integers(10, 200))
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    x, y = rng.random(n).round(data.draw(st.sampled_from((1, 2, 17)))), rng.integers(0, 2, n)
    options: Any = {**BINARY, "of": "positive", "bins": bins}
    exact = outcome(ACE(**options, exact=True), data_of(y, x).cut())["ace_positive"]
    kept = outcome(ACE(**options), data_of(y, x).cut())["ace_positive"]
    bounded = outcome(ACE(**options, budget=budget), data_of(y, x).cut([[n // 2], [n - n // 2]]))
    found = bounded["ace_positive"]
    assert exact.exact
    assert kept == exact
    assert found.lower <= exact.value <= found.upper
    assert found.lower <= found.value <= found.upper
    if found.exact:
        assert found == exact


def test_torchmetrics_3510_a_confidence_of_one_is_in_the_last_bin() -> None:
    found = measured(ECE(**BINARY, of="positive", bins=10), [1, 0], [0.95, 1.0])
    assert found == {"ece_positive": 0.475}
    two = np.array([[0.05, 0.95], [0.0, 1.0]])
    assert measured(ECE(kind="probabilities", bins=10), [1, 0], two) == {"ece": 0.475}


def test_the_class_and_the_predicted_class_have_names_of_their_own() -> None:
    """torchmetrics' binary ECE is of the probability of class 1."""
    p, y = [0.1, 0.2, 0.7], [0, 0, 1]
    assert measured(ECE(**BINARY, bins=2, of="positive"), y[:2], p[:2]) == {
        "ece_positive": pytest.approx(0.15)
    }
    assert measured(ECE(**BINARY, bins=2), y, p)["ece"] == pytest.approx((0.1 + 0.2 + 0.3) / 3)
    assert measured(MCE(**BINARY, bins=2), [1, 1], [0.1, 0.4])["mce"] == pytest.approx(0.75)
    assert measured(MCE(**BINARY, bins=2, of="positive"), [1, 1], [0.1, 0.4]) == {
        "mce_positive": pytest.approx(0.75)
    }
    found = measured(RMSCE(**BINARY, bins=2, of="positive"), [0, 1], [0.1, 0.6])
    assert found["rmsce_positive"] == pytest.approx(math.sqrt((0.1**2 + 0.4**2) / 2))


def test_pytorch_ood_the_last_bin_counts() -> None:
    """Its calibration error, after natural-adv-examples, leaves the last hundred points out."""
    p = np.concatenate([np.full(100, 0.25), np.full(100, 0.75)])
    right = np.concatenate([np.arange(100) < 25, np.zeros(100)]).astype(int)
    found = measured(ACE(**BINARY, of="positive", bins=2), right, p)
    assert found == {"ace_positive": 0.375}
    few = measured(ACE(**BINARY, of="positive", bins=2), right[:1], p[:1])
    assert math.isnan(few["ace_positive"])


def test_fewer_elements_than_bins_of_equal_mass_are_undefined() -> None:
    for metric in (ACE(**BINARY, bins=4), ACE(**BINARY, bins=4, exact=True)):
        (found,) = outcome(metric, data_of([0, 1, 1], [0.2, 0.3, 0.4]).cut()).values()
        assert math.isnan(found.value)
        assert found.reason == "3 elements count, too few for 4 bins of equal mass"
    classwise = ClasswiseECE(bins=4, adaptive=True)
    found = outcome(classwise, data_of([0, 1, 1], np.zeros((3, 2))).cut())["classwise_ace"]
    assert found.reason == "no class has 4 elements"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_written_as_an_edge_begins_a_bin(dtype: str) -> None:
    """0.7 in float32 is below 0.7 in float64, and still in the bin from 0.7 to 0.8."""
    p = (np.arange(11) / 10).astype(dtype)
    found = outcome(
        Reliability(**BINARY, of="positive", bins=10), data_of(np.zeros(11, int), p).cut()
    )
    np.testing.assert_array_equal(found.rows, [1] * 9 + [2])
    keys = width_edges(10, np.dtype(dtype)).array
    np.testing.assert_array_equal(values_of(keys), (np.arange(1, 10) / 10).astype(dtype))


def test_a_reliability_diagram_has_empty_bins() -> None:
    p, y = [0.05, 0.15, 0.95, 1.0], [0, 1, 1, 1]
    found = outcome(Reliability(**BINARY, of="positive", bins=5), data_of(y, p).cut())
    np.testing.assert_array_equal(found.edges, [0, 0.2, 0.4, 0.6, 0.8, 1])
    np.testing.assert_array_equal(found.rows, [2, 0, 0, 0, 2])
    np.testing.assert_array_equal(found.accuracy, [0.5, np.nan, np.nan, np.nan, 1.0])
    np.testing.assert_allclose(found.confidence, [0.1, np.nan, np.nan, np.nan, 0.975])
    assert (found.of, found.ece.value) == ("positive", pytest.approx(0.5 * 0.4 + 0.5 * 0.025))
    assert (found.mce.value, found.rmsce.value) == pytest.approx((0.4, math.sqrt(0.0803125)))


@pytest.mark.parametrize("library", PLACES)
def test_libraries_agree_to_the_last_bit_on_probabilities(library: str) -> None:
    rng = np.random.default_rng(5)
    p, y = softmax(rng.standard_normal((90, 3))), rng.integers(0, 3, 90)
    split = data_of(y, p, 3).cut([[40, 1], [49]])
    metrics: list[Any] = [
        ECE(kind="probabilities"), RMSCE(kind="probabilities"), ACE(kind="probabilities"),
        ClasswiseECE(kind="probabilities"), ClasswiseECE(kind="probabilities", adaptive=True),
    ]  # fmt: skip
    for metric in metrics:
        assert outcome(metric, split, at(PLACES[library])) == outcome(metric, split)


METRICS: list[Any] = [ECE, MCE, RMSCE, ACE, ClasswiseECE]


@pytest.mark.parametrize("metric", METRICS)
def test_masks_are_as_their_elements(metric: Any) -> None:
    rng = np.random.default_rng(6)
    f = rng.standard_normal((4, 3, 5, 6)).astype(np.float16)
    y = rng.integers(0, 3, (4, 5, 6)).astype(np.uint8)
    y[1, :2] = 255
    flat, labels = np.moveaxis(f, 1, -1).reshape(-1, 3), y.reshape(-1)
    expected = measured(metric(), labels[labels < 255], flat[labels < 255], 3)
    for cut in (None, [[1, 0], [3]], [[2], [2]]):
        assert measured(metric(ignore=255), y, f, 3, cut) == pytest.approx(expected, abs=1e-14)
    with pytest.raises(DataError, match="labels are not 0 to 2, first in row 1: 255"):
        measured(metric(), y, f, 3)


def test_refined_masks_are_as_their_elements() -> None:
    rng = np.random.default_rng(7)
    f, y = rng.standard_normal((4, 3, 5)), rng.integers(0, 3, (4, 5))
    y[2] = 7
    for cut in (None, [[1, 2, 1]]):
        found = measured(ACE(ignore=7, exact=True), y, f, 3, cut)
        assert found == measured(ACE(ignore=7), y, f, 3, cut)


def test_ignored_classes_within_the_range_have_no_part() -> None:
    rng = np.random.default_rng(8)
    p, y = softmax(rng.standard_normal((60, 3))), rng.integers(0, 3, 60)
    found = measured(ClasswiseECE(kind="probabilities", ignore=1), y, p, 3)
    rest = y != 1
    each = [ece(p[rest, c], y[rest] == c, by_width(p[rest, c], edges(15))) for c in (0, 2)]
    assert found == {
        "classwise_ece": float(sum(each) / 2), "classwise_ece_classes_averaged": 2.0
    }  # fmt: skip


def test_labels_of_a_multilabel_task() -> None:
    rng = np.random.default_rng(9)
    p, y = rng.random((30, 4)), rng.integers(0, 2, (30, 4))
    y[3:9, 1] = -1
    options: Any = {"task": "multilabel", "kind": "probabilities", "ignore": -1}
    counts = y >= 0
    found = measured(ECE(**options, of="positive"), y, p, 4, [[7, 23]])
    within = by_width(p[counts], edges(15))
    assert found == {"ece_positive": float(ece(p[counts], y[counts] == 1, within))}
    each = []
    for c in range(4):
        x, hit = p[counts[:, c], c], y[counts[:, c], c] == 1
        each.append(ece(x, hit, by_width(x, edges(15))))
    assert measured(ClasswiseECE(**options), y, p, 4)["classwise_ece"] == float(sum(each) / 4)


def test_a_class_that_never_occurs_has_an_error_too() -> None:
    """It has a probability in every row, and is never right."""
    p = np.array([[0.5, 0.25, 0.25]] * 4)
    found = measured(ClasswiseECE(kind="probabilities"), [0, 0, 1, 1], p, 3)
    assert found["classwise_ece"] == pytest.approx((0 + 0.25 + 0.25) / 3)
    assert found["classwise_ece_classes_averaged"] == 3.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ECE(bins=0), "bins: 0; expected 1 to 16,384"),
        (lambda: ACE(bins=10**6), "bins: 1000000"),
        (lambda: ECE(of="second"), "of: 'second' is unknown; choose top_label or positive"),
        (lambda: MCE(task="multilabel"), "choose of='positive'"),
        (lambda: RMSCE(kind="scores"), "kind: 'scores' is unknown"),
        (lambda: ECE(ignore=cast(Any, "void")), "ignore: 'void'; expected a label"),
        (lambda: ClasswiseECE(task="binary"), "scores are of one class"),
    ],
)
def test_options_are_checked(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_options_are_checked_against_the_split() -> None:
    with pytest.raises(ConfigError, match="class 1 of two, id/train declares 3 classes"):
        measured(ECE(of="positive"), [0, 1], np.zeros((2, 3)), 3)
    with pytest.raises(ConfigError, match="task: binary, but id/train declares 3 classes"):
        measured(ECE(task="binary"), [0, 1], np.zeros(2), 3)
    with pytest.raises(ConfigError, match="one label a row"):
        measured(ClasswiseECE(adaptive=True), np.zeros((2, 4), int), np.zeros((2, 3, 4)), 3)
    data = Data({"labels": np.array([0]), "predictions": np.array([0])}, 2)
    with pytest.raises(MissingInputError, match="ECE needs scores, and predictions of int64"):
        outcome(ECE(), data.cut())


def test_scores_of_another_kind_are_refused() -> None:
    with pytest.raises(DataError, match="Declare kind='logits'"):
        measured(ECE(kind="probabilities"), [0, 1], [[2.0, 1.0], [0.5, 0.5]])
