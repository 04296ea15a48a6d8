"""Statistics of classes beside the matrix and its margins: labels, weights, distances, rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix

from pipeline.errors import ConfigError, DataError
from pipeline.statistics import (
    ClassCounts,
    ClassSums,
    ConfusionMatrix,
    Distances,
    ExactRows,
    LabelCounts,
    LabelMarginals,
    Marginals,
    WeightedMarginals,
)
from pipeline.testing import Data, StatisticLaws, drive, recipes
from pipeline.views import ArgMax, AtLeast, Every, Labelled, Predicted, Stored, Valid

K = 5


def weighted_rows() -> Data:
    rows = recipes.labelled(rows=80)
    return rows.with_arrays(weights=np.random.default_rng(5).random(80))


def tagged_rows() -> Data:
    rng = np.random.default_rng(6)
    tags = rng.integers(0, 2, (80, K)).astype(np.uint8)
    tags[3, 1] = 7
    scores = np.round(rng.random((80, K)), 1)
    return weighted_rows().with_arrays(tags=tags, tag_scores=scores)


def tagged(shape: recipes.Shape) -> Data:
    data = shape.data
    rng = np.random.default_rng(0)
    tags = rng.integers(0, 2, (data.rows, data.classes)).astype(np.uint8)
    return data.with_arrays(tags=tags, tag_scores=tags * 1.0, weights=np.ones(data.rows))


def kept(rows: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return labels, predictions and weights of the labelled rows."""
    labelled = rows["labels"] >= 0
    predicted = rows["logits"].argmax(axis=1)
    return rows["labels"][labelled], predicted[labelled], rows["weights"][labelled]


class TestWeightedMarginals(StatisticLaws):
    statistic = WeightedMarginals(of=ArgMax(), ignore=(1,))

    def rows(self) -> Data:
        return weighted_rows()

    def shaped(self, shape: recipes.Shape) -> Data:
        return tagged(shape)

    def reference(self, rows: Mapping[str, Any]) -> ClassSums:
        y, p, w = kept(rows)
        counts = y != 1
        matrix = confusion_matrix(
            y[counts], p[counts], labels=range(K), sample_weight=w[counts]
        ).astype(float)
        right = matrix.diagonal().copy()
        return ClassSums(right, matrix.sum(1) - right, matrix.sum(0) - right, np.zeros(1))


class TestDistances(StatisticLaws):
    statistic = Distances(of=ArgMax(), where=Labelled())

    def reference(self, rows: Mapping[str, Any]) -> Any:
        y, p, _ = kept({**rows, "weights": rows["labels"]})
        return np.bincount(np.abs(y - p), minlength=K)


class TestWeightedDistances(StatisticLaws):
    statistic = Distances(of=ArgMax(), where=Labelled(), ignore=(0,), weights=Stored("weights"))

    def rows(self) -> Data:
        return weighted_rows()

    def shaped(self, shape: recipes.Shape) -> Data:
        return tagged(shape)

    def reference(self, rows: Mapping[str, Any]) -> Any:
        y, p, w = kept(rows)
        return np.bincount(np.abs(y - p)[y > 0], weights=w[y > 0], minlength=K)


class TestLabelMarginals(StatisticLaws):
    statistic = LabelMarginals(
        of=AtLeast(0.5, "tag_scores"), by=Stored("tags"), where=Valid(), ignore=(7,)
    )

    def rows(self) -> Data:
        return tagged_rows()

    def shaped(self, shape: recipes.Shape) -> Data:
        return tagged(shape)

    def weights(self, rows: Mapping[str, Any]) -> Any:
        return np.ones(len(rows["labels"]), int)

    def reference(self, rows: Mapping[str, Any]) -> LabelCounts:
        labelled = rows["labels"] >= 0
        tags, guessed = rows["tags"][labelled], rows["tag_scores"][labelled] >= 0.5
        weights = self.weights(rows)[labelled]
        tables = []
        for label in range(K):
            counts = tags[:, label] != 7
            y, p, w = (x[counts] for x in (tags[:, label], guessed[:, label], weights))
            tables.append(confusion_matrix(y, p, labels=[0, 1], sample_weight=w))
        cells = np.stack(tables)
        return LabelCounts(cells[:, 1, 1], cells[:, 1, 0], cells[:, 0, 1], cells[:, 0, 0])


