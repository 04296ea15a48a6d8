"""Elements in bins of confidence: counts, and sums without rounding, against the definition."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pipeline import arrays
from pipeline.content import Const
from pipeline.errors import ConfigError, DataError
from pipeline.statistics.calibration_bins import CalibrationBins, ConfidenceBins
from pipeline.statistics.exact_sums import UNITS
from pipeline.testing import Data, StatisticLaws, drive, recipes
from pipeline.views import Every, Logits, Stored
from pipeline.views.class_probabilities import ClassProbabilities, IsClass
from pipeline.views.judged import Judged, Judgements

EDGES = np.array([0.25, 0.5, 0.75, 0.9])
KEYS = Const(arrays.sort_keys(EDGES))
OF = Judgements(kind="probabilities")


def probabilities(data: Data) -> Data:
    """Return rows whose logits became probabilities: no library computes them differently."""
    f = data.arrays["logits"].astype(np.float64)
    p = np.exp(f - f.max(axis=1, keepdims=True))
    return data.with_arrays(logits=p / p.sum(axis=1, keepdims=True))


def binned(x: Any, hit: Any, edges: Any = EDGES) -> ConfidenceBins:
    """Return the bins of x and hit (m,), from the definition."""
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    within = [(x >= a) & (x < b) for a, b in zip(low, high, strict=True)]
    units = [int(sum(map(Fraction, x[mask].tolist())) * UNITS) for mask in within]
    return ConfidenceBins(
        np.array([mask.sum() for mask in within]),
        np.array([int(hit[mask].sum()) for mask in within]),
        np.array(units, object),
    )


class Laws(StatisticLaws):
    def rows(self) -> Data:
        return probabilities(recipes.labelled(rows=80))

    def shaped(self, shape: recipes.Shape) -> Data:
        return probabilities(shape.data)


class TestTopLabel(Laws):
    statistic = CalibrationBins(Judged(OF, "confidence"), Judged(OF, "hit"), KEYS, among=OF.among)

    def reference(self, rows: Mapping[str, Any]) -> ConfidenceBins:
        kept = rows["labels"] >= 0
        p, y = rows["logits"][kept], rows["labels"][kept]
        return binned(p.max(axis=1), p.argmax(axis=1) == y)


class TestOfEveryClass(Laws):
    statistic = CalibrationBins(
        ClassProbabilities(OF), IsClass(OF), KEYS, by_class=True, among=OF.among
    )
    device_shapes = recipes.SHAPES[1:2]  # a thousand classes take half a minute there

    def reference(self, rows: Mapping[str, Any]) -> ConfidenceBins:
        kept = rows["labels"] >= 0
        p, y = rows["logits"][kept], rows["labels"][kept]
        each = [binned(p[:, c], y == c) for c in range(p.shape[1])]
        return ConfidenceBins(*(np.stack(column) for column in zip(*each, strict=True)))


CASES = Data(
    {
        "x": np.array([0.25, 0.2499999, 0.9, 1.0, 0.0, 0.5, 0.5, 0.1]),
        "hit": np.array([1, 0, 1, 0, 1, 1, 0, 0], bool),
        "among": np.array([1, 1, 1, 1, 1, 1, 1, 0], bool),
    },
    2,
)


@pytest.mark.parametrize("library", drive.PLACES)
def test_a_bin_holds_its_edge_and_the_last_holds_one(library: str) -> None:
    statistic = CalibrationBins(
        Stored("x"), Stored("hit"), KEYS, where=Every(), among=Stored("among")
    )
    found = drive.fold_all(statistic, CASES.cut([[3, 0], [5]]), drive.PLACES[library])
    np.testing.assert_array_equal(found.rows, [2, 1, 2, 0, 2])
    np.testing.assert_array_equal(found.hits, [1, 1, 1, 0, 1])
    assert found.units.tolist() == [
        int(Fraction(x) * UNITS) for x in (0.2499999, 0.25, 1.0, 0.0, Fraction(0.9) + 1)
    ]


def test_classes_may_have_edges_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x, hit = rng.random((40, 2)), rng.random((40, 2)) < 0.5
    edges = np.array([[0.2, 0.6], [0.5, 0.5]])
    statistic = CalibrationBins(
        Stored("x"), Stored("hit"), Const(arrays.sort_keys(edges)), by_class=True, where=Every()
    )
    found = drive.fold_all(statistic, Data({"x": x, "hit": hit}, 2).cut([[7, 33]]))
    for c in range(2):
        for ours, theirs in zip(found, binned(x[:, c], hit[:, c], edges[c]), strict=True):
            np.testing.assert_array_equal(ours[c], theirs)


@pytest.mark.parametrize("library", drive.PLACES)
def test_entries_of_classes_may_count_one_by_one(library: str) -> None:
    rng = np.random.default_rng(1)
    x, hit, among = (
        rng.random((20, 2, 3)),
        rng.random((20, 2, 3)) < 0.5,
        rng.random((20, 2, 3)) < 0.7,
    )
    where = rng.random(20) < 0.8
    data = Data({"x": x, "hit": hit, "among": among, "where": where}, 2)
    statistic = CalibrationBins(
        Stored("x"), Stored("hit"), KEYS, True, Stored("where"), Stored("among")
    )
    found = drive.fold_all(statistic, data.cut([[20]]), drive.PLACES[library])
    for c in range(2):
        kept = among[:, c] & where[:, None]
        for ours, theirs in zip(found, binned(x[:, c][kept], hit[:, c][kept]), strict=True):
            np.testing.assert_array_equal(ours[c], theirs)


def test_what_cannot_be_binned_is_refused() -> None:
    schema = recipes.labelled(rows=4).schema
    with pytest.raises(ConfigError, match="rows of different shapes"):
        CalibrationBins(Logits(), Judged(OF, "hit"), KEYS).empty(schema)
    data = Data({"x": np.array([0.1, np.nan]), "hit": np.ones(2, bool)}, 2)
    with pytest.raises(DataError, match="row 1"):
        drive.fold_all(CalibrationBins(Stored("x"), Stored("hit"), KEYS, where=Every()), data.cut())
