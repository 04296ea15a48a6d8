"""Brier score, log-likelihood and mean confidence: definitions, scikit-learn, extreme logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk
from test_metrics_calibration import BINARY, data_of, kept, measured, softmax

import pipeline as ff
from pipeline import metrics
from pipeline.errors import ConfigError
from pipeline.metrics.probabilities import NLL, Brier, MeanConfidence, mean_of
from pipeline.statistics.exact_sums import UNITS, Sum
from pipeline.testing import Data, MetricLaws
from pipeline.testing.drive import outcome


def mean(x: Any) -> float:
    """Return the mean of float64 numbers, rounded once."""
    return float(sum(map(Fraction, np.asarray(x, np.float64).tolist())) / len(x))


class TestBrier(MetricLaws):
    metric: Any = Brier()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, y = kept(splits)
        return {"brier": mean(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1))}

    def undefined(self) -> Iterable[Sequence[Data]]:
        part = self.splits()[0]
        self.metric = type(self.metric)(ignore=3)
        yield (part.with_arrays(labels=np.where(part.arrays["labels"] < 0, -1, 3)),)


class TestNLL(TestBrier):
    metric = NLL()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, y = kept(splits)
        return {"nll": mean(-np.log(p[np.arange(len(y)), y]))}


class TestMeanConfidence(TestBrier):
    metric = MeanConfidence()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        p, _ = kept(splits)
        return {"mean_confidence": mean(p.max(axis=1))}


def test_worked_numbers() -> None:
    one: Any = {"kind": "probabilities"}
    assert measured(Brier(**one), [0], [[0.5, 0.3, 0.2]], 3) == {"brier": 0.38}
    assert measured(NLL(**one), [0], [[0.5, 0.3, 0.2]], 3) == {"nll": math.log(2)}
    assert measured(MeanConfidence(**one), [1], [[0.5, 0.3, 0.2]], 3) == {"mean_confidence": 0.5}
    found = measured(Brier(**BINARY), [0, 1], [0.25, 0.25])
    assert found == {"brier": 2 * (0.0625 + 0.5625) / 2}
    found = measured(Brier(**BINARY, of="positive"), [0, 1], [0.25, 0.25])
    assert found == {"brier_positive": (0.0625 + 0.5625) / 2}
    found = measured(MeanConfidence(**BINARY, of="positive"), [0, 1], [0.25, 0.5])
    assert found == {"mean_confidence_positive": 0.375}


def test_scikit_learn_agrees() -> None:
    rng = np.random.default_rng(0)
    f, y = 2 * rng.standard_normal((300, 4)), rng.integers(0, 4, 300)
    p = softmax(f)
    for kind, scores in (("logits", f), ("probabilities", p)):
        nll = measured(NLL(kind=kind), y, scores, 4)["nll"]
        assert nll == pytest.approx(sk.log_loss(y, p), rel=1e-13)
        brier = measured(Brier(kind=kind), y, scores, 4)["brier"]
        ours = sk.brier_score_loss(y, p, labels=range(4), scale_by_half=False)
        assert brier == pytest.approx(ours, rel=1e-13)
    z, y = rng.standard_normal(300), rng.integers(0, 2, 300)
    q = 1 / (1 + np.exp(-z))
    for kind, scores in (("logits", z), ("probabilities", q)):
        options: Any = {"task": "binary", "kind": kind}
        nll = measured(NLL(**options), y, scores)["nll"]
        assert nll == pytest.approx(sk.log_loss(y, q), rel=1e-13)
        brier = measured(Brier(**options, of="positive"), y, scores)["brier_positive"]
        assert brier == pytest.approx(sk.brier_score_loss(y, q), rel=1e-13)
        assert measured(Brier(**options), y, scores)["brier"] == pytest.approx(2 * brier, rel=1e-15)


def test_two_columns_and_the_score_of_class_1_agree() -> None:
    rng = np.random.default_rng(1)
    f, y = rng.standard_normal((80, 2)), rng.integers(0, 2, 80)
    z = f[:, 1] - f[:, 0]
    for of in ("all", "positive"):
        (two,) = measured(Brier(of=of), y, f).values()
        (one,) = measured(Brier(of=of, task="binary"), y, z).values()
        assert one == pytest.approx(two, rel=1e-13)
    for metric in (NLL, MeanConfidence):
        (two,) = measured(metric(), y, f).values()
        (one,) = measured(metric(task="binary"), y, z).values()
        assert one == pytest.approx(two, rel=1e-13)


def test_log_space_saturates_nowhere() -> None:
    small = math.exp(-60.0)
    assert measured(NLL(), [1], [[0.0, 60.0]])["nll"] == pytest.approx(small, rel=1e-12)
    assert measured(NLL(), [0], [[0.0, 2000.0]])["nll"] == 2000.0
    assert measured(NLL(task="binary"), [1], [60.0])["nll"] == pytest.approx(small, rel=1e-12)
    assert measured(Brier(), [1], [[0.0, 60.0]])["brier"] == pytest.approx(2 * small**2, rel=1e-12)


def test_a_label_of_probability_zero_makes_the_likelihood_infinite() -> None:
    found = outcome(NLL(**BINARY), data_of([0, 1], [0.5, 0.0]).cut())["nll"]
    assert (found.value, found.lower, found.exact) == (math.inf, math.inf, True)


def test_labels_of_a_multilabel_task_are_elements() -> None:
    rng = np.random.default_rng(2)
    z, y = rng.standard_normal((20, 3)), rng.integers(0, 2, (20, 3))
    y[4, 1] = 255
    counts = y < 255
    q = 1 / (1 + np.exp(-z[counts]))
    options: Any = {"task": "multilabel", "ignore": 255}
    found = measured(NLL(**options), y, z, 3, [[7, 13]])["nll"]
    assert found == pytest.approx(sk.log_loss(y[counts], q), rel=1e-13)
    found = measured(Brier(**options, of="positive"), y, z, 3)["brier_positive"]
    assert found == pytest.approx(np.mean((q - y[counts]) ** 2), rel=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_masks_of_any_float_and_any_cut(dtype: str) -> None:
    rng = np.random.default_rng(3)
    f = rng.standard_normal((5, 3, 4, 2)).astype(dtype)
    y = rng.integers(0, 3, (5, 4, 2)).astype(np.uint8)
    flat = np.moveaxis(f, 1, -1).reshape(-1, 3)
    for metric in (NLL(), Brier(), MeanConfidence()):
        expected = measured(metric, y.reshape(-1), flat, 3)
        for cut in (None, [[1] * 5], [[2, 0], [3]]):
            assert measured(metric, y, f, 3, cut) == pytest.approx(expected, rel=1e-14)


def test_no_cut_changes_a_bit() -> None:
    rng = np.random.default_rng(4)
    f, y = 5 * rng.standard_normal((400, 3)), rng.integers(0, 3, 400)
    for metric in (NLL(), Brier(), MeanConfidence()):
        cuts = (None, [[1] * 400], [[7] * 57 + [1]], [[399], [1]])
        assert len({str(measured(metric, y, f, 3, cut)) for cut in cuts}) == 1


def test_of_nothing_there_is_no_mean() -> None:
    assert mean_of(Sum(0, 0, 0)).reason == "no element with a label counts"
    assert mean_of(Sum(4, 0, 3 * UNITS)).value == 0.75


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="of: 'top_label' is unknown; choose all or positive"):
        Brier(of="top_label")
    with pytest.raises(ConfigError, match="choose of='positive'"):
        Brier(task="multilabel")
    with pytest.raises(ConfigError, match="choose of='positive'"):
        MeanConfidence(task="multilabel")
    with pytest.raises(ConfigError, match="class 1 of two"):
        measured(Brier(of="positive"), [0], [[1.0, 2.0, 3.0]], 3)


def test_collections_have_the_numbers_of_one_pass_over_all_rows() -> None:
    rng = np.random.default_rng(5)
    f, y = rng.standard_normal((90, 3)).astype(np.float32), rng.integers(0, 3, 90)
    names = ["ece", "mce", "rmsce", "classwise_ece", "brier", "nll", "mean_confidence"]
    ranked = ["ace", "aurc", "aurra"]
    made = ff.metrics.Collection(names + ranked, classes=3)
    added = [ff.metrics.Collection(names, classes=3) for _ in range(3)]
    for part, rows in zip(added, np.array_split(np.arange(90), 3), strict=True):
        made.update(f[rows], y[rows])
        part.update(f[rows], y[rows])
    whole: dict[str, Any] = {}
    for name in names + ranked:
        whole |= outcome(metrics.make(name), data_of(y, f, 3).cut())
    assert made.compute() == whole
    assert added[0].fixed
    total = added[0].with_packed(sum(part.packed() for part in added))
    assert total.compute() == {key: whole[key] for key in total.compute()}
