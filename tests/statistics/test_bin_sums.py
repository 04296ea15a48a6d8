from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pipeline.content import Const
from pipeline.errors import ConfigError
from pipeline.statistics.bin_sums import BinSums, BinTotals
from pipeline.testing import Data, StatisticLaws, drive
from pipeline.views import Every, Logits, Pooled, Stored

EDGES = np.array([-1.0, 0.0, 0.25, 0.5, 1.0, 2.0, 8.0])


class TestBinSums(StatisticLaws):
    statistic = BinSums(Logits(), Stored("logits"), Const(EDGES))

    def reference(self, rows: Mapping[str, Any]) -> BinTotals:
        x = rows["logits"][rows["labels"] >= 0]
        pairs = pairwise(EDGES)
        totals = [x[(x >= low) & (x < high)].sum() for low, high in pairs]
        return BinTotals(np.array([len(x)]), np.array(totals))


def test_entries_outside_all_edges_are_left_out() -> None:
    by = np.array([[-1.0, 0.0, 0.5], [1.0, 2.0, np.inf]])
    data = Data({"x": np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]), "by": by}, 2)
    statistic = BinSums(Stored("x"), Stored("by"), Const(np.array([0.0, 1.0, 2.0])), Every())
    found = drive.fold_all(statistic, data.cut())
    np.testing.assert_array_equal(found.totals, [6.0, 8.0])


def test_views_of_other_shapes_are_refused() -> None:
    schema = Data({"features": np.zeros((4, 3)), "logits": np.zeros((4, 2))}, 2).schema
    with pytest.raises(ConfigError, match="shapes differ"):
        BinSums(Pooled(), Logits(), Const(EDGES)).empty(schema)
