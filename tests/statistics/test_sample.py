import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError, DataError
from pipeline.procedure import Rows
from pipeline.statistics.sample import Sample, Sampled
from pipeline.testing import StatisticLaws, assert_same, drive, recipes
from pipeline.testing.strategies import LAW, partitions
from pipeline.views import Pooled, Stored, Tokens
from pipeline.views.entries import Entries, EntryKeys

IDS = np.random.default_rng(0).permutation(10_000)


def with_ids(rows):
    return rows.with_arrays(ids=np.resize(IDS, rows.rows))


def smallest(keys, entries, most):
    order = np.argsort(keys, kind="stable")[:most]
    return Sampled(keys[order], entries[order])


class TestSampleOfRows(StatisticLaws):
    statistic = Sample(Entries(Pooled()), EntryKeys("ids"), 30)
    state_may_grow = True
    memory_shapes = (recipes.Shape(1, 2, 256, 6), recipes.Shape(2000, 2, 512, 6))

    def rows(self):
        return with_ids(recipes.labelled(rows=80))

    def shaped(self, shape):
        return with_ids(shape.data)

    def reference(self, rows):
        known = rows["labels"] >= 0
        keys = keys_of(rows["ids"])[known]
        return smallest(keys, rows["features"].mean(axis=1)[known], 30)


class TestSampleOfTokens(StatisticLaws):
    statistic = Sample(Entries(Tokens()), EntryKeys("ids", 4), 50)
    state_may_grow = True
    memory_shapes = (recipes.Shape(1, 4, 256, 6), recipes.Shape(500, 4, 512, 6))

    def rows(self):
        return with_ids(recipes.labelled(rows=80))

    def shaped(self, shape):
        return with_ids(shape.data)

    def reference(self, rows):
        known = rows["labels"] >= 0
        keys = keys_of(rows["ids"], 4)[known]
        return smallest(keys.ravel(), rows["features"][known].reshape(-1, 12), 50)


def keys_of(ids, tokens=0):
    """SplitMix64 in Python's integers, one number after the other."""

    def scrambled(x):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    rows = [scrambled(int(i)) for i in ids]
    if not tokens:
        return np.array([row >> 1 for row in rows])
    return np.array([[scrambled((row + t) % 2**64) >> 1 for t in range(tokens)] for row in rows])


def test_a_sample_of_none_is_refused():
    with pytest.raises(ConfigError, match="most: 0"):
        Sample(Entries(Pooled()), EntryKeys(), 0)


def test_ids_must_be_integers():
    rows = recipes.labelled().with_arrays(ids=np.arange(240.0))
    with pytest.raises(DataError, match="one integer id"):
        drive.fold_all(Sample(Entries(Pooled()), EntryKeys("ids"), 5), rows.cut())


@LAW
@given(data=st.data())
def test_rows_without_ids_are_sampled_alike_however_they_are_cut(data):
    rows = recipes.labelled(rows=80)
    sample = Sample(Entries(Pooled()), EntryKeys(), 20)
    found = drive.fold_all(sample, rows.cut(data.draw(partitions(80))))
    assert_same(found, drive.fold_all(sample, rows.cut()))


def test_a_sample_by_ids_does_not_depend_on_the_order_of_the_rows():
    rows = with_ids(recipes.labelled())
    sample = Sample(Entries(Pooled()), EntryKeys("ids"), 20)
    shuffled = rows.take(np.random.default_rng(1).permutation(rows.rows))
    assert_same(
        drive.fold_all(sample, shuffled.cut([[100], [140]])), drive.fold_all(sample, rows.cut())
    )


def test_keys_are_spread_evenly():
    rows = with_ids(recipes.labelled(rows=4000))
    (keys,) = drive.outcome(drive.Ask(Rows(EntryKeys("ids"))), rows.cut()).parts
    share, _ = np.histogram(keys / 2**63, bins=10, range=(0, 1))
    assert len(np.unique(keys)) == 4000
    assert abs(share - 400).max() < 5 * np.sqrt(400)


def test_masked_tokens_are_left_out():
    mask = np.zeros((240, 4), bool)
    mask[:, 1] = True
    rows = recipes.labelled().with_arrays(mask=mask)
    found = drive.fold_all(Sample(Entries(Tokens()), EntryKeys("", 4), 9999), rows.cut())
    known = rows.arrays["labels"] >= 0
    np.testing.assert_array_equal(
        np.sort(found.entries, axis=0), np.sort(rows.arrays["features"][known, 1], axis=0)
    )


def test_stored_arrays_are_sampled_too():
    rows = recipes.labelled().with_arrays(taps=np.arange(480.0).reshape(240, 2))
    sample = Sample(Stored("taps"), EntryKeys(), 7)
    assert drive.fold_all(sample, rows.cut()).entries.shape == (7, 2)


def test_a_state_is_no_larger_than_the_split():
    rows = recipes.labelled(rows=80)
    wide = Sample(Entries(Tokens()), EntryKeys("", 4), 10**9)
    assert wide.state_nbytes(rows.schema) == 80 * 4 * (8 + 8 * 12)