class TestWeightedLabelMarginals(TestLabelMarginals):
    statistic = LabelMarginals(
        of=AtLeast(0.5, "tag_scores"),
        by=Stored("tags"),
        where=Valid(),
        ignore=(7,),
        weights=Stored("weights"),
    )

    def weights(self, rows: Mapping[str, Any]) -> Any:
        return rows["weights"]


class TestExactRows(StatisticLaws):
    statistic = ExactRows(
        of=AtLeast(0.5, "tag_scores"), by=Stored("tags"), where=Valid(), ignore=(7,), whole="labels"
    )

    def rows(self) -> Data:
        rows = tagged_rows()
        scores = rows.arrays["tag_scores"].copy()
        scores[::2] = rows.arrays["tags"][::2]
        return rows.with_arrays(tag_scores=np.minimum(scores, 1.0))

    def shaped(self, shape: recipes.Shape) -> Data:
        return tagged(shape)

    def reference(self, rows: Mapping[str, Any]) -> Any:
        labelled = rows["labels"] >= 0
        tags, guessed = rows["tags"][labelled], rows["tag_scores"][labelled] >= 0.5
        right = ((tags == guessed) | (tags == 7)).all(axis=1)
        assert right.any()
        return np.array([right.sum(), len(right)])


def masks(rows: int = 11, dtype: str = "uint8") -> Data:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 4, (rows, 5, 6)).astype(dtype)
    truth[rng.random(truth.shape) < 0.2] = 255 if dtype == "uint8" else -1
    predicted = rng.integers(0, 4, (rows, 5, 6)).astype(dtype)
    return Data({"labels": truth, "predictions": predicted}, 4)


class TestMasks(StatisticLaws):
    """Every element of a row counts."""

    statistic = Marginals(of=Stored("masks"), by=Stored("truth"), where=Valid(), ignore=(255,))

    def rows(self) -> Data:
        found = masks(80).arrays
        return recipes.labelled(rows=80).with_arrays(
            truth=found["labels"], masks=found["predictions"]
        )

    def shaped(self, shape: recipes.Shape) -> Data:
        data = shape.data
        rng = np.random.default_rng(0)
        truth, predicted = rng.integers(0, data.classes, (2, data.rows, 12, 20)).astype("int32")
        return data.with_arrays(truth=truth, masks=predicted)

    def reference(self, rows: Mapping[str, Any]) -> Any:
        labelled = rows["labels"] >= 0
        y, p = rows["truth"][labelled].reshape(-1), rows["masks"][labelled].reshape(-1)
        matrix = confusion_matrix(y[y != 255], p[y != 255], labels=range(K))
        return ClassCounts(matrix.diagonal(), matrix.sum(1), matrix.sum(0))

    def test_result_is_named(self) -> None:
        counts = drive.fold_all(self.statistic, self.rows().cut())
        assert counts.rows.tolist() == [counts.truth.sum()] * K


@pytest.mark.parametrize("library", drive.PLACES)
@pytest.mark.parametrize("dtype", ["uint8", "int64"])
@pytest.mark.parametrize("cut", [None, [[1] * 11], [[7, 4]], [[10, 1]], [[0, 11], [0]]])
def test_masks_for_every_cut(library: str, dtype: str, cut: Any) -> None:
    data = masks(dtype=dtype)
    void = 255 if dtype == "uint8" else -1
    statistic = ConfusionMatrix(Stored("predictions"), Stored("labels"), Every(), (void,))
    found = drive.fold_all(statistic, data.cut(cut), drive.PLACES[library])
    y, p = (data.arrays[name].reshape(-1) for name in ("labels", "predictions"))
    expected = confusion_matrix(y[y != void], p[y != void], labels=range(4))
    np.testing.assert_array_equal(found, np.pad(expected, ((0, 0), (0, 1))))


