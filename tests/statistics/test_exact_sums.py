"""Sums without rounding: against fractions, whatever the sizes, signs, order and library."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline.arrays import HOST, Place
from pipeline.errors import DataError
from pipeline.statistics.exact_sums import UNITS, ExactSums, Sum
from pipeline.testing import Data, StatisticLaws, drive
from pipeline.testing.strategies import LAW, partitions
from pipeline.views import Every, Logits, Stored

EVERY = ExactSums(Stored("x"), Every())


def summed(x: Any, cut: Any = None, place: Place = HOST) -> Sum:
    found: Sum = drive.fold_all(EVERY, Data({"x": np.asarray(x)}, 2).cut(cut), place)
    return found


class TestExactSums(StatisticLaws):
    statistic = ExactSums(Logits())

    def reference(self, rows: Mapping[str, Any]) -> Sum:
        x = rows["logits"][rows["labels"] >= 0]
        return Sum(x.size, 0, sum(int(Fraction(v) * UNITS) for v in x.reshape(-1).tolist()))


@LAW
@given(data=st.data())
def test_the_sum_is_that_of_fractions(data: Any) -> None:
    elements = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True)
    x = data.draw(npst.arrays(np.float64, data.draw(st.integers(1, 60)), elements=elements))
    found = summed(x, data.draw(partitions(len(x))))
    assert found == Sum(len(x), 0, found.units)
    assert found.total == sum(map(Fraction, x.tolist()))


@pytest.mark.parametrize("library", drive.PLACES)
def test_extremes_in_every_library(library: str) -> None:
    x = [5e-324, -5e-324, 2.0**-1022, -(2.0**-1074), 0.0, -0.0, 1e308, 1e308, 1e308, -1.0, 2.0**-32]
    for sign in (1.0, -1.0):
        found = summed(sign * np.array(x), None, drive.PLACES[library])
        assert found.total == sum(Fraction(sign * v) for v in x)


def test_what_float64_loses() -> None:
    assert summed([1e16, 1.0, -1e16]).total == 1
    assert summed([0.1] * 10).total == 10 * Fraction(0.1)


def test_many_numbers_carry() -> None:
    x = np.full(300_000, np.nextafter(1.0, 0.0))
    assert summed(x, [[299_999, 1]]).total == 300_000 * Fraction(float(x[0]))


@pytest.mark.parametrize("library", drive.PLACES)
def test_narrow_floats_and_masks_of_rows_and_of_entries(library: str) -> None:
    x = np.arange(36, dtype=np.float32).reshape(3, 3, 4) / 3
    keep, among = np.array([True, False, True]), x % 1 > 0.5
    data = Data({"x": x, "keep": keep, "among": among}, 2)
    kept = x[keep[:, None, None] & among]
    statistic = ExactSums(Stored("x"), Stored("keep"), Stored("among"))
    for cut in ([[3]], [[1, 0], [1, 1]]):
        found = drive.fold_all(statistic, data.cut(cut), drive.PLACES[library])
        assert found.total == sum(Fraction(float(v)) for v in kept)
        assert found.numbers == kept.size


def test_infinite_numbers_are_counted_apart() -> None:
    assert summed([1.0, np.inf, np.inf, 2.0]) == Sum(4, 2, 3 * UNITS)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_what_has_no_sum_is_refused_by_row(bad: float) -> None:
    x = np.ones((9, 2))
    x[[4, 7], 1] = bad
    with pytest.raises(DataError, match=r"2 rows \(row 4, row 7\) hold NaN or minus infinity"):
        summed(x, [[3, 6]])
    data = Data({"x": x, "keep": np.arange(9) != 4}, 2)
    with pytest.raises(DataError, match=r"1 row \(row 7\)"):
        drive.fold_all(ExactSums(Stored("x"), Stored("keep")), data.cut())
    among = np.ones_like(x, bool)
    among[[4, 7], 1] = False
    data = Data({"x": x, "among": among}, 2)
    assert drive.fold_all(ExactSums(Stored("x"), Every(), Stored("among")), data.cut()).total == 16
