"""Views of true and predicted classes: ties, thresholds, the largest few, NaN, any row shape."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import arrays
from pipeline.chunk import ArraySpec, Chunk, Schema
from pipeline.errors import DataError
from pipeline.testing import Data, drive
from pipeline.testing.memory_laws import GENEROUS, LARGE_NBYTES, SLACK_NBYTES, peak
from pipeline.testing.strategies import LAW
from pipeline.views import AmongTop, ArgMax, AtLeast, Labelled, Truth, View
from pipeline.views.class_ids import NO_CLASS, TILE_SCORES


def chunk_of(library: str = "numpy", classes: int = 4, **contents: Any) -> Chunk:
    place = drive.PLACES[library]
    (chunk,) = next(drive.chunks(Data(contents, classes).cut(), contents, place))
    return chunk


def seen(view: View, library: str = "numpy", classes: int = 4, **contents: Any) -> Any:
    return arrays.to_host(view(chunk_of(library, classes, **contents)))


TIED = np.array([[0.1, 0.7, 0.7, 0.7], [0.3, 0.3, 0.3, 0.3], [0.0, -1.0, -0.0, 2.0]])


@pytest.mark.parametrize(
    ("library", "dtype"),
    [*product(drive.PLACES, ["float32", "float64"]), ("numpy", "float16"), ("torch", "float16")],
)
class TestLibraries:
    def test_the_first_of_equal_scores_is_predicted(self, library: str, dtype: str) -> None:
        assert seen(ArgMax(), library, logits=TIED.astype(dtype)).tolist() == [1, 0, 3]

    def test_equal_scores_are_found_in_the_order_of_classes(self, library: str, dtype: str) -> None:
        logits = TIED.astype(dtype)
        found = {
            k: [
                seen(AmongTop(k), library, logits=logits, labels=np.full(3, y)).tolist()
                for y in range(4)
            ]
            for k in (1, 2, 3)
        }
        assert found[1] == [[1, 0, 3]] * 4
        assert found[2] == [[1, 0, 0], [1, 1, 3], [2, 0, 3], [1, 0, 3]]
        assert found[3] == [[1, 0, 0], [1, 1, 3], [2, 2, 2], [3, 0, 3]]

    def test_scores_at_the_threshold_are_found(self, library: str, dtype: str) -> None:
        scores = np.array([0.69, 0.7, 0.71, 0.0]).astype(dtype)
        assert seen(AtLeast(0.7), library, logits=scores).tolist() == [0, 1, 1, 0]

    def test_no_class_beside_nan(self, library: str, dtype: str) -> None:
        logits = TIED.astype(dtype)
        logits[1, 3] = np.nan
        assert seen(ArgMax(), library, logits=logits).tolist() == [1, NO_CLASS, 3]
        labels = np.array([0, 3, 3])
        assert seen(AmongTop(4), library, logits=logits, labels=labels).tolist() == [0, NO_CLASS, 3]
        assert seen(AtLeast(0.5), library, logits=logits)[1].tolist() == [0, 0, 0, NO_CLASS]

    def test_void_labels_are_left_alone(self, library: str, dtype: str) -> None:
        labels = np.array([-1, 255, 4])
        logits = TIED.astype(dtype)
        assert seen(AmongTop(3), library, logits=logits, labels=labels).tolist() == [1, 0, 3]


@st.composite
def scores_of_masks(draw: Any) -> tuple[Any, Any, int]:
    n, k, h = draw(st.integers(0, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = rng.integers(-2, 3, (n, k, h, 2)).astype(np.float32)  # many ties
    return scores, rng.integers(-1, k + 1, (n, h, 2)), draw(st.integers(1, k))


@LAW
@given(scores_of_masks())
def test_the_largest_scores_of_every_element(drawn: tuple[Any, Any, int]) -> None:
    scores, labels, k = drawn
    classes = scores.shape[1]
    order = np.argsort(-scores, axis=1, kind="stable")
    first = order[:, 0]
    among = (order[:, :k] == labels[:, None]).any(axis=1)
    contents = {"logits": scores, "labels": labels}
    np.testing.assert_array_equal(seen(ArgMax(), classes=classes, **contents), first)
    found = seen(AmongTop(k), classes=classes, **contents)
    np.testing.assert_array_equal(found, np.where(among, labels, first))


def test_tiles_change_nothing() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 5, 64, 64)).astype(np.float32)
    labels = rng.integers(0, 5, (40, 64, 64))
    assert scores.size > 3 * TILE_SCORES
    np.testing.assert_array_equal(seen(ArgMax(), classes=5, logits=scores), scores.argmax(axis=1))
    np.testing.assert_array_equal(
        seen(AmongTop(5), classes=5, logits=scores, labels=labels), labels
    )


def test_labels_keep_their_type_and_shape() -> None:
    labels = np.zeros((3, 2, 2), np.uint8)
    view = Truth()
    found = view(chunk_of(labels=labels))
    assert (found.dtype, found.shape) == (np.uint8, (3, 2, 2))
    assert view.shape(Data({"labels": labels}, 2).schema) == (2, 2)


def test_rows_without_labels_are_void() -> None:
    chunk = chunk_of(logits=TIED)
    assert Truth()(chunk).tolist() == [-1, -1, -1]
    assert not Labelled()(chunk).any()
    assert AmongTop(2)(chunk).tolist() == [1, 0, 3]


def test_labels_below_zero_and_rows_without_a_token_are_left_out() -> None:
    mask = np.array([[1, 0], [1, 1], [0, 0]], np.uint8)
    labels = np.array([255, -1, 1], np.int16)
    assert Labelled()(chunk_of(labels=labels)).tolist() == [True, False, True]
    assert Labelled()(chunk_of(labels=labels, mask=mask)).tolist() == [True, False, False]


@pytest.mark.parametrize("view", [ArgMax(), AmongTop(2)])
@pytest.mark.parametrize("shape", [(), (3,), (5, 4)])
def test_a_score_for_each_class_is_needed(view: View, shape: tuple[int, ...]) -> None:
    schema = Schema(2, 4, {"logits": ArraySpec(shape, "float32")}, "id/test")
    with pytest.raises(
        DataError, match=r"id/test: logits has rows of shape .* expected \(4, ...\)"
    ):
        view.shape(schema)


@pytest.mark.parametrize("shape", [(10,), (1000,), (4, 32, 32), (150, 16, 16)])
@pytest.mark.parametrize("rows", [1, 64, 1000])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_memory_of_views_is_declared(shape: tuple[int, ...], rows: int, dtype: str) -> None:
    if rows * np.prod(shape) > 2**22:
        rows = 64
    logits = np.random.default_rng(0).normal(size=(rows, *shape)).astype(dtype)
    labels = np.zeros((rows, *shape[1:]), np.int64)
    for view in (ArgMax(), AtLeast(0.5), AmongTop(3)):
        chunk = chunk_of(classes=shape[0], logits=logits, labels=labels)
        declared = view.nbytes(chunk.schema, rows)
        view(chunk_of(classes=shape[0], logits=logits, labels=labels))  # the first one imports
        _, used = peak(view, chunk)
        assert used - SLACK_NBYTES <= declared <= max(GENEROUS * used, LARGE_NBYTES), view
