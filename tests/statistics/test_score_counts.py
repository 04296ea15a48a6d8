"""Scores between declared edges: states that add up, bins that hold every score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline.arrays import sort_keys
from pipeline.content import Const
from pipeline.statistics import Bins, ScoreCounts, score_edges
from pipeline.statistics.value_counts import BEYOND, LEAST
from pipeline.testing import Data, StatisticLaws, assert_same, drive, partitions, recipes
from pipeline.testing.strategies import LAW
from pipeline.views import Stored, Valid

SCORES, POSITIVE = Stored("scores"), Stored("positive")
EDGES = Const(sort_keys(np.array([-1.5, -0.2, 0.0, 0.3, 0.30001, 2.0])))


def bins(scores: Any, positive: Any, edges: Const) -> Bins:
    """The definition: bin b holds the keys from edge b - 1 to below edge b."""
    place = np.searchsorted(edges.array, sort_keys(np.asarray(scores, np.float64)), side="right")
    count = len(edges.array) + 1
    return Bins(
        np.bincount(place[~positive], minlength=count),
        np.bincount(place[positive], minlength=count),
        np.array([LEAST, *edges.array]),
        np.array([*(edges.array - 1), BEYOND - 1]),
    )


class TestFewEdges(StatisticLaws):
    statistic = ScoreCounts(SCORES, EDGES, POSITIVE, Valid())

    def shaped(self, shape: Any) -> Data:
        rows: Data = shape.data
        return rows.with_arrays(positive=rows.arrays["labels"] % 2 == 0)

    def rows(self) -> Data:
        rows = recipes.labelled(rows=80)
        return rows.with_arrays(positive=rows.arrays["labels"] % 2 == 0)

    def reference(self, rows: Mapping[str, Any]) -> Bins:
        kept = rows["labels"] >= 0
        return bins(rows["scores"][kept], rows["positive"][kept], self.statistic.edges)

    def test_states_add_up(self) -> None:
        parts = self.partials(self.rows(), [[30], [50]])
        for a, b, both in zip(*parts, self.statistic.merge(*parts), strict=True):
            assert not isinstance(a, np.ndarray) or (a + b == both).all()
        assert all(x.dtype == np.int64 for x in (parts[0].negatives, parts[0].positives))


class TestDeclaredEdges(TestFewEdges):
    statistic = ScoreCounts(SCORES, score_edges(), POSITIVE, Valid())


floats = st.one_of(
    st.sampled_from([0.0, -0.0, np.inf, -np.inf, 5e-324, 1.0, -1.0, 1 - 2**-53, 2.0**24, 1e308]),
    st.floats(allow_nan=False, width=64),
)


@LAW
@given(data=st.data(), library=st.sampled_from(sorted(drive.PLACES)))
def test_any_float_has_its_bin(data: Any, library: str) -> None:
    scores = data.draw(npst.arrays(np.float64, st.integers(1, 60), elements=floats))
    positive = data.draw(npst.arrays(bool, len(scores)))
    split = Data({"scores": scores, "positive": positive}, 2).cut(
        data.draw(partitions(len(scores)))
    )
    statistic = ScoreCounts(SCORES, score_edges(4), POSITIVE)
    found = drive.fold_all(statistic, split, drive.PLACES[library])
    assert_same(found, bins(scores, positive, statistic.edges))


def test_declared_edges_are_numbers_in_order_and_their_own_mirror() -> None:
    edges = score_edges().array
    assert (np.diff(edges.astype(object)) > 0).all()
    np.testing.assert_array_equal(edges, -edges[::-1])
    assert len(edges) < 80_000
    whole = np.searchsorted(edges, sort_keys(np.array([-1.0, 0.0, 0.5, 1.0, 256.0])))
    np.testing.assert_array_equal(edges[whole], sort_keys(np.array([-1.0, 0.0, 0.5, 1.0, 256.0])))
