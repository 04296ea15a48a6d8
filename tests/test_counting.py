"""Pairs and margins of true and predicted classes, against a loop over the definition."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import arrays
from pipeline.arrays import OutsideClassError, counting
from pipeline.testing.drive import PLACES
from pipeline.testing.strategies import LAW

LIBRARIES = sorted(PLACES)
in_every_library = pytest.mark.parametrize("library", LIBRARIES)

Ids = np.ndarray[Any, np.dtype[np.integer]]


def counted(truth: Ids, predicted: Ids, k: int, ignore: tuple[int, ...] = ()) -> Ids:
    """Return the pairs (k, k) by looking at one element after the other."""
    found = np.zeros((k, k), np.int64)
    for t, p in zip(truth.ravel().tolist(), predicted.ravel().tolist(), strict=True):
        if t not in ignore:
            assert t >= 0
            assert p >= 0
            found[int(t), p] += 1
    return found


def check(library: str, truth: Ids, predicted: Ids, k: int, ignore: tuple[int, ...] = ()) -> None:
    expected = counted(truth, predicted, k, ignore)
    placed = [PLACES[library].put(ids) for ids in (truth, predicted)]
    pairs = arrays.count_pairs(*placed, k, ignore)
    assert arrays.library(pairs) == library
    assert "int64" in str(pairs.dtype)
    more = any(not 0 <= one < k for one in ignore)
    assert pairs.shape == (k, k + more)
    assert not arrays.to_host(pairs)[:, k:].any()
    pairs = pairs[:, :k]
    np.testing.assert_array_equal(arrays.to_host(pairs), expected)
    margins = arrays.count_margins(*placed, k, ignore)
    for found, right in zip(
        margins, (expected.diagonal(), expected.sum(1), expected.sum(0)), strict=True
    ):
        assert arrays.library(found) == library
        np.testing.assert_array_equal(arrays.to_host(found), right)


@in_every_library
def test_narrow_classes_do_not_wrap(library: str) -> None:
    """In uint8, 16 * 21 + 16 is 96, the place of (4, 12): torchmetrics #1510, mmseg #1969."""
    truth, predicted = np.array([16, 20], np.uint8), np.array([16, 3], np.uint8)
    pairs = arrays.to_host(
        arrays.count_pairs(*(PLACES[library].put(x) for x in (truth, predicted)), 21, ())
    )
    assert np.argwhere(pairs).tolist() == [[16, 16], [20, 3]]
    assert pairs.sum() == 2


@LAW
@given(st.data())
@in_every_library
def test_counts_are_those_of_a_loop(library: str, data: st.DataObject) -> None:
    dtype: np.dtype[Any] = np.dtype(
        data.draw(st.sampled_from(["uint8", "int8", "int16", "int32", "int64"]))
    )
    k = data.draw(st.sampled_from([1, 2, 5, 21, 100, 127]))
    outside = data.draw(st.sampled_from([-1, -100, k, 127]))
    fits = outside >= 0 or dtype.kind == "i"
    inside = data.draw(st.integers(0, k - 1))
    ignore = (inside, outside) if not 0 <= outside < k else (inside,)
    labels = [*range(k), *(ignore if fits else ())]
    shape = data.draw(st.sampled_from([(0,), (1,), (7,), (3, 4), (2, 3, 5), (300,)]))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    truth = random.choice(labels, shape).astype(dtype)
    predicted = random.integers(0, k, shape).astype(dtype)
    # Whatever is predicted where nothing counts is not looked at.
    anything = np.iinfo(dtype).max if data.draw(st.booleans()) else 0
    predicted[np.isin(truth, ignore)] = anything
    check(library, truth, predicted, k, ignore)


@pytest.mark.parametrize("k", [2, 21, 127, 128, 255, 256, 300])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64", ">i4"])
def test_counts_of_many_tiles(k: int, dtype: str) -> None:
    random = np.random.default_rng(k)
    n = 2 * counting.CACHED_ELEMENTS + 777
    top = min(k, 256) if dtype == "uint8" else k
    truth, predicted = (random.integers(0, top, n).astype(dtype) for _ in range(2))
    truth[::9] = 255 if dtype == "uint8" else 999
    void = int(truth[0])
    kept = truth != void
    code = truth[kept].astype(np.int64) * k + predicted[kept]
    expected = np.bincount(code, minlength=k * k).reshape(k, k)
    void_is_outside = not void < k
    with_void = np.pad(expected, ((0, 0), (0, void_is_outside)))
    np.testing.assert_array_equal(
        arrays.count_pairs(truth, predicted, k, (void,)), with_void, strict=True
    )
    right, rows, columns = arrays.count_margins(truth[::-1], predicted[::-1], k, (void,))
    np.testing.assert_array_equal(right, expected.diagonal())
    np.testing.assert_array_equal(rows, expected.sum(1))
    np.testing.assert_array_equal(columns, expected.sum(0))


