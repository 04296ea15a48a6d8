"""The composable coreset: the laws where nothing is left out, and the bounds where much is."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import spatial

from pipeline.engine import Job, run_jobs
from pipeline.errors import ConfigError
from pipeline.statistics.coreset import Centres, Coreset
from pipeline.statistics.k_center import k_center
from pipeline.testing import StatisticLaws, assert_same, drive, recipes
from pipeline.testing.strategies import LAW, partitions
from pipeline.views import Pooled, Tokens
from pipeline.views.entries import Entries, EntryKeys

IDS = np.random.default_rng(0).permutation(10_000)
MOST = 15


def with_ids(rows):
    return rows.with_arrays(ids=np.resize(IDS, rows.rows))


def covering(entries, centres):
    return spatial.distance.cdist(entries, centres).min(axis=1).max()


def greedy_radius(entries, count):
    """Radius of k-center that knows all entries: at most twice the best, which is no larger."""
    return covering(entries, entries[k_center(entries, count, 0)[0]])


def entries_of(rows):
    """The tokens of labelled rows (m, 12), in float64."""
    host = rows.upcast()
    return host["features"][host["labels"] >= 0].reshape(-1, host["features"].shape[-1])


class TestCoresetOfFewTokens(StatisticLaws):
    """Up to ``most`` tokens are all kept, in the order of their keys."""

    statistic = Coreset(Entries(Tokens()), EntryKeys("ids", 4), 320, 320)
    state_may_grow = True
    memory_shapes = (recipes.Shape(1, 4, 256, 6), recipes.Shape(100, 4, 512, 6))

    def rows(self):
        return with_ids(recipes.labelled(rows=80))

    def shaped(self, shape):
        return with_ids(shape.data)

    def reference(self, rows):
        known = rows["labels"] >= 0
        split = recipes.Data({"ids": rows["ids"][known]}, 5).cut()
        (chunk,) = next(drive.chunks(split, frozenset({"ids"})))
        keys = EntryKeys("ids", 4)(chunk).ravel()
        order = np.argsort(keys)
        tokens = rows["features"][known].reshape(-1, rows["features"].shape[-1])
        return Centres(keys[order], tokens[order], np.zeros(len(keys)), np.array([len(keys)]))


class TestCoresetOfManyTokens(TestCoresetOfFewTokens):
    """Of more tokens, what is kept depends on the blocks, and the bounds do not."""

    statistic = Coreset(Entries(Tokens()), EntryKeys("ids", 4), MOST, 10**6, seed=3)
    memory_shapes = (
        recipes.Shape(1, 4, 256, 6),
        recipes.Shape(500, 4, 64, 6),
        recipes.Shape(500, 4, 512, 6),
    )

    def assert_as_reference(self, data, partition=None):
        self.assert_bounds(self.result(self.partials(data, partition)), data)

    def assert_bounds(self, found, data):
        entries = entries_of(data)
        assert found.offered == len(entries)
        assert len(found.keys) == min(MOST, len(entries))
        assert (np.diff(found.keys) > 0).all()
        every = self.reference(data.upcast())
        places = np.searchsorted(every.keys, found.keys)
        np.testing.assert_array_equal(every.entries[places], found.entries)
        radius = covering(entries, found.entries)
        size = np.abs(entries).max()
        assert radius <= found.reach.max() + 1e-9 * size
        assert radius <= 4 * greedy_radius(entries, MOST) + 1e-6 * size

    @LAW
    @given(data=st.data())
    def test_merge_is_associative_and_commutative(self, data):
        rows, _ = self.drawn(data)
        ends = sorted(data.draw(st.lists(st.integers(0, rows.rows), min_size=2, max_size=2)))
        a, b, c = self.partials(rows, [[n] for n in np.diff([0, *ends, rows.rows]).tolist()])
        merge = self.statistic.merge
        assert_same(merge(a, b), merge(b, a))
        for found in (merge(merge(a, b), c), merge(a, merge(b, c)), merge(b, merge(a, c))):
            self.assert_bounds(self.statistic.finalize(found), rows)


@LAW
@given(data=st.data())
def test_neither_chunks_nor_the_order_of_rows_within_a_block_change_a_bit(data):
    rows = with_ids(recipes.labelled(rows=80))
    statistic = Coreset(Entries(Tokens()), EntryKeys("ids", 4), MOST, 100)
    sizes = data.draw(partitions(40))
    first = [[size for block in sizes for size in block], [40]]
    order = data.draw(st.permutations(range(40)))
    moved = rows.take(np.array([*order, *range(40, 80)]))
    found = drive.fold_all(statistic, moved.cut(first))
    assert_same(found, drive.fold_all(statistic, rows.cut([[40], [40]])))


@pytest.mark.parametrize("chunk_rows", [1, 7, 79, 80])
def test_chunks_of_every_size_give_the_same_bits(chunk_rows):
    rows = with_ids(recipes.labelled(rows=80))
    statistic = Coreset(Entries(Tokens()), EntryKeys("ids", 4), MOST, 100)
    sizes = [min(chunk_rows, 80 - start) for start in range(0, 80, chunk_rows)]
    assert_same(
        drive.fold_all(statistic, rows.cut([[0, *sizes, 0]])), drive.fold_all(statistic, rows.cut())
    )


def clusters(count, rows, d=12, seed=0):
    """Rows of one token in ``count`` tight clusters, most of them in few, with the label of it."""
    rng = np.random.default_rng(seed)
    centres = 30.0 * rng.standard_normal((count, d))
    share = rng.pareto(1.0, count) + 0.05
    labels = rng.choice(count, rows, p=share / share.sum())
    labels[:count] = np.arange(count)
    labels = rng.permutation(labels)
    features = centres[labels] + rng.uniform(-1, 1, (rows, d)) / np.sqrt(d)
    arrays = {"features": features[:, None, :], "labels": labels, "ids": rng.permutation(rows)}
    return recipes.Data(arrays, count)


@pytest.mark.parametrize("order", ["drawn", "by class"])
@pytest.mark.parametrize("blocks", [1, 4, 40])
def test_planted_clusters_are_all_found_whatever_the_blocks(order, blocks):
    rows = clusters(20, 4000).ordered(order)
    statistic = Coreset(Entries(Tokens()), EntryKeys("ids", 1), 20, 10**6)
    cut = rows.cut([[4000 // blocks]] * blocks)
    found = drive.fold_all(statistic, cut)
    entries = entries_of(rows)
    radius, best = covering(entries, found.entries), 1.0  # every cluster lies within 1
    assert radius <= 2 * best  # a centre in each of them
    assert radius <= 4 * greedy_radius(entries, 20)
    assert radius <= found.reach.max()


@pytest.mark.parametrize("order", ["drawn", "by class"])
def test_rows_without_clusters_are_covered_nearly_as_well_as_by_all_rows_at_once(order):
    rng = np.random.default_rng(0)
    basis = rng.standard_normal((3, 12))
    features = (rng.standard_normal((6000, 3)) @ basis)[:, None, :]
    labels = np.argsort(np.argsort(features[:, 0, 0])) // 1500
    rows = recipes.Data({"features": features, "labels": labels, "ids": np.arange(6000)}, 4)
    rows = rows.ordered(order)
    statistic = Coreset(Entries(Tokens()), EntryKeys("ids", 1), 60, 1000)
    found = drive.fold_all(statistic, rows.cut([[500]] * 12))
    entries = entries_of(rows)
    factor = covering(entries, found.entries) / greedy_radius(entries, 60)
    assert 1 < factor < 2


def test_a_block_offers_no_more_than_it_is_told():
    rows = with_ids(recipes.labelled(rows=80))
    few = Coreset(Entries(Tokens()), EntryKeys("ids", 4), 10, 25)
    assert drive.fold_all(few, rows.cut([[40], [40]])).offered == 50


def test_equal_rows_make_a_coreset_that_reaches_nothing():
    rows = with_ids(recipes.labelled(rows=80))
    same = rows.with_arrays(features=np.ones((80, 4, 12), np.float32))
    found = drive.fold_all(
        Coreset(Entries(Tokens()), EntryKeys("ids", 4), MOST, 100), same.cut([[40], [40]])
    )
    assert found.entries.shape == (MOST, 12)
    np.testing.assert_array_equal(found.reach, np.zeros(MOST))


def test_a_row_that_is_not_finite_may_be_skipped():
    rows = with_ids(recipes.labelled(rows=80))
    rows = rows.with_arrays(labels=np.maximum(rows.arrays["labels"], 0))
    spoilt = rows.arrays["features"].copy()
    spoilt[17, 2, 5] = np.nan
    ask = drive.Ask(Coreset(Entries(Tokens()), EntryKeys("ids", 4), MOST, 400))

    def found(data, sizes):
        job = {"it": Job(ask, {"train": (data.cut(sizes),)})}
        return run_jobs(job, skip_nonfinite=True)["it"]

    dense = rows.take(np.arange(80) != 17)
    skipped = found(rows.with_arrays(features=spoilt), [[40], [40]])
    assert_same(skipped, found(dense, [[39], [40]]))


def test_wide_entries_are_compared_in_random_directions_and_reach_in_all():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 1, 400))
    rows = recipes.Data({"features": features, "labels": np.zeros(300, int)}, 1)
    statistic = Coreset(Entries(Tokens()), EntryKeys("", 1), 30, 300, seed=1)
    found = drive.fold_all(statistic, rows.cut([[100]] * 3))
    assert covering(features[:, 0], found.entries) <= found.reach.max()
    again = drive.fold_all(statistic, rows.cut([[100]] * 3))
    assert_same(copy.deepcopy(again), found)


def test_rows_are_entries_too():
    rows = with_ids(recipes.labelled(rows=80))
    found = drive.fold_all(Coreset(Entries(Pooled()), EntryKeys("ids"), MOST, 100), rows.cut())
    assert found.entries.shape == (MOST, 12)


@pytest.mark.parametrize(("most", "offered"), [(0, 5), (6, 5)])
def test_more_centres_than_are_offered_are_refused(most, offered):
    with pytest.raises(ConfigError, match=f"most: {most}"):
        Coreset(Entries(Pooled()), EntryKeys(), most, offered)