def test_labels_with_places_and_ignored_values() -> None:
    rng = np.random.default_rng(0)
    tags = rng.integers(0, 3, (9, 4, 2, 3))
    scores = rng.random(tags.shape).astype(np.float32)
    data = Data({"labels": tags, "logits": scores}, 4)
    statistic = LabelMarginals(AtLeast(0.5), ignore=(2,))
    found = drive.fold_all(statistic, data.cut([[4], [5]]))
    for label in range(4):
        y, p = tags[:, label].reshape(-1), scores[:, label].reshape(-1) >= 0.5
        ((tn, fp), (fn, tp)) = multilabel_confusion_matrix(y[y < 2], p[y < 2], labels=[1])[0]
        assert [column[label] for column in found] == [tp, fn, fp, tn]
        assert (found.truth[label], found.rows[label]) == (tp + fn, (y < 2).sum())
    exact = drive.fold_all(ExactRows(AtLeast(0.5), ignore=(2,), whole="labels"), data.cut())
    right = ((tags == (scores >= 0.5)) | (tags == 2)).all(axis=1)
    counts = (tags < 2).any(axis=1)
    assert exact.tolist() == [(right & counts).sum(), counts.sum()]


def test_rows_of_masks_are_right_as_wholes() -> None:
    truth = np.array([[[0, 1]], [[2, 2]], [[9, 9]], [[9, 1]]])
    predicted = np.array([[[0, 1]], [[2, 1]], [[0, 0]], [[0, 1]]])
    data = Data({"labels": truth, "predictions": predicted, "weights": np.arange(1.0, 5)}, 3)
    found = drive.fold_all(ExactRows(Stored("predictions"), ignore=(9,)), data.cut())
    assert found.tolist() == [2, 3]
    heavy = ExactRows(Stored("predictions"), ignore=(9,), weights=Stored("weights"))
    assert drive.fold_all(heavy, data.cut()).tolist() == [5.0, 7.0]


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_weights_are_no_less_than_zero_and_finite(bad: float) -> None:
    rows = weighted_rows()
    weights = rows.arrays["weights"].copy()
    weights[57] = bad
    rows = rows.with_arrays(weights=weights, labels=np.abs(rows.arrays["labels"]))
    with pytest.raises(DataError, match="row 57"):
        drive.fold_all(WeightedMarginals(of=Predicted()), rows.cut([[50, 30]]))


def test_weights_are_one_for_each_row() -> None:
    rows = weighted_rows().with_arrays(weights=np.ones((80, 2)))
    with pytest.raises(DataError, match=r"weights have rows of shape \(2,\); expected one number"):
        drive.fold_all(WeightedMarginals(of=ArgMax()), rows.cut())


@pytest.mark.parametrize(
    ("statistic", "match"),
    [
        (LabelMarginals(AtLeast(0.5)), r"rows of shape \(\); expected \(2, ...\)"),
        (Marginals(Stored("logits")), "float64; expected integers"),
    ],
)
def test_arrays_that_do_not_fit_are_named(statistic: Any, match: str) -> None:
    data = Data({"labels": np.array([0, 1]), "logits": np.array([0.5, 0.7])}, 2)
    with pytest.raises(DataError, match=match):
        drive.fold_all(statistic, data.cut())


def test_shapes_that_differ_are_named() -> None:
    data = Data({"labels": np.array([0, 1]), "predictions": np.array([[0], [1]])}, 2)
    match = r"predictions have shape \(1,\), those of labels \(\)"
    for statistic in (Marginals(Stored("predictions")), Distances(Stored("predictions"))):
        with pytest.raises(DataError, match=match):
            drive.fold_all(statistic, data.cut())


def test_an_entry_that_is_no_label_is_named() -> None:
    tags = np.array([[0, 1], [1, 0], [0, 2]])
    data = Data({"labels": tags, "predictions": tags % 2}, 2)
    with pytest.raises(DataError, match="1 label outside 0 to 1, first in row 2: 2; add what must"):
        drive.fold_all(LabelMarginals(Stored("predictions")), data.cut([[2, 1]]))


def test_a_prediction_that_is_ignored_has_no_distance() -> None:
    data = Data({"labels": np.array([0, 1, 9]), "predictions": np.array([0, 9, 9])}, 2)
    with pytest.raises(DataError, match="9 is predicted where labels count in rows 0-2"):
        drive.fold_all(Distances(Stored("predictions"), ignore=(9,)), data.cut())
    assert drive.fold_all(
        Marginals(Stored("predictions"), by=Stored("labels"), where=Every(), ignore=(9,)),
        data.cut(),
    ).truth.tolist() == [1, 1]


def test_wholes_are_rows_or_labels() -> None:
    with pytest.raises(ConfigError, match="whole: 'image' is unknown; choose row, labels"):
        ExactRows(ArgMax(), whole="image")