@in_every_library
def test_bool_and_mixed_dtypes(library: str) -> None:
    truth = np.array([[True, False], [True, True]])
    check(library, truth, np.array([[1, 1], [0, 1]], np.uint8), 2)


@in_every_library
def test_margins_of_a_million_classes_make_no_matrix(library: str) -> None:
    k = 1_000_000
    ids = PLACES[library].put(np.array([0, k - 1, k - 1, 5]))
    seen = PLACES[library].put(np.array([0, k - 1, 5, 5]))
    right, truth, predicted = (arrays.to_host(x) for x in arrays.count_margins(ids, seen, k, ()))
    assert (right[0], right[5], right[-1], right.sum()) == (1, 1, 1, 3)
    assert (truth[-1], predicted[5]) == (2, 2)


@in_every_library
@pytest.mark.parametrize("count", [arrays.count_pairs, arrays.count_margins])
def test_elements_outside_are_found(library: str, count: Any) -> None:
    truth = np.array([[0, 1, 255], [3, 2, -1]])
    predicted = np.array([[0, 4, 9], [1, 2, 7]])
    placed = [PLACES[library].put(x) for x in (truth, predicted)]
    with pytest.raises(OutsideClassError) as error:
        count(*placed, 3, ())
    found = (error.value.side, error.value.count, error.value.first, error.value.values)
    assert found == ("truth", 3, 2, (-1, 3, 255))
    with pytest.raises(OutsideClassError) as error:
        count(*placed, 3, (-1, 255, 3))
    found = (error.value.side, error.value.count, error.value.first, error.value.values)
    assert found == ("predicted", 1, 1, (4,))


@in_every_library
def test_predicting_an_ignored_value_outside_is_a_miss(library: str) -> None:
    """It has a column of its own among the pairs."""
    placed = [PLACES[library].put(np.array(x)) for x in ([0, 1, 255], [255, 1, 0])]
    margins = [arrays.to_host(x).tolist() for x in arrays.count_margins(*placed, 2, (255,))]
    assert margins == [[0, 1], [1, 1], [0, 1]]
    assert arrays.to_host(arrays.count_pairs(*placed, 2, (255,))).tolist() == [[0, 0, 1], [0, 1, 0]]
    placed = [ids[:2] for ids in placed]
    for count in (arrays.count_pairs, arrays.count_margins):
        with pytest.raises(OutsideClassError, match="predicted: 1 elements such as 0"):
            count(*placed, 2, (254, 256))


@in_every_library
def test_what_cannot_be_counted_is_refused(library: str) -> None:
    whole, part = (PLACES[library].put(np.zeros(n, np.int64)) for n in (3, 2))
    for count in (arrays.count_pairs, arrays.count_margins):
        with pytest.raises(ValueError, match="shape"):
            count(whole, part, 2, ())
        with pytest.raises(TypeError, match="expected integers"):
            count(PLACES[library].put(np.zeros(3)), whole, 2, ())
        with pytest.raises(OutsideClassError):
            count(whole, whole, 0, ())


def test_narrow_masks_are_not_widened_as_a_whole() -> None:
    masks = np.zeros((20, 1000, 1000), np.uint8)
    masks[:, ::3] = 255
    for count in (arrays.count_pairs, arrays.count_margins):
        tracemalloc.start()
        count(masks, masks, 21, (255,))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4e6  # one int64 copy would be 160 MB


def test_threads_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "THREAD_ELEMENTS", 1000)
    random = np.random.default_rng(0)
    for n in (0, 1, 999, 5001, 200_000):
        truth, predicted = random.integers(0, 5, (2, n))
        alone = arrays.count_pairs(truth, predicted, 5, (2,))
        for wanted in ("1", "3", "8"):
            monkeypatch.setenv("OMP_NUM_THREADS", wanted)
            with arrays.several_threads():
                np.testing.assert_array_equal(
                    arrays.count_pairs(truth, predicted, 5, (2,)), alone, strict=True
                )
                assert counting.THREADS.get() == int(wanted)
        assert counting.THREADS.get() == 1
    predicted[150_123], truth[199_999] = 7, 9
    with arrays.several_threads(), pytest.raises(OutsideClassError) as error:
        arrays.count_margins(truth, predicted, 5, ())
    assert (error.value.side, error.value.first, error.value.values) == ("truth", 199_999, (9,))
    with arrays.several_threads(), pytest.raises(OutsideClassError) as error:
        arrays.count_margins(truth, predicted, 5, (9,))
    assert (error.value.side, error.value.first) == ("predicted", 150_123)
