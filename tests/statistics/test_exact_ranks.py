from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline.errors import ConfigError, DataError
from pipeline.statistics import ExactRanks, Ranks
from pipeline.testing import Data, StatisticLaws, assert_same, drive, partitions, recipes
from pipeline.testing.memory_laws import SLACK_NBYTES, peak
from pipeline.testing.strategies import LAW
from pipeline.views import Logits, Stored, Valid

SCORES = Stored("scores")
POSITIVE = Stored("positive")


def ranks(scores: Any, positive: Any) -> Ranks:
    values, group = np.unique(np.asarray(scores, np.float64) + 0.0, return_inverse=True)
    return Ranks(
        values,
        np.bincount(group[~positive], minlength=len(values)),
        np.bincount(group[positive], minlength=len(values)),
    )


def scored(scores: Any, positive: Any, **more: Any) -> Data:
    arrays = {"scores": np.asarray(scores), "positive": np.asarray(positive, bool), **more}
    return Data(arrays, 2, "id/test")


def with_positive(rows: Data) -> Data:
    return rows.with_arrays(positive=rows.arrays["labels"] % 2 == 0)


class TestAgainstOutOfDistribution(StatisticLaws):
    statistic = ExactRanks(of=SCORES, max_rows=2000)
    state_may_grow = True
    memory_shapes = (recipes.Shape(1, 1, 4, 2), recipes.Shape(2000, 1, 4, 2))

    def shaped(self, shape: Any) -> Data:
        return with_positive(shape.data)

    def rows(self) -> Data:
        rows = recipes.labelled(rows=80)
        return rows.with_arrays(scores=rows.arrays["scores"].round(1))

    def reference(self, rows: Mapping[str, Any]) -> Ranks:
        return ranks(rows["scores"], np.zeros(len(rows["scores"]), bool))


class TestWithinLabelledRows(StatisticLaws):
    statistic = ExactRanks(of=SCORES, positive=POSITIVE, where=Valid(), max_rows=2000)
    state_may_grow = True
    memory_shapes = (recipes.Shape(1, 1, 4, 2), recipes.Shape(2000, 1, 4, 2))

    def shaped(self, shape: Any) -> Data:
        return with_positive(shape.data)

    def rows(self) -> Data:
        rows = recipes.labelled(rows=80)
        scores = rows.arrays["scores"].round(1)
        return with_positive(rows.with_arrays(scores=scores))

    def reference(self, rows: Mapping[str, Any]) -> Ranks:
        kept = rows["labels"] >= 0
        return ranks(rows["scores"][kept], rows["positive"][kept])


floats = st.one_of(
    st.sampled_from([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 1.0, 1.0 + 2**-52, 1e308]),
    st.floats(allow_nan=False, width=64),
)


@LAW
@given(data=st.data(), library=st.sampled_from(sorted(drive.PLACES)))
def test_any_float_has_its_place(data: Any, library: str) -> None:
    scores = data.draw(npst.arrays(np.float64, st.integers(1, 60), elements=floats))
    positive = data.draw(npst.arrays(bool, len(scores)))
    split = scored(scores, positive).cut(data.draw(partitions(len(scores))))
    statistic = ExactRanks(of=SCORES, positive=POSITIVE)
    found = drive.fold_all(statistic, split, drive.PLACES[library])
    assert_same(found, ranks(scores, positive))


def test_both_sides_of_a_comparison_merge() -> None:
    statistic = ExactRanks(of=SCORES)
    known = recipes.labelled(rows=60)
    far = recipes.planted(rows=40)
    found = drive.outcome(drive.Ask(statistic), (known.cut(), far.cut()))
    scores = np.concatenate([known.arrays["scores"], far.arrays["scores"]])
    assert_same(found, ranks(scores, np.arange(100) >= 60))


@pytest.mark.parametrize("library", drive.PLACES)
def test_nan_scores_are_named(library: str) -> None:
    scores = np.arange(20.0)
    scores[[3, 11]] = np.nan
    labels = np.zeros(20, int)
    labels[3] = -1
    data = scored(scores, scores > 5, labels=labels)
    place = drive.PLACES[library]
    with pytest.raises(DataError, match=r"id/test: .*2 rows \(row 3, row 11\).*NaN"):
        drive.fold_all(ExactRanks(of=SCORES, positive=POSITIVE), data.cut(), place)
    kept = ExactRanks(of=SCORES, positive=POSITIVE, where=Valid())
    with pytest.raises(DataError, match=r"id/test: .*1 row \(row 11\).*NaN"):
        drive.fold_all(kept, data.cut([[5, 15]]), place)


def test_more_scores_than_declared_are_refused() -> None:
    data = scored(np.arange(10.0), np.arange(10) > 5)
    statistic = ExactRanks(of=SCORES, positive=POSITIVE, max_rows=9)
    with pytest.raises(DataError, match=r"10 distinct scores.*at most 9"):
        drive.fold_all(statistic, data.cut([[4], [6]]))
    tied = scored(np.arange(10.0) // 2, np.arange(10) > 5)
    assert len(drive.fold_all(statistic, tied.cut([[4], [6]])).values) == 5


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_rows: 0"):
        ExactRanks(of=SCORES, max_rows=0)
    with pytest.raises(ConfigError, match="need one score per row"):
        ExactRanks(of=Logits()).empty(recipes.labelled(rows=5).schema)
    assert ExactRanks(SCORES, max_rows=1e3) == ExactRanks(SCORES, max_rows=1000)  # type: ignore[arg-type]


def test_a_million_scores() -> None:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal(1_000_000).astype(np.float32)
    positive = rng.random(len(scores)) < 0.3
    split = scored(scores, positive).cut(recipes.regular(len(scores), 65_536, 8))
    found = drive.fold_all(ExactRanks(of=SCORES, positive=POSITIVE), split)
    assert_same(found, ranks(scores, positive))


def test_the_elements_of_maps_need_as_much_memory_as_is_declared() -> None:
    maps = np.random.default_rng(0).random((64, 224, 224), np.float32).round(2)
    data = Data({"scores": maps, "positive": maps > 0.5}, 2)
    statistic = ExactRanks(SCORES, POSITIVE, max_rows=1000)
    (chunk,) = next(drive.chunks(data.cut(), statistic.fields))
    _, used = peak(statistic.absorb, statistic.empty(data.schema), chunk)
    assert used <= statistic.work_nbytes(data.schema, data.rows) + SLACK_NBYTES
