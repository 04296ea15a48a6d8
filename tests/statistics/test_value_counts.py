from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline import arrays
from pipeline.content import Const
from pipeline.errors import ConfigError, DataError
from pipeline.statistics.value_counts import (
    Counted,
    ValueCounts,
    everything,
    values_of,
)
from pipeline.testing import Data, StatisticLaws, assert_same, drive, partitions, recipes
from pipeline.testing.recipes import Partition
from pipeline.testing.strategies import LAW, orders
from pipeline.views import Every, Pooled, Stored, Valid

SCORES = Stored("scores")


def keys_of(x: Any) -> Any:
    return arrays.sort_keys(np.asarray(x, np.float64))


def binned(groups: Any, room: int) -> Counted:
    """Count the keys of each group by definition, shift after shift."""
    keys, counts, shifts = [], [], []
    for group in groups:
        shift = 0
        while len(np.unique(group >> shift)) > room:
            shift += 1
        found, times = np.unique(group >> shift, return_counts=True)
        keys.append(found << shift)
        counts.append(times)
        shifts.append(shift)
    sizes = [len(part) for part in keys]
    return Counted(*(np.asarray(x, np.int64) for x in map(_flat, (keys, counts, sizes, shifts))))


def _flat(parts: Any) -> Any:
    return np.concatenate([np.zeros(0, np.int64), *(np.atleast_1d(part) for part in parts)])


def pooled_keys(rows: Mapping[str, Any]) -> Any:
    return keys_of(rows["features"].mean(axis=1)[rows["labels"] >= 0])


class CountLaws(StatisticLaws):
    state_may_grow = True

    def rows(self) -> Data:
        """Return rows whose means over four tokens have no rounding."""
        rows = super().rows()
        return rows.with_arrays(features=np.rint(16 * rows.arrays["features"]) / np.float32(16))

    def drawn(self, data: Any) -> tuple[Data, Partition]:
        rows = self.rows().ordered(data.draw(orders))
        return rows, data.draw(partitions(rows.rows))


class TestOfAllEntries(CountLaws):
    statistic = ValueCounts(Pooled(), *everything(), room=100)

    def reference(self, rows: Mapping[str, Any]) -> Counted:
        return binned([pooled_keys(rows).ravel()], 100)

    def work_undeclared(self, data: Data) -> str:
        wide = type(self)()
        wide.statistic = ValueCounts(Pooled(), *everything())
        return StatisticLaws.work_undeclared(wide, data)


SLOTS = np.array([[0.0, 1.0], [2.0, 2.0], [1.5, 7.0]])


def bounds(columns: int) -> tuple[Const, Const]:
    low, high = keys_of(SLOTS).T[:, :, None] + np.zeros((1, 1, columns), np.int64)
    return Const(low), Const(high)


class TestOfColumnsBetweenBounds(CountLaws):
    statistic = ValueCounts(Pooled(), *bounds(12), room=7)
    memory_shapes = recipes.SHAPES[:3]
    device_shapes = ()  # bounds are of the columns of other rows

    def reference(self, rows: Mapping[str, Any]) -> Counted:
        low, high = keys_of(SLOTS).T
        columns = list(pooled_keys(rows).T)
        slots = list(zip(low, high, strict=True))
        return binned([x[(a <= x) & (x < b)] for a, b in slots for x in columns], 7)

    def work_undeclared(self, data: Data) -> str:
        return StatisticLaws.work_undeclared(self.wide(data), data)

    def open_undeclared(self, data: Data) -> str:
        return StatisticLaws.open_undeclared(self.wide(data), data)

    def wide(self, data: Data) -> StatisticLaws:
        """Return the laws of as many columns as there are."""
        laws = type(self)()
        d = data.schema.spec("features").shape[-1]
        laws.statistic = ValueCounts(Pooled(), *everything(d), room=256)
        return laws

    def views_undeclared(self, data: Data) -> str:
        return ""  # those of the class above


def test_one_population_between_bounds() -> None:
    x = np.random.default_rng(0).standard_normal((50, 7)) * 3
    found = drive.fold_all(
        ValueCounts(Stored("x"), *bounds(1), Every(), 9), Data({"x": x}, 2).cut([[20, 0], [30]])
    )
    low, high = keys_of(SLOTS).T
    keys = keys_of(x).ravel()
    slots = list(zip(low, high, strict=True))
    assert_same(found, binned([keys[(a <= keys) & (keys < b)] for a, b in slots], 9))


floats = st.one_of(
    st.sampled_from([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 1.0, 1.0 + 2**-52, 1e308]),
    st.floats(allow_nan=False, width=64),
)


@LAW
@given(data=st.data(), library=st.sampled_from(sorted(drive.PLACES)), room=st.integers(2, 9))
def test_any_float_has_its_bin(data: Any, library: str, room: int) -> None:
    scores = data.draw(npst.arrays(np.float64, st.integers(1, 60), elements=floats))
    split = Data({"scores": scores}, 2).cut(data.draw(partitions(len(scores))))
    statistic = ValueCounts(SCORES, *everything(), Every(), room)
    found = drive.fold_all(statistic, split, drive.PLACES[library])
    assert_same(found, binned([keys_of(scores)], room))


def test_keys_and_values_are_the_same_numbers() -> None:
    x = np.array([-np.inf, -1e308, -1.5, -5e-324, 0.0, 5e-324, 1.5, np.inf])
    assert_same(values_of(keys_of(x)), x)
    assert (np.diff(keys_of(x)) > 0).all()


def test_more_values_than_are_sorted_at_a_time(monkeypatch: Any) -> None:
    x = np.random.default_rng(0).standard_normal((300, 7))
    whole = drive.fold_all(
        ValueCounts(Stored("x"), *everything(), Every(), 50), Data({"x": x}, 2).cut()
    )
    monkeypatch.setattr("pipeline.statistics.value_counts.PIECE_VALUES", 20)
    again = drive.fold_all(
        ValueCounts(Stored("x"), *everything(), Every(), 50), Data({"x": x}, 2).cut()
    )
    assert_same(again, whole)
    assert_same(whole, binned([keys_of(x).ravel()], 50))


def test_nan_is_named_by_its_row() -> None:
    scores = np.arange(20.0)
    scores[[3, 11]] = np.nan
    labels = np.where(np.arange(20) == 3, -1, 0)
    data = Data({"scores": scores, "labels": labels}, 2, "id/val")
    statistic = ValueCounts(SCORES, *everything(), Valid())
    with pytest.raises(DataError, match=r"id/val: .*1 row \(row 11\).*NaN"):
        drive.fold_all(statistic, data.cut([[5, 15]]))


def test_bounds_of_other_columns_are_refused() -> None:
    schema = Data({"features": np.zeros((4, 3))}, 2).schema
    with pytest.raises(ConfigError, match="5 columns do not fit"):
        ValueCounts(Pooled(), *everything(5)).empty(schema)
    with pytest.raises(ConfigError, match="room: 1"):
        ValueCounts(Pooled(), *everything(), room=1)
