"""Ranks in a budget: exact while they fit, else bins that hold every score; ranges of scores."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline.arrays import sort_keys
from pipeline.content import replaced
from pipeline.errors import ConfigError, DataError
from pipeline.statistics import BoundedRanks, Ordered, Side, Sides
from pipeline.testing import Data, StatisticLaws, assert_same, drive, partitions, recipes
from pipeline.testing.strategies import LAW
from pipeline.views import Logits, OfClass, OneHot, Positive, Stored, Valid

SCORES, POSITIVE = Stored("scores"), Stored("positive")
NONE = np.zeros(0, np.int64)


def as_kept(scores: Any) -> Side:
    """The definition: as many scores as rows, or each once with its rows where that is less."""
    width = scores.dtype.itemsize
    once, counts = np.unique(scores + scores.dtype.type(0), return_counts=True)
    if (width + 8) * len(once) < width * len(scores):
        return Side(once, counts)
    return Side(np.sort(scores + scores.dtype.type(0)), NONE)


def cut(scores: Any, shift: int) -> Side:
    keys, counts = np.unique(sort_keys(scores) >> shift << shift, return_counts=True)
    return Side(keys, counts)


def ordered(scores: Any, positive: Any, budget: int) -> Ordered:
    """The definition, from whole arrays."""
    parts = [scores[~positive], scores[positive]]
    sides = Sides(*map(as_kept, parts))
    if sum(x.nbytes for side in sides for x in side) <= budget:
        return Ordered(sides, -1)
    for shift in range(64):
        sides = Sides(*(cut(part, shift) for part in parts))
        if sum(len(side.scores) for side in sides) <= budget // 16:
            return Ordered(sides, shift)
    raise AssertionError("some shift leaves two bins at most")


def scored(scores: Any, positive: Any) -> Data:
    arrays = {"scores": np.asarray(scores), "positive": np.asarray(positive, bool)}
    return Data(arrays, 2, "id/test")


class TestExact(StatisticLaws):
    statistic = BoundedRanks(SCORES, POSITIVE, Valid())
    state_may_grow = True
    memory_shapes = (recipes.Shape(1, 1, 4, 2), recipes.Shape(4000, 1, 4, 2))

    def shaped(self, shape: Any) -> Data:
        rows: Data = shape.data
        return rows.with_arrays(positive=rows.arrays["labels"] % 2 == 0)

    def rows(self) -> Data:
        rows = recipes.labelled(rows=80)
        return rows.with_arrays(
            positive=rows.arrays["labels"] % 2 == 0, scores=rows.arrays["scores"].round(1)
        )

    def reference(self, rows: Mapping[str, Any]) -> Ordered:
        kept = rows["labels"] >= 0
        scores, positive = rows["scores"][kept], rows["positive"][kept]
        return ordered(scores, positive, self.statistic.budget_nbytes)

    def test_half_precision_is_upcast(self) -> None:
        rows = self.rows()
        half = rows.arrays["scores"].astype(np.float16)
        found = self.result(self.partials(rows.with_arrays(scores=half)))
        kept = rows.arrays["labels"] >= 0
        expected = ordered(
            half.astype(np.float32)[kept], rows.arrays["positive"][kept],
            self.statistic.budget_nbytes,
        )  # fmt: skip
        assert_same(found, expected)


class TestBins(TestExact):
    """Fewer bytes than the scores take: bins, whose width depends on nothing but the scores."""

    statistic = BoundedRanks(SCORES, POSITIVE, Valid(), budget_nbytes=300)

    def test_scores_do_not_fit(self) -> None:
        assert not self.result(self.partials(self.rows())).exact


class TestRange(TestExact):
    LOW, HIGH = (int(key) for key in sort_keys(np.array([-9.0, 0.5])))
    statistic = BoundedRanks(SCORES, POSITIVE, Valid(), low=LOW, high=HIGH)

    def reference(self, rows: Mapping[str, Any]) -> Ordered:
        scores = rows["scores"]
        kept = (rows["labels"] >= 0) & (scores >= -9.0) & (scores < 0.5)
        return ordered(scores[kept], rows["positive"][kept], self.statistic.budget_nbytes)

    def test_half_precision_is_upcast(self) -> None:
        """Checked of scores of any size below."""


class TestOfOneClass(TestExact):
    """Scores and labels of one class against all others."""

    statistic = BoundedRanks(OfClass(Stored("logits"), 1), Positive(1), Valid())

    def shaped(self, shape: Any) -> Data:
        rows: Data = shape.data
        return rows

    def rows(self) -> Data:
        return recipes.labelled(rows=80)

    def reference(self, rows: Mapping[str, Any]) -> Ordered:
        kept = rows["labels"] >= 0
        scores, positive = rows["logits"][kept, 1], rows["labels"][kept] == 1
        return ordered(scores, positive, self.statistic.budget_nbytes)

    def test_half_precision_is_upcast(self) -> None:
        """Checked of scores of any size below."""


class TestOfAllPairs(TestOfOneClass):
    """All classes in one order."""

    statistic = BoundedRanks(Stored("logits"), OneHot(), Valid())

    def reference(self, rows: Mapping[str, Any]) -> Ordered:
        kept = rows["labels"] >= 0
        hot = rows["labels"][kept, None] == np.arange(5)
        return ordered(rows["logits"][kept].ravel(), hot.ravel(), self.statistic.budget_nbytes)


floats = st.one_of(
    st.sampled_from([0.0, -0.0, np.inf, -np.inf, 2.0**-149, -(2.0**-149), 1.0, 3.4028234e38]),
    st.floats(allow_nan=False, width=32),
)


@LAW
@given(
    data=st.data(),
    library=st.sampled_from(sorted(drive.PLACES)),
    budget=st.sampled_from([64, 160, 10**6]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_any_float_has_its_place(data: Any, library: str, budget: int, dtype: Any) -> None:
    scores = data.draw(npst.arrays(dtype, st.integers(1, 60), elements=floats))
    positive = data.draw(npst.arrays(bool, len(scores)))
    split = scored(scores, positive).cut(data.draw(partitions(len(scores))))
    statistic = BoundedRanks(SCORES, POSITIVE, budget_nbytes=budget)
    found = drive.fold_all(statistic, split, drive.PLACES[library])
    assert_same(found, ordered(scores, positive, budget))
    bins = found.bins()
    assert (bins.least[1:] > bins.greatest[:-1]).all()
    keys = sort_keys(scores.astype(np.float64))
    place = np.searchsorted(bins.least, keys, side="right") - 1
    assert (keys <= bins.greatest[place]).all()
    np.testing.assert_array_equal(
        bins.negatives, np.bincount(place[~positive], minlength=len(bins.least))
    )
    np.testing.assert_array_equal(
        bins.positives, np.bincount(place[positive], minlength=len(bins.least))
    )
    if found.exact:
        np.testing.assert_array_equal(bins.least, bins.greatest)


@LAW
@given(data=st.data(), library=st.sampled_from(sorted(drive.PLACES)))
def test_ranges_of_float64_keys_part_scores_of_any_dtype(data: Any, library: str) -> None:
    narrow = [np.float16] if library != "array_api_strict" else []
    dtype = data.draw(st.sampled_from([*narrow, np.float32, np.float64]))
    width = 8 * np.dtype(dtype).itemsize
    scores = data.draw(
        npst.arrays(dtype, st.integers(1, 40), elements=st.floats(allow_nan=False, width=width))
    )
    positive = np.arange(len(scores)) % 3 == 0
    ends = data.draw(st.lists(st.floats(allow_nan=False), max_size=4, unique=True))
    whole = BoundedRanks(SCORES, POSITIVE)
    keys = [whole.low, *sorted({int(key) for key in sort_keys(np.array(ends))}), whole.high]
    split = scored(scores, positive).cut([[len(scores)]])
    found = []
    for low, high in pairwise(keys):
        part = drive.fold_all(replaced(whole, low=low, high=high), split, drive.PLACES[library])
        bins = part.bins()
        assert ((bins.least >= low) & (bins.least < high)).all()
        found.append(bins)
    every = drive.fold_all(whole, split).bins()
    assert_same(type(every)(*map(np.concatenate, zip(*found, strict=True))), every)


def test_scores_of_two_dtypes_merge_without_rounding() -> None:
    narrow = Data({"scores": np.float32([0.1, 0.5])}, 2, "id/test")
    wide = Data({"scores": np.float64([0.1, 0.5])}, 2, "ood/far", is_ood=True)
    found = drive.outcome(drive.Ask(BoundedRanks(SCORES)), (narrow.cut(), wide.cut()))
    bins = found.bins()
    np.testing.assert_array_equal(bins.negatives, [0, 1, 1])
    np.testing.assert_array_equal(bins.positives, [1, 0, 1])


def test_rows_of_any_shape_count_by_element() -> None:
    random = np.random.default_rng(0)
    maps, masks = random.random((6, 3, 4)).round(1), random.random((6, 3, 4)) < 0.3
    counts = random.random((6, 3, 4)) < 0.7
    data = Data({"scores": maps, "positive": masks, "counts": counts}, 2, "id/test")
    found = drive.fold_all(BoundedRanks(SCORES, POSITIVE, Stored("counts")), data.cut([[2, 4]]))
    assert_same(found, ordered(maps[counts], masks[counts], 10**6))
    rows = Data({"scores": maps, "positive": masks, "labels": np.array([0, -1, 0, 0, 1, 0])}, 2)
    found = drive.fold_all(BoundedRanks(SCORES, POSITIVE, Valid()), rows.cut())
    kept = rows.arrays["labels"] >= 0
    assert_same(found, ordered(maps[kept].ravel(), masks[kept].ravel(), 10**6))


def test_a_hundred_thousand_rows_of_few_scores_take_few_bytes() -> None:
    scores = (np.arange(100_000) % 7).astype(np.float32)
    data = scored(scores, scores > 3)
    (state,) = drive.partials(BoundedRanks(SCORES, POSITIVE), data.cut())
    assert state.sides.negatives.scores.nbytes == 16
    assert len(state.sides.positives.counts) == 3


@pytest.mark.parametrize("library", drive.PLACES)
def test_nan_scores_are_named(library: str) -> None:
    scores = np.arange(20.0)
    scores[[3, 11]] = np.nan
    place = drive.PLACES[library]
    with pytest.raises(DataError, match=r"id/test: .*2 rows \(row 3, row 11\).*NaN"):
        drive.fold_all(BoundedRanks(SCORES, POSITIVE), scored(scores, scores > 5).cut(), place)
    infinite = scored([np.inf, -np.inf, 0.0], [True, False, True])
    assert drive.fold_all(BoundedRanks(SCORES, POSITIVE), infinite.cut(), place).rows == (1, 2)


def test_whole_numbers_that_would_tie_are_refused() -> None:
    large = scored(np.array([0, 2**53 + 1]), [True, False])
    with pytest.raises(DataError, match=r"beyond 2\^53"):
        drive.fold_all(BoundedRanks(SCORES, POSITIVE), large.cut())
    fine = scored(np.array([0, 2**53 - 1, -(2**53)]), [True, False, True])
    assert drive.fold_all(BoundedRanks(SCORES, POSITIVE), fine.cut()).rows == (1, 2)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="budget: 63"):
        BoundedRanks(SCORES, budget_nbytes=63)
    with pytest.raises(ConfigError, match="one score per row"):
        BoundedRanks(Logits()).empty(recipes.labelled(rows=5).schema)
