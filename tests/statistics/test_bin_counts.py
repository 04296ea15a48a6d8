from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.content import Const
from pipeline.statistics import BinCounts, BinRows
from pipeline.testing import Data, StatisticLaws, drive
from pipeline.views import Logits

EDGES = np.array([-1.0, 0.0, 0.25, 6.0])


class TestBinCounts(StatisticLaws):
    statistic = BinCounts(of=Logits(), edges=Const(EDGES))

    def reference(self, rows: Mapping[str, Any]) -> BinRows:
        x = rows["logits"][rows["labels"] >= 0]
        limits = [-np.inf, *EDGES, np.inf]
        bins = [(x >= limits[b]) & (x < limits[b + 1]) for b in range(len(limits) - 1)]
        return BinRows(np.stack([inside.sum(axis=0) for inside in bins], axis=1))


def test_what_lies_on_an_edge_is_above_it() -> None:
    logits = np.array([[-1.0, 0.0], [-0.0, 6.0], [-np.nextafter(1.0, 2.0), np.inf]])
    data = Data({"logits": logits, "labels": np.zeros(3, np.int64)}, 2)
    found = drive.fold_all(BinCounts(of=Logits(), edges=Const(EDGES)), data.cut())
    np.testing.assert_array_equal(found.rows, [[1, 1, 1, 0, 0], [0, 0, 1, 0, 2]])
