"""Options of metrics of classes, by name: tasks, arrays, averages, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from pipeline import metrics
from pipeline.chunk import REHEARSING
from pipeline.content import from_tree, to_tree
from pipeline.errors import ConfigError, DataError, MissingInputError, UnknownNameError
from pipeline.metrics.names import HOMES
from pipeline.statistics import (
    ConfusionMatrix,
    LabelCounts,
    LabelMarginals,
    Marginals,
    WeightedMarginals,
)
from pipeline.synthetic import SyntheticSplit
from pipeline.testing import Data, recipes
from pipeline.testing.drive import Ask, outcome
from pipeline.views import AmongTop, ArgMax, AtLeast, Every, Labelled, Predicted, Stored, Truth

COUNTING = (*HOMES["per_class"], *HOMES["whole"], *HOMES["confusion"])
WHOLE = ("accuracy", "hamming", *HOMES["whole"])


def data(classes: int = 3, **arrays: Any) -> Data:
    return Data({name: np.asarray(x) for name, x in arrays.items()}, classes)


def asked(metric: Any, of: Data) -> Any:
    return next(metric.passes(of.schema))


def numbers(metric: Any, of: Data) -> dict[str, float]:
    return {key: float(number) for key, number in outcome(metric, of.cut()).items()}


IMAGES = data(labels=[0, 1, 2], logits=np.eye(3))
BROUGHT = data(labels=[0, 1, 2], predictions=[0, 2, 2], logits=np.eye(3))
MASKS = data(labels=np.zeros((3, 2, 2), int), logits=np.zeros((3, 3, 2, 2)))


class TestNames:
    @pytest.mark.parametrize("name", COUNTING)
    def test_every_name_makes_a_metric_that_is_saved_as_a_value(self, name: str) -> None:
        made = metrics.make(name, ignore=[255, 0])
        assert (metrics.name_of(made), metrics.named(name)) == (name, type(made))
        assert made == from_tree(json.loads(json.dumps(to_tree(made))), {})
        assert made != metrics.make(name)
        assert hash(made) == hash(metrics.make(name, ignore=(0, 255)))

    def test_names_are_listed_and_near_ones_suggested(self) -> None:
        assert set(COUNTING) < set(metrics.names())
        assert list(metrics.names()) == sorted(metrics.names())
        for elsewhere in ("jaccard", "JaccardIndex", "mIoU", "MulticlassJaccardIndex", "IoU"):
            with pytest.raises(
                UnknownNameError, match=f"'{elsewhere}': did you mean 'iou'. known: "
            ):
                metrics.make(elsewhere)
        with pytest.raises(UnknownNameError, match="did you mean 'precision'"):
            metrics.named("precison")
        with pytest.raises(ConfigError, match=r"averge: iou has no such option: did you mean 'av"):
            metrics.make("iou", averge="none")

    def test_metrics_of_others_go_by_their_class(self) -> None:
        assert metrics.name_of(Ask(None)) == "Ask"


class TestArrays:
    """Which arrays are read follows from the schema alone."""

    def test_predictions_come_before_scores(self) -> None:
        margins = asked(metrics.IoU(), BROUGHT)["marginals"]
        assert margins == Marginals(Stored("predictions"), Truth(), Every())
        assert asked(metrics.IoU(), IMAGES)["marginals"] == Marginals(ArgMax(), Truth(), Labelled())
        assert asked(metrics.IoU(), MASKS)["marginals"] == Marginals(ArgMax(), Truth(), Every())
        assert asked(metrics.IoU(top_k=2), BROUGHT)["marginals"].of == AmongTop(2)
        assert asked(metrics.IoU(of=Predicted()), BROUGHT)["marginals"].of == Predicted()
        found = asked(metrics.IoU(where=Every()), IMAGES)["marginals"]
        assert found == Marginals(ArgMax(), Truth(), Every())

    @pytest.mark.parametrize("task", ["binary", "multilabel"])
    def test_scores_of_positive_classes_have_a_threshold(self, task: str) -> None:
        shape = (4,) if task == "binary" else (4, 2)
        of = data(2, labels=np.ones(shape, int), logits=np.full(shape, 0.7))
        margins = asked(metrics.F1(task=task, threshold=0.7), of)["marginals"]
        assert margins.of == AtLeast(0.7)
        assert isinstance(margins, Marginals if task == "binary" else LabelMarginals)

    def test_weights_are_named(self) -> None:
        of = data(**BROUGHT.arrays, heavy=[1.0, 2.0, 0.5])
        margins = asked(metrics.F1(weights="heavy"), of)["marginals"]
        assert margins == WeightedMarginals(
            Stored("predictions"), where=Every(), weights=Stored("heavy")
        )
        assert numbers(metrics.Accuracy(weights="heavy"), of) == {"accuracy": 1.5 / 3.5}
        with pytest.raises(MissingInputError, match="no array 'weights'"):
            numbers(metrics.F1(weights="weights"), of)

    def test_the_matrix_is_only_asked_for_by_name(self) -> None:
        for name in COUNTING:
            options = {"top_k": 2} if name == "top_k_accuracy" else {}
            requests = asked(metrics.make(name, **options), BROUGHT).values()
            matrix = any(isinstance(request, ConfusionMatrix) for request in requests)
            assert matrix == (name == "confusion_matrix")

    def test_neither_predictions_nor_scores(self) -> None:
        with pytest.raises(MissingInputError, match="IoU needs an array of predictions or logits"):
            asked(metrics.IoU(), data(labels=[0, 1]))
        with pytest.raises(
            MissingInputError, match="predictions of int64 are classes; give scores"
        ):
            asked(metrics.IoU(top_k=2), data(labels=[0, 1], predictions=[0, 1]))

    @pytest.mark.parametrize(
        ("task", "labels", "logits"),
        [
            ("multiclass", (4,), (4,)),
            ("multiclass", (4, 2, 2), (4, 2)),
            ("binary", (4,), (4, 2)),
            ("multilabel", (4,), (4, 2)),
        ],
    )
    def test_shapes_that_do_not_go_together(self, task: str, labels: Any, logits: Any) -> None:
        of = data(2, labels=np.zeros(labels, int), logits=np.zeros(logits))
        with pytest.raises(DataError, match=r"have shape|has rows of shape"):
            asked(metrics.IoU(task=task), of)

    @pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
    def test_scores_are_floats(self, task: str) -> None:
        labels = np.zeros((4, 2) if task == "multilabel" else 4, int)
        of = data(2, labels=labels, logits=np.zeros(4 if task == "binary" else (4, 2), int))
        with pytest.raises(DataError, match="logits has dtype int64; scores are floats"):
            asked(metrics.IoU(task=task), of)

    @pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
    @pytest.mark.parametrize("name", COUNTING)
    def test_every_metric_is_rehearsed_before_anything_is_read(self, name: str, task: str) -> None:
        labels = np.zeros((4, 2) if task == "multilabel" else 4, np.uint8)
        logits = np.zeros(4 if task == "binary" else (4, 2))
        if task == "multilabel" and name in ("balanced_accuracy", "confusion_matrix"):
            pytest.skip("it is not for such a task")
        options = {"top_k": 2 if task == "multiclass" else 1} if name == "top_k_accuracy" else {}
        weights = {} if name == "confusion_matrix" else {"weights": "heavy"}
        of = data(2, labels=labels, logits=logits, heavy=np.ones(4))
        made = SyntheticSplit(of.schema)
        token = REHEARSING.set(True)
        try:
            assert outcome(metrics.make(name, task=task, **options, **weights), made)
        finally:
            REHEARSING.reset(token)

    def test_rows_that_are_out_of_distribution_do_not_count(self) -> None:
        splits = (recipes.labelled(rows=50), recipes.planted(rows=20))
        unlabelled = recipes.planted(rows=20)
        contents = {k: x for k, x in unlabelled.arrays.items() if k != "labels"}
        both = [
            outcome(metrics.IoU(), [split.cut() for split in (splits[0], other)])
            for other in (splits[1], Data(contents, unlabelled.classes, unlabelled.name, True))
        ]
        assert both == [outcome(metrics.IoU(), splits[0].cut())] * 2


class TestAverages:
    y, p = [0, 1, 1, 0], [0, 1, 0, 0]

    def test_several_at_once(self) -> None:
        of = data(2, labels=self.y, predictions=self.p)
        several = ("macro", "micro", "weighted", "none", "binary")
        found = numbers(metrics.IoU(average=several), of)
        assert list(found) == [
            "iou_mean", "iou_classes_averaged", "iou_micro", "iou_weighted", "iou_0", "iou_1", "iou"
        ]  # fmt: skip
        alone = [numbers(metrics.IoU(average=one), of) for one in several]
        assert found == {key: x for one in alone for key, x in one.items()}

    @pytest.mark.parametrize(
        ("task", "key"), [("multiclass", "f1_mean"), ("binary", "f1"), ("multilabel", "f1_mean")]
    )
    def test_the_average_of_a_task(self, task: str, key: str) -> None:
        shape = (2, 2) if task == "multilabel" else (4,)
        arrays = {"labels": np.reshape(self.y, shape), "predictions": np.reshape(self.p, shape)}
        assert key in numbers(metrics.F1(task=task), data(2, **arrays))

    @pytest.mark.parametrize("name", WHOLE)
    @pytest.mark.parametrize("task", ["multiclass", "binary"])
    def test_numbers_of_all_elements_go_by_their_name(self, name: str, task: str) -> None:
        of = data(2, labels=self.y, predictions=self.p)
        assert list(numbers(metrics.make(name, task=task), of)) == [name]

    def test_the_positive_class_may_be_ignored(self) -> None:
        of = data(2, labels=self.y, predictions=self.p)
        found = outcome(metrics.F1(task="binary", ignore=1), of.cut())["f1"]
        assert (math.isnan(found.value), found.reason) == (True, "class 1 is ignored")

    def test_the_positive_class_has_a_reason_too(self) -> None:
        of = data(2, labels=[0, 0], predictions=[0, 0])
        found = outcome(metrics.Recall(task="binary"), of.cut())["recall"]
        assert found.reason == "class 1 has no rows"
        assert numbers(metrics.Recall(task="binary", absent="one"), of) == {"recall": 1.0}


class TestLabels:
    """A task whose rows may have several labels."""

    tags = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [9, 1, 0]])
    guessed = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 0]])
    of = data(3, labels=tags, predictions=guessed)

    def found(self, name: str, **options: Any) -> dict[str, float]:
        return numbers(metrics.make(name, task="multilabel", ignore=9, **options), self.of)

    def test_entries_are_ignored_one_by_one(self) -> None:
        found = self.found("recall", average="none")
        np.testing.assert_equal(found, {"recall_0": 1 / 2, "recall_1": 2 / 3, "recall_2": math.nan})
        assert self.found("accuracy") == {"accuracy": 9 / 11}
        assert self.found("hamming") == {"hamming": 2 / 11}
        assert self.found("accuracy", average="none")["accuracy_0"] == 2 / 3
        assert self.found("hamming", average="none")["hamming_1"] == 1 / 4
        assert self.found("exact_match") == {"exact_match": 2 / 4}

    def test_every_label_counts_in_means(self) -> None:
        assert self.found("specificity") == {
            "specificity_mean": 1.0,
            "specificity_classes_averaged": 3,
        }

    def test_each_label_has_its_own_agreement(self) -> None:
        found = self.found("mcc", average=("none", "macro"))
        np.testing.assert_allclose(found["mcc_0"], 1 / 2)
        assert math.isnan(found["mcc_2"])
        assert found["mcc_mean"] == (found["mcc_0"] + found["mcc_1"]) / 2
        assert found["mcc_classes_averaged"] == 2
        filled = self.found("kappa", average="none", absent="zero", weighting="linear")
        assert filled["kappa_linear_2"] == 0
        assert list(self.found("kappa")) == ["kappa_mean", "kappa_classes_averaged"]

    def test_without_any_agreement(self) -> None:
        of = data(2, labels=np.ones((3, 2), int), predictions=np.ones((3, 2), int))
        found = outcome(metrics.MCC(task="multilabel"), of.cut())
        assert math.isnan(found["mcc_mean"].value)
        assert found["mcc_mean"].reason == "all labels, or all predictions, are of one class"


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("iou", {"task": "multi-class"}, "task: 'multi-class' is unknown; choose multiclass"),
        ("iou", {"average": "mean"}, "average: 'mean' is unknown; choose macro, micro"),
        ("iou", {"average": ("macro", "all")}, "average: 'all' is unknown"),
        ("iou", {"absent": "0"}, "absent: '0' is unknown; choose nan, zero, one"),
        ("f1", {"task": "binary", "threshold": math.nan}, "threshold: nan; expected a number such"),
        ("iou", {"top_k": 0}, "top_k: 0; expected 1 or more"),
        ("iou", {"top_k": 2, "task": "binary"}, "top_k: 2; expected 1 for a binary task"),
        ("iou", {"top_k": 2, "of": Predicted()}, "top_k: it chooses among stored logits"),
        ("iou", {"average": "binary", "task": "multilabel"}, "binary has no meaning"),
        ("accuracy", {"average": "binary"}, "average: 'binary' is unknown"),
        ("generalised_dice", {"average": "macro"}, "average: 'macro' is unknown; choose none"),
        ("generalised_dice", {"weighting": "log"}, "weighting: 'log' is unknown; choose square"),
        ("kappa", {"weighting": "cubic"}, "weighting: 'cubic' is unknown; choose none, linear"),
        ("mcc", {"average": "macro"}, "mcc is one number of all classes of a multiclass task"),
        ("fbeta", {"beta": 0.0}, "beta: 0.0; expected a number above 0"),
        ("fbeta", {"beta": math.inf}, "beta: inf; expected"),
        ("fbeta", {"beta": math.nan}, "beta: nan; expected"),
        ("balanced_accuracy", {"task": "multilabel"}, "not for a multilabel task; take recall"),
        ("confusion_matrix", {"task": "multilabel"}, "confusion_matrix: labels of a multilabel"),
        ("confusion_matrix", {"weights": "w"}, "leave weights out"),
    ],
)
def test_options_are_looked_at_when_they_are_given(
    name: str, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        metrics.make(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("iou", {"task": "binary"}, "task: binary, but id/train declares 3 classes; declare 2"),
        ("iou", {"average": "binary"}, "average: binary needs 2 classes, there are 3"),
        ("iou", {"top_k": 4}, "top_k: 4; id/train has 3 classes"),
    ],
)
def test_options_that_do_not_fit_the_split(name: str, options: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        asked(metrics.make(name, **options), IMAGES)


@pytest.mark.parametrize(("weighting", "match"), [("linear", "needs the counts of"), ("x", "unkn")])
def test_functions_look_at_their_options(weighting: str, match: str) -> None:
    table = metrics.ConfusionTable(np.eye(2, dtype=np.int64))
    with pytest.raises(ConfigError, match=match):
        metrics.kappa(table.marginals, weighting=weighting)
    with pytest.raises(ConfigError, match="weighting"):
        metrics.generalised_dice(table.marginals, weighting)


def test_labels_are_no_matrix_of_classes() -> None:
    counts = LabelCounts(*np.ones((4, 2), np.int64))
    for function in (metrics.accuracy, metrics.balanced_accuracy, metrics.mcc, metrics.kappa):
        with pytest.raises(ConfigError, match="no matrix of classes"):
            function(counts)
    assert metrics.class_metric("iou", counts)["iou_mean"].value == 1 / 3


def test_a_beta_is_the_number_that_is_written() -> None:
    of = data(2, labels=[0, 1, 1, 1, 0], predictions=[0, 1, 1, 0, 1])
    found = numbers(metrics.FBeta(beta=0.1, average="none"), of)
    tp, t, p = 2, 3, 3
    assert found["fbeta_1"] == (101 * tp) / (t + 100 * p)


def test_an_abstract_metric_is_only_derived_from() -> None:
    from pipeline.metrics.counting import Counting

    with pytest.raises(TypeError, match="abstract"):
        Counting()  # type: ignore[abstract]
