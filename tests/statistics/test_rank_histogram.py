from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline.arrays import sort_keys
from pipeline.content import Const
from pipeline.errors import ConfigError, DataError
from pipeline.statistics.bins import Bins, refined_edges, score_edges
from pipeline.statistics.rank_histogram import RankHistogram
from pipeline.testing import Data, StatisticLaws, assert_same, drive, partitions, recipes
from pipeline.testing.strategies import LAW
from pipeline.views import Logits, Stored, Valid

SCORES, POSITIVE = Stored("scores"), Stored("positive")
EDGES = Const(sort_keys(np.array([-1.5, -0.2, 0.0, 0.3, 0.30001, 2.0])))
LAST = np.iinfo(np.int64).max


def bins(scores: Any, positive: Any, edges: Const) -> Bins:
    """The definition: bin b holds the keys from edge b - 1 to below edge b."""
    keys = sort_keys(np.asarray(scores, np.float64))
    place = np.searchsorted(edges.array, keys, side="right")
    count = len(edges.array) + 1
    least, greatest = np.full(count, LAST), np.full(count, -LAST)
    np.minimum.at(least, place, keys)
    np.maximum.at(greatest, place, keys)
    return Bins(
        np.bincount(place[~positive], minlength=count),
        np.bincount(place[positive], minlength=count),
        least,
        greatest,
    )


def scored(scores: Any, positive: Any) -> Data:
    arrays = {"scores": np.asarray(scores), "positive": np.asarray(positive, bool)}
    return Data(arrays, 2, "id/test")


class TestFewBins(StatisticLaws):
    statistic = RankHistogram(of=SCORES, edges=EDGES, positive=POSITIVE, where=Valid())

    def shaped(self, shape: Any) -> Data:
        rows: Data = shape.data
        return rows.with_arrays(positive=rows.arrays["labels"] % 2 == 0)

    def rows(self) -> Data:
        rows = recipes.labelled(rows=80)
        return rows.with_arrays(positive=rows.arrays["labels"] % 2 == 0)

    def reference(self, rows: Mapping[str, Any]) -> Bins:
        kept = rows["labels"] >= 0
        return bins(rows["scores"][kept], rows["positive"][kept], EDGES)


class TestCoarseBins(TestFewBins):
    statistic = RankHistogram(of=SCORES, edges=score_edges(16), positive=POSITIVE, where=Valid())

    def reference(self, rows: Mapping[str, Any]) -> Bins:
        kept = rows["labels"] >= 0
        return bins(rows["scores"][kept], rows["positive"][kept], score_edges(16))


floats = st.one_of(
    st.sampled_from([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 1.0, 1.0 + 2**-52, 1e308]),
    st.floats(allow_nan=False, width=64),
)


@LAW
@given(data=st.data(), library=st.sampled_from(sorted(drive.PLACES)))
def test_any_float_has_its_bin_coarse_and_refined(data: Any, library: str) -> None:
    scores = data.draw(npst.arrays(np.float64, st.integers(1, 60), elements=floats))
    positive = data.draw(npst.arrays(bool, len(scores)))
    split = scored(scores, positive).cut(data.draw(partitions(len(scores))))
    edges = score_edges(16)
    for count in (1, 7, 1000):
        statistic = RankHistogram(of=SCORES, edges=edges, positive=POSITIVE)
        found = drive.fold_all(statistic, split, drive.PLACES[library])
        assert_same(found, bins(scores, positive, edges))
        assert found.negatives.sum() + found.positives.sum() == len(scores)
        edges = refined_edges(found, count)
        assert (edges.array[1:] > edges.array[:-1]).all()  # a difference would overflow
        assert len(edges.array) <= count + len(scores)


def test_refined_bins_hold_about_as_many_rows_each() -> None:
    rng = np.random.default_rng(0)
    scores = 1e6 + rng.random(20_000)  # all within two coarse bins
    split = scored(scores, rng.random(len(scores)) < 0.5).cut()
    coarse = drive.fold_all(RankHistogram(SCORES, score_edges(16), POSITIVE), split)
    fine = drive.fold_all(RankHistogram(SCORES, refined_edges(coarse, 100), POSITIVE), split)
    assert (fine.negatives + fine.positives).max() < 3 * 200


def test_what_has_no_rank_is_named() -> None:
    statistic = RankHistogram(SCORES, EDGES, POSITIVE)
    with pytest.raises(DataError, match=r"1 row \(row 1\) are NaN"):
        drive.fold_all(statistic, scored([0.0, np.nan], [True, False]).cut())
    with pytest.raises(ConfigError, match="need one score per row"):
        RankHistogram(of=Logits(), edges=EDGES).empty(recipes.labelled(rows=5).schema)
