"""Metrics of predicted classes: the laws of metrics, and counts beyond float64."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from sklearn import metrics as sk

from pipeline import metrics
from pipeline.content import from_tree, to_tree
from pipeline.statistics import ClassCounts
from pipeline.testing import Data, MetricLaws
from pipeline.views import Predicted


class TestHugeCounts:
    """Hand-made states of more than 10^12 rows."""

    tp = np.array([10**12 - 1, 1, 0, 3 * 10**17], np.int64)
    t = np.array([10**12, 3, 0, 3 * 10**17 + 1], np.int64)
    p = np.array([10**12 + 1, 2, 0, 3 * 10**17], np.int64)
    counts = ClassCounts(tp, t, p)

    def exact(self, numerators: Iterable[Any], denominators: Iterable[Any]) -> Fraction:
        pairs = zip(numerators, denominators, strict=True)
        defined = [Fraction(int(a), int(b)) for a, b in pairs if b]
        return sum(defined, Fraction(0)) / len(defined)

    def test_numbers_are_the_exact_fractions_rounded_once(self) -> None:
        assert float(metrics.accuracy(self.counts)) == sum(self.tp.tolist()) / sum(self.t.tolist())
        balanced = float(metrics.balanced_accuracy(self.counts))
        assert balanced == float(self.exact(self.tp, self.t))
        for name, numerator, denominator in (
            ("precision", self.tp, self.p),
            ("recall", self.tp, self.t),
            ("f1", 2 * self.tp, self.t + self.p),
            ("iou", self.tp, self.t + self.p - self.tp),
        ):
            found = metrics.class_metric(name, self.counts)[f"{name}_mean"]
            assert float(found) == float(self.exact(numerator, denominator))
            assert found.lower == found.upper == found.value
            assert found.exact

    def test_factors_of_all_counts_change_nothing(self) -> None:
        small = ClassCounts(*(np.array(x, np.int64) for x in ([1, 2, 0], [3, 2, 0], [2, 2, 1])))
        large = ClassCounts(*(x * 10**15 for x in small))
        for name in ("precision", "recall", "f1", "iou", "dice"):
            for average in ("macro", "micro", "weighted", "none"):
                found = metrics.class_metric(name, small, average)
                assert found == metrics.class_metric(name, large, average)


def classified(splits: Sequence[Data]) -> tuple[Any, Any]:
    """Return labels and predictions of the labelled rows, from the logits, by numpy alone."""
    y = np.concatenate([part.arrays["labels"] for part in splits])
    p = np.concatenate([part.arrays["logits"].argmax(axis=1) for part in splits])
    return y[y >= 0], p[y >= 0]


class TestAccuracyLaws(MetricLaws):
    metric = metrics.Accuracy()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"accuracy": sk.accuracy_score(*classified(splits))}


class TestBalancedAccuracyLaws(MetricLaws):
    metric = metrics.BalancedAccuracy()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"balanced_accuracy": sk.balanced_accuracy_score(*classified(splits))}


class TestPrecisionLaws(MetricLaws):
    metric = metrics.Precision(average="weighted")

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"precision_weighted": sk.precision_score(*classified(splits), average="weighted")}


class TestRecallLaws(MetricLaws):
    metric = metrics.Recall(average="none")

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        alone = sk.recall_score(*classified(splits), average=None)
        return {f"recall_{c}": x for c, x in enumerate(alone)}


class TestF1Laws(MetricLaws):
    metric = metrics.F1(average="none", ignore=(1,))

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        y, p = classified(splits)
        kept = [0, 2, 3, 4]
        alone = sk.f1_score(y[y != 1], p[y != 1], labels=kept, average=None)
        return {f"f1_{c}": x for c, x in zip(kept, alone, strict=True)}


class TestIoULaws(MetricLaws):
    metric = metrics.IoU()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        macro = sk.jaccard_score(*classified(splits), average="macro")
        return {"iou_mean": macro, "iou_classes_averaged": 5}


class TestDiceLaws(MetricLaws):
    metric = metrics.Dice(average="micro")

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"dice_micro": sk.f1_score(*classified(splits), average="micro")}


class TestSpecificityLaws(MetricLaws):
    metric = metrics.Specificity(average="none")

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        tables = sk.multilabel_confusion_matrix(*classified(splits))
        return {
            f"specificity_{c}": tn / (tn + fp)
            for c, ((tn, fp), _) in enumerate(tables.astype(float))
        }


class TestMCCLaws(MetricLaws):
    metric = metrics.MCC()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"mcc": sk.matthews_corrcoef(*classified(splits))}

    def undefined(self) -> Iterable[Sequence[Data]]:
        (data, _) = self.splits()
        yield (data.take(data.arrays["labels"] == 2),)


class TestKappaLaws(MetricLaws):
    metric = metrics.Kappa(weighting="quadratic")

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        return {"kappa_quadratic": sk.cohen_kappa_score(*classified(splits), weights="quadratic")}


class TestTopKLaws(MetricLaws):
    metric = metrics.TopKAccuracy(top_k=2)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        y, scores = (
            np.concatenate([part.arrays[name] for part in splits]) for name in ("labels", "logits")
        )
        found = sk.top_k_accuracy_score(y[y >= 0], scores[y >= 0], k=2, labels=range(5))
        return {"top_2_accuracy": found}


class TestGeneralisedDiceLaws(MetricLaws):
    metric = metrics.GeneralisedDice()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        matrix = sk.confusion_matrix(*classified(splits))
        right, t, p = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
        return {"generalised_dice": 2 * (right / t**2).sum() / ((t + p) / t**2).sum()}


class TestWeightedLaws(MetricLaws):
    metric = metrics.F1(average="weighted", weights="scores", of=Predicted())

    def splits(self) -> Sequence[Data]:
        positive = [part.with_arrays(scores=-part.arrays["scores"]) for part in super().splits()]
        return [part.take(part.arrays["scores"] > 0) for part in positive]

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        weights = np.concatenate([part.arrays["scores"] for part in splits])
        labels = np.concatenate([part.arrays["labels"] for part in splits])
        found = sk.f1_score(
            *classified(splits), average="weighted", sample_weight=weights[labels >= 0]
        )
        return {"f1_weighted": found}


class TestLabelsLaws(MetricLaws):
    """Labels of which a row may have several, entries of which do not count."""

    metric = metrics.Recall(task="multilabel", ignore=7, average="none")

    def splits(self) -> Sequence[Data]:
        rng = np.random.default_rng(0)
        tags = rng.choice([0, 1, 7], (90, 4)).astype(np.uint8)
        scores = rng.random((90, 4)).astype(np.float32)
        whole = Data({"labels": tags, "logits": scores}, 4)
        return whole.take(slice(0, 60)), whole.take(slice(60, 90))

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        y, scores = (
            np.concatenate([part.arrays[name] for part in splits]) for name in ("labels", "logits")
        )
        found = {}
        for c in range(4):
            counts = y[:, c] != 7
            found[f"recall_{c}"] = sk.recall_score(y[counts, c], scores[counts, c] >= 0.5)
        return found


class TestExactMatchLaws(TestLabelsLaws):
    metric = metrics.ExactMatch(task="multilabel", ignore=7)

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        y, scores = (
            np.concatenate([part.arrays[name] for part in splits]) for name in ("labels", "logits")
        )
        some = (y != 7).any(axis=1)
        right = ((y == (scores >= 0.5)) | (y == 7)).all(axis=1)
        return {"exact_match": (right & some).sum() / some.sum()}


def test_metrics_are_saved_and_read_as_values() -> None:
    for metric in (metrics.IoU(average="none", ignore=(255, 1)), metrics.ConfusionMatrix()):
        assert from_tree(to_tree(metric), {}) == metric
