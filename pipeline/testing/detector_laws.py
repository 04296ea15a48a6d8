"""Laws every detector obeys; a test file subclasses them with a detector and a reference."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import engine
from pipeline.chunk import Split
from pipeline.detectors.mahalanobis import Mahalanobis
from pipeline.errors import DataError
from pipeline.statistics import fields_of
from pipeline.store import artifacts
from pipeline.testing import drive, recipes
from pipeline.testing.compare import assert_close, assert_same
from pipeline.testing.recipes import Data, Host, Partition
from pipeline.testing.strategies import LAW, partitions


class DetectorLaws:
    """Subclass as ``class TestSHE(DetectorLaws)`` with ``detector`` and ``reference``.

    The recipes ``id_train``, ``id_test`` and ``far_ood`` may be overridden; they return
    :class:`Data`.
    """

    detector: Any
    tolerance = 1e-9
    """Largest error of a score, relative to the largest score."""
    planted_auroc = 0.95
    """Share of (ID, OOD) pairs that the detector must rank right on the planted shift."""
    absent_class = 3

    def id_train(self) -> Data:
        """Rows that are fitted on."""
        return recipes.labelled()

    def id_test(self) -> Data:
        """In-distribution rows that are scored."""
        return recipes.labelled(rows=90, seed=7, name="id/test")

    def far_ood(self) -> Data:
        """Out-of-distribution rows that are scored."""
        return recipes.planted()

    def reference(self, train: Mapping[str, Host], test: Mapping[str, Host]) -> Host:
        """Return float64 scores of the test rows: whole arrays, written from the paper.

        Floats come in float64; labels below 0 are void.
        """
        raise NotImplementedError(f"{type(self).__name__} must define reference(train, test)")

    # What the laws compare: the scores of the test rows after a fit on the train rows.

    def scores(
        self,
        train: Data | None = None,
        test: Data | None = None,
        cuts: tuple[Partition | None, Partition | None] = (None, None),
        execute: engine.Execute = engine.run_serial,
    ) -> Host:
        """Return the scores of ``test`` by the scorer fitted on ``train``."""
        fitted_on = (train or self.id_train()).cut(cuts[0])
        scorer = drive.outcome(self.detector, fitted_on, execute)
        return drive.scores_of(scorer, (test or self.id_test()).cut(cuts[1]), execute)

    def assert_refused(self, train: Data, match: str) -> None:
        """Fail unless a fit on ``train`` is refused with a message that contains ``match``."""
        with pytest.raises(DataError, match=match):
            self.scores(train)

    def assert_as_reference(self, train: Data, test: Data) -> None:
        """Fail unless the scores are those of the reference."""
        expected = self.reference(train.upcast(), test.upcast())
        assert_close(self.scores(train, test), expected, self.tolerance)

    # Numbers

    def test_scores_equal_the_reference(self) -> None:
        self.assert_as_reference(self.id_train(), self.id_test())

    def test_scores_of_shifted_rows_equal_the_reference(self) -> None:
        self.assert_as_reference(self.id_train(), self.far_ood())

    def test_scores_are_finite_float64(self) -> None:
        for test in (self.id_test(), self.far_ood()):
            scores = self.scores(test=test)
            assert scores.dtype == np.float64
            assert len(scores) == test.rows
            assert np.isfinite(scores).all()

    def test_larger_is_out_of_distribution(self) -> None:
        shifted, known = self.scores(test=self.far_ood()), self.scores()
        above = (shifted.ravel()[:, None] > known.ravel()[None, :]).mean()
        assert above >= self.planted_auroc, f"AUROC {above:.3f} on a planted shift"

    def test_half_precision_is_upcast(self) -> None:
        half = {"features": np.float16, "logits": np.float16}
        self.assert_as_reference(_cast(self.id_train(), half), _cast(self.id_test(), half))

    # Rows

    @LAW
    @given(data=st.data())
    def test_chunks_and_blocks_do_not_matter(self, data: Any) -> None:
        train, test = self.id_train(), self.id_test()
        cuts = (data.draw(partitions(train.rows)), data.draw(partitions(test.rows)))
        assert_close(self.scores(train, test, cuts), self.scores(train, test), self.tolerance)

    def test_scores_do_not_depend_on_the_rows_beside_them(self) -> None:
        scorer = drive.outcome(self.detector, self.id_train().cut())
        test = self.id_test()
        alone = drive.scores_of(scorer, test.cut())
        for size in (1, 7, test.rows - 1):
            cut = test.cut(recipes.regular(test.rows, size))
            assert_same(drive.scores_of(scorer, cut), alone)

    def test_rows_may_be_sorted_by_class(self) -> None:
        train = self.id_train().sorted_by_class()
        cuts = (recipes.regular(train.rows, 16), None)
        assert_close(self.scores(train, cuts=cuts), self.scores(), self.tolerance)

    def test_a_class_may_be_absent(self) -> None:
        train = self.id_train()
        kept = train.take(train.arrays["labels"] != self.absent_class)
        self.assert_as_reference(kept, self.id_test())

    def test_void_rows_are_left_out_of_the_fit(self) -> None:
        train = self.id_train()
        void = train.arrays["labels"] < 0
        assert void.any()
        assert_close(self.scores(train), self.scores(train.take(~void)), self.tolerance)

    def test_rows_that_are_all_void_are_refused(self) -> None:
        if not drive.requests_of(self.detector, self.id_train().cut()):
            return  # nothing is fitted
        train = self.id_train()
        void = train.with_arrays(labels=np.full(train.rows, -1))
        self.assert_refused(void, f"{train.name}: no usable row")

    def test_a_row_that_is_not_finite_is_named(self) -> None:
        train = self.id_train()
        read = frozenset[str]().union(
            *(r.fields for r in drive.requests_of(self.detector, train.cut()))
        )
        for name in read & {"features", "logits"}:
            spoilt = train.arrays[name].copy()
            spoilt[37, ..., 1] = np.nan
            labels = np.maximum(train.arrays["labels"], 0)
            self.assert_refused(
                train.with_arrays(**{name: spoilt, "labels": labels}), f"(?s){train.name}.*row 37"
            )

    def test_rows_that_are_not_finite_are_skipped_in_a_fit(self) -> None:
        train = self.id_train()
        bad = np.flatnonzero(train.arrays["labels"] >= 0)[[3, 11, -2]]
        labels = train.arrays["labels"].copy()
        labels[bad] = -1
        spoilt = {name: _spoilt(x, bad) for name, x in _floats(train).items()}
        with _no_warnings():
            found, expected = (
                drive.outcome(self.detector, data.cut(), skip_nonfinite=True)
                for data in (train.with_arrays(**spoilt), train.with_arrays(labels=labels))
            )
        test = self.id_test().cut()
        ours, theirs = (drive.scores_of(scorer, test) for scorer in (found, expected))
        assert_close(ours, theirs, self.tolerance)

    def test_a_row_that_is_not_finite_has_no_score(self) -> None:
        scorer = drive.outcome(self.detector, self.id_train().cut())
        test = self.id_test()
        alone = drive.scores_of(scorer, test.cut())
        bad = np.flatnonzero(np.isfinite(alone).reshape(test.rows, -1).any(axis=1))[[3, 11, -2]]
        read = test.schema.touched(fields_of(*scorer.views))
        for name in sorted(read & _floats(test).keys()):
            spoilt = test.with_arrays(**{name: _spoilt(test.arrays[name], bad)})
            for size in (7, test.rows):
                cut = spoilt.cut(recipes.regular(test.rows, size))
                with _no_warnings():
                    found = drive.scores_of(scorer, cut, skip_nonfinite=True)
                assert np.isnan(found[bad]).all(), f"{name} is not finite, but has a score"
                assert_same(np.delete(found, bad, axis=0), np.delete(alone, bad, axis=0))
                with pytest.raises(DataError, match=f"{test.name}.*{name}.*first row {bad[0]},"):
                    drive.scores_of(scorer, cut)

    # Execution

    @pytest.mark.parametrize("library", drive.PLACES)
    def test_array_libraries_agree(self, library: str) -> None:
        scores = self.scores(execute=drive.at(drive.PLACES[library]))
        assert_close(scores, self.scores(), self.tolerance)

    def test_threads_and_processes_give_the_same_bits(
        self, dask_client: Any, tmp_path: Path
    ) -> None:
        cuts = (recipes.regular(self.id_train().rows, 9), recipes.regular(self.id_test().rows, 20))
        serial = self.scores(cuts=cuts)
        for execute in (engine.Threads(3), engine.Dask(dask_client, tmp_path)):
            assert_same(self.scores(cuts=cuts, execute=execute), serial)

    def test_fitting_twice_gives_the_same_scorer(self) -> None:
        split = self.id_train().cut()
        first, second = (drive.outcome(self.detector, split) for _ in range(2))
        assert first == second
        assert hash(first) == hash(second)

    def test_company_changes_nothing(self) -> None:
        split: Split = self.id_train().cut(recipes.regular(self.id_train().rows, 50))
        company = {"other": Mahalanobis(ridge=1e-3), "it": self.detector}
        fused = engine.run(company, split)["it"]
        assert fused == drive.outcome(self.detector, split)

    def test_a_saved_scorer_scores_alike(self, tmp_path: Path) -> None:
        scorer = drive.outcome(self.detector, self.id_train().cut())
        artifacts.save(scorer, tmp_path / "scorer", {})
        loaded, _ = artifacts.load(tmp_path / "scorer")
        assert loaded == scorer
        test = self.id_test().cut()
        assert_same(drive.scores_of(loaded, test), drive.scores_of(scorer, test))


def _floats(data: Data) -> dict[str, Host]:
    return {name: x for name, x in data.arrays.items() if x.dtype.kind == "f"}


def _spoilt(array: Host, rows: Host) -> Host:
    """Return a copy whose rows are not finite: one entry of each vector, NaN or infinite."""
    spoilt = array.copy()
    for row, wrong in zip(rows, (np.nan, np.inf, -np.inf), strict=True):
        spoilt[(row, ..., 1) if spoilt.ndim > 1 else row] = wrong
    return spoilt


@contextmanager
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _cast(data: Data, dtypes: Mapping[str, Any]) -> Data:
    cast = {name: data.arrays[name].astype(dtype) for name, dtype in dtypes.items()}
    return replace(data, arrays={**data.arrays, **cast})
