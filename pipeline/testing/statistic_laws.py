"""Laws every statistic obeys; a test file subclasses them with a statistic and a reference."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import arrays, engine
from pipeline.chunk import Chunk, Schema
from pipeline.content import constants_in, digest, from_tree, replaced, to_tree
from pipeline.errors import DataError
from pipeline.fold import fold
from pipeline.statistics import ClassMoments, ConfusionMatrix, Sums
from pipeline.testing import drive, recipes
from pipeline.testing.compare import assert_close, assert_same
from pipeline.testing.memory_laws import MemoryLaws
from pipeline.testing.recipes import Data, Host, Partition
from pipeline.testing.strategies import LAW, offsets, orders, partitions

COMPANY = (ClassMoments(), ConfusionMatrix(), Sums())
"""Statistics that are fused with the one under test."""
ROWS = 80


class StatisticLaws(MemoryLaws):
    """Subclass as ``class TestClassMeans(StatisticLaws)`` with ``statistic`` and ``reference``.

    The recipe ``rows`` may be overridden; it returns :class:`Data`.
    """

    statistic: Any
    tolerance = 1e-10
    """Largest error of a float, relative to the largest of its array, or to sqrt(C_ii C_jj)."""

    def rows(self) -> Data:
        """Rows the laws are checked on."""
        return recipes.labelled(rows=ROWS)

    def reference(self, rows: Mapping[str, Host]) -> Any:
        """Return the result over whole arrays, in float64 and written from the definition.

        Floats come in float64; labels below 0 are void.
        """
        raise NotImplementedError(f"{type(self).__name__} must define reference(rows)")

    # What the laws compare

    def partials(self, data: Data, partition: Partition | None = None) -> list[Any]:
        """Return the closed states of the blocks of ``data``."""
        return drive.partials(self.statistic, data.cut(partition))

    def result(self, states: Sequence[Any]) -> Any:
        """Return the result of merging closed states from left to right."""
        return self.statistic.finalize(functools.reduce(self.statistic.merge, states))

    def assert_as_reference(self, data: Data, partition: Partition | None = None) -> None:
        """Fail unless the result is that of the reference."""
        result = self.result(self.partials(data, partition))
        assert_close(result, self.reference(data.upcast()), self.tolerance)

    def drawn(self, data: Any) -> tuple[Data, Partition]:
        """Draw rows at an offset, in some order, and a partition of them."""
        rows = self.rows()
        if "features" in self.statistic.fields:
            rows = rows.shifted(data.draw(offsets))
        rows = rows.ordered(data.draw(orders))
        return rows, data.draw(partitions(rows.rows))

    # Numbers

    @LAW
    @given(data=st.data())
    def test_result_is_the_reference_for_every_cut(self, data: Any) -> None:
        self.assert_as_reference(*self.drawn(data))

    def test_a_class_may_be_absent(self) -> None:
        rows = self.rows()
        present = rows.take(rows.arrays["labels"] != 3)
        self.assert_as_reference(present, recipes.regular(present.rows, 20, 2))

    def test_half_precision_is_upcast(self) -> None:
        rows = self.rows()
        names = [name for name, x in rows.arrays.items() if x.dtype.kind == "f"]
        half = {name: rows.arrays[name].astype(np.float16) for name in names}
        self.assert_as_reference(rows.with_arrays(**half))

    @pytest.mark.parametrize("library", drive.PLACES)
    def test_array_libraries_agree(self, library: str) -> None:
        split = self.rows().cut(recipes.regular(ROWS, 20, 2))
        ours = drive.fold_all(self.statistic, split, drive.PLACES[library])
        assert_close(ours, drive.fold_all(self.statistic, split), self.tolerance)

    # The monoid of states

    @LAW
    @given(data=st.data())
    def test_merge_is_associative_and_commutative(self, data: Any) -> None:
        rows, _ = self.drawn(data)
        ends = sorted(data.draw(st.lists(st.integers(0, rows.rows), min_size=2, max_size=2)))
        sizes = np.diff([0, *ends, rows.rows]).tolist()
        a, b, c = self.partials(rows, [[size] for size in sizes])
        merge, finalize = self.statistic.merge, self.statistic.finalize
        left = finalize(merge(merge(a, b), c))
        for other in (merge(a, merge(b, c)), merge(merge(b, a), c), merge(merge(c, b), a)):
            assert_close(finalize(other), left, self.tolerance)

    def test_no_rows_are_the_identity(self) -> None:
        rows = self.rows()
        none, state = self.partials(rows, [[], [rows.rows]])
        assert_same(self.statistic.merge(state, none), state)
        assert_same(self.statistic.merge(none, state), state)

    def test_merge_leaves_its_inputs_alone_and_shares_no_memory(self) -> None:
        rows = self.rows()
        for partition in ([[30], [ROWS - 30]], [[0], [ROWS]], [[ROWS], [0]]):
            a, b = self.partials(rows, partition)
            before = copy.deepcopy((a, b))
            merged = self.statistic.merge(a, b)
            assert_same((a, b), before)
            kept = copy.deepcopy(merged)
            for state in (a, b):
                arrays.map_arrays(_spoil, state)
            assert_same(merged, kept)

    def test_a_state_keeps_no_memory_of_the_chunk(self) -> None:
        split = self.rows().cut([[30, 30, ROWS - 60]])
        state = self.statistic.empty(split.schema)
        for chunk in next(drive.chunks(split, self.statistic.fields)):
            state = self.statistic.absorb(state, chunk)
            before = copy.deepcopy(state)
            for array in _memory_of(chunk):
                _spoil(array)
            assert_same(state, before)

    def test_values_and_states_survive_pickling(self) -> None:
        (state,) = self.partials(self.rows())
        for entry in (self.statistic, state):
            again = pickle.loads(pickle.dumps(entry))
            assert type(again) is type(entry)
        assert pickle.loads(pickle.dumps(self.statistic)) == self.statistic
        assert_same(pickle.loads(pickle.dumps(state)), state)

    def test_stripes_join_to_the_same_bits(self) -> None:
        rows = self.rows()
        split = rows.cut(recipes.regular(rows.rows, 30))
        whole = drive.fold_all(self.statistic, split)
        before = self.statistic.state_nbytes(rows.schema)
        for n in (1, 2, 3, 1000):
            stripes = self.statistic.stripes(rows.schema, n)
            if stripes is None:
                return  # its state is small
            parts = [drive.fold_all(stripe, split) for stripe in stripes]
            assert_same(self.statistic.join(parts), whole)
            widest = max(stripe.state_nbytes(rows.schema) for stripe in stripes)
            assert len(stripes) <= n
            assert widest < before or len(stripes) == 1
            assert len({*stripes}) == len(stripes)

    # Identity

    def test_its_saved_form_is_the_same_computation(self) -> None:
        constants = {const.digest: const for const in constants_in(self.statistic)}
        again = from_tree(json.loads(json.dumps(to_tree(self.statistic))), constants)
        assert again == self.statistic
        assert hash(again) == hash(self.statistic)

    def test_the_key_depends_on_the_schema_but_not_on_the_rows(self) -> None:
        schema, fields = self.rows().schema, self.statistic.fields

        def key(changed: Schema) -> str:
            return digest(changed.key(fields))

        assert key(replaced(schema, rows=9, split="x")) == key(schema)
        assert key(replaced(schema, classes=schema.classes + 1)) != key(schema)
        for name, spec in schema.arrays.items():
            for change in ({"dtype": "float16"}, {"shape": (9,)}, {"layout": "X"}):
                other = {**schema.arrays, name: replaced(spec, **change)}
                same = key(replaced(schema, arrays=other)) == key(schema)
                assert same == (name not in schema.touched(fields)), name

    # Through the engine

    def run(self, data: Data, execute: engine.Execute = engine.run_serial) -> Any:
        """Return the result by the engine."""
        cut = data.cut([[30, 20], [ROWS - 50]])
        return drive.outcome(drive.Ask(self.statistic), cut, execute)

    def test_threads_and_processes_give_the_same_bits(
        self, dask_client: Any, tmp_path: Path
    ) -> None:
        rows = self.rows()
        for execute in (engine.Threads(3), engine.Dask(dask_client, tmp_path)):
            assert_same(self.run(rows, execute), self.run(rows))

    def test_company_changes_nothing(self) -> None:
        split = self.rows().cut([[30, 20], [ROWS - 50]])
        for block in split.blocks:
            alone = fold([self.statistic], split, block).states
            fused = fold([*COMPANY, self.statistic], split, block).states
            assert_same(fused[-1:], alone)

    def test_rows_that_are_all_void_are_refused(self) -> None:
        rows = self.rows()
        void = rows.with_arrays(labels=np.full(rows.rows, -1))
        if "labels" in self.statistic.where.fields:
            with pytest.raises(DataError, match=f"{rows.name}: no usable row"):
                self.run(void)
        else:
            assert_same(self.run(void), self.run(rows))

    def test_labels_end_at_the_number_of_classes(self) -> None:
        rows = self.rows()
        if "labels" not in self.statistic.fields:
            return  # it sees none
        labels = rows.arrays["labels"].copy()
        labels[:3] = (-1, 0, rows.classes - 1)
        self.assert_as_reference(rows.with_arrays(labels=labels))
        labels[5] = rows.classes
        with pytest.raises(DataError, match=f"(?s){rows.name}.*row 5: {rows.classes}"):
            self.run(rows.with_arrays(labels=labels))

    def test_a_row_that_is_not_finite_is_named(self) -> None:
        rows = self.rows()
        labels = np.maximum(rows.arrays["labels"], 0)
        for name in rows.schema.touched(self.statistic.fields):
            if rows.arrays[name].dtype.kind != "f":
                continue
            spoilt = rows.arrays[name].copy()
            spoilt[57] = np.nan
            with pytest.raises(DataError, match=f"(?s){rows.name}.*row 57"):
                self.run(rows.with_arrays(**{name: spoilt, "labels": labels}))


def _spoil(array: Host) -> Host:
    array[...] = np.nan if array.dtype.kind == "f" else 1
    return array


def _memory_of(chunk: Chunk) -> Iterator[Host]:
    """Yield all memory of a chunk that can be written to: arrays, views, scratch."""
    buffers = (*chunk.arrays.values(), *chunk._memo.values(), *chunk._arena._buffers.values())
    yield from (array for array in buffers if array.flags.writeable)
