"""Laws every metric obeys; a test file subclasses them with a metric and a reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.testing import drive, recipes
from pipeline.testing.recipes import Data
from pipeline.testing.strategies import LAW, partitions


class MetricLaws:
    """Subclass as ``class TestAUROC(MetricLaws)`` with ``metric`` and ``reference``.

    The recipe ``splits`` may be overridden; its splits hold ``logits``, ``labels`` (-1 where
    out-of-distribution), ``scores`` and ``features``. ``undefined`` lists inputs on which every
    number of the metric is NaN with a reason.
    """

    metric: Any
    tolerance = 1e-12

    def splits(self) -> Sequence[Data]:
        """The splits whose concatenation is measured."""
        return recipes.labelled(rows=150, name="id/test"), recipes.planted(rows=70)

    def undefined(self) -> Iterable[Sequence[Data]]:
        """Inputs that leave every number undefined, such as one side alone."""
        return ()

    def reference(self, splits: Sequence[Data]) -> Mapping[str, float]:
        """Return the numbers by name: whole arrays, from the definition or scikit-learn."""
        raise NotImplementedError(f"{type(self).__name__} must define reference(splits)")

    def measured(self, splits: Sequence[Data], cuts: Sequence[Any] | None = None) -> Any:
        """Return the metric's numbers over the concatenation of ``splits``."""
        sizes = [None] * len(splits) if cuts is None else cuts
        cut = [data.cut(size) for data, size in zip(splits, sizes, strict=True)]
        return drive.outcome(self.metric, cut)

    def assert_numbers(self, actual: Any, expected: Mapping[str, float]) -> None:
        """Fail unless every number agrees and lies within its bounds."""
        assert set(actual) == set(expected)
        for name, estimate in actual.items():
            np.testing.assert_allclose(
                float(estimate), float(expected[name]), rtol=0, atol=self.tolerance, err_msg=name
            )
            if not math.isnan(estimate.value):
                assert estimate.lower <= estimate.value <= estimate.upper, name
                assert not estimate.exact or estimate.lower == estimate.upper, name

    def test_numbers_equal_the_reference(self) -> None:
        splits = self.splits()
        self.assert_numbers(self.measured(splits), self.reference(splits))

    @LAW
    @given(data=st.data())
    def test_numbers_do_not_depend_on_the_cut(self, data: Any) -> None:
        splits = self.splits()
        cuts = [data.draw(partitions(part.rows)) for part in splits]
        self.assert_numbers(self.measured(splits, cuts), self.measured(splits))

    def test_numbers_do_not_depend_on_the_order_of_rows(self) -> None:
        splits = self.splits()
        rng = np.random.default_rng(3)
        mixed = [part.take(rng.permutation(part.rows)) for part in splits]
        self.assert_numbers(self.measured(mixed), self.measured(splits))

    def test_splits_may_be_divided_and_reordered(self) -> None:
        splits = self.splits()
        halves = [part.take(half) for part in splits for half in _halves(part.rows)]
        self.assert_numbers(self.measured(halves[::-1]), self.measured(splits))

    def test_undefined_numbers_are_nan_with_a_reason(self) -> None:
        for splits in self.undefined():
            for name, estimate in self.measured(splits).items():
                assert math.isnan(estimate.value), name
                assert estimate.reason, name


def _halves(rows: int) -> tuple[slice, slice]:
    return slice(0, rows // 3), slice(rows // 3, rows)
