from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from pipeline import views
from pipeline.arrays import namespace, to_host
from pipeline.chunk import ArraySpec, Chunk, Schema
from pipeline.content import Const
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.fold import fold
from pipeline.statistics import ClassMoments, ConfusionMatrix
from pipeline.testing import Data, assert_same, drive, labelled, recipes
from pipeline.views import Pooled, Tokens, View

RNG = np.random.default_rng(0)


def masked(rows: int = 40) -> Data:
    """Token rows with one to four valid tokens; row 11 has none, invalid ones hold NaN."""
    data = labelled(rows)
    mask = np.arange(4) < 1 + np.arange(rows)[:, None] % 4
    mask[11] = False
    features = np.where(mask[:, :, None], data.arrays["features"], np.nan)
    labels = np.maximum(data.arrays["labels"], 0)
    return data.with_arrays(features=features, mask=mask, labels=labels)


def chunk_of(data: Data, library: str = "numpy") -> Chunk:
    ((chunk,),) = drive.chunks(data.cut(), data.arrays, drive.PLACES[library])
    return chunk


def seen(view: View, data: Data, library: str = "numpy") -> Any:
    """Return a view of all rows, having checked what it says of itself."""
    assert view.fields <= set(data.arrays) | {"is_ood"}
    array = view(chunk_of(data, library))
    assert tuple(array.shape) == (data.rows, *view.shape(data.schema))
    assert view.nbytes(data.schema, data.rows) >= 0
    return to_host(array)


DATA = labelled(40)
W, B = RNG.standard_normal((5, 12)), RNG.standard_normal(5)
EVERY_VIEW: list[View] = [
    views.Stored("scores"),
    views.Tokens(),
    views.TokenCounts(),
    views.TokenMask(),
    views.Pooled(),
    views.Linear(views.Pooled(), Const(W), Const(B)),
    views.Projected(views.Pooled(), Const(W.T), Const(np.ones(12))),
    views.Projected(views.Tokens(), Const(W.T), Const(np.ones(12))),
    views.Logits(),
    views.LogSoftmax(),
    views.LogSumExp(),
    views.Predicted(),
    views.Labels(),
    views.IsOOD(),
    views.Every(),
    views.Valid(),
    views.Correct(),
    views.Both(views.Valid(), views.Correct()),
    views.Finite(("features", "logits")),
]


@pytest.mark.parametrize("view", EVERY_VIEW, ids=lambda view: type(view).__name__)
@pytest.mark.parametrize("data", [DATA, masked()], ids=["whole", "masked"])
@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_array_libraries_agree(view: View, data: Data, library: str) -> None:
    ours, theirs = seen(view, data, library), seen(view, data)
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("view", EVERY_VIEW, ids=lambda view: type(view).__name__)
def test_equal_views_share_their_work(view: View) -> None:
    chunk = chunk_of(DATA)
    assert view(chunk) is view(chunk)


@pytest.mark.parametrize("view", EVERY_VIEW, ids=lambda view: type(view).__name__)
@pytest.mark.parametrize("data", [DATA, masked()], ids=["whole", "masked"])
def test_only_declared_arrays_are_read(view: View, data: Data) -> None:
    names = data.schema.touched(view.fields) or {"scores"}
    ((chunk,),) = drive.chunks(data.cut(), names)
    assert_same(to_host(view(chunk)), seen(view, data))


def test_logits_in_log_space() -> None:
    logits = DATA.arrays["logits"]
    np.testing.assert_allclose(seen(views.LogSoftmax(), DATA), log_softmax(logits, axis=1))
    np.testing.assert_allclose(seen(views.LogSumExp(), DATA), logsumexp(logits, axis=1))
    np.testing.assert_array_equal(seen(views.Predicted(), DATA), logits.argmax(axis=1))


def test_log_space_does_not_saturate() -> None:
    logits = np.array([[1e300, 0.0], [800.0, 0.0], [-900.0, -901.0]])
    data = Data({"logits": logits, "labels": np.zeros(3, int)}, 2)
    np.testing.assert_allclose(
        seen(views.LogSoftmax(), data), [[0, -1e300], [0, -800], [-0.31326169, -1.31326169]]
    )


@pytest.mark.parametrize("library", drive.PLACES)
def test_the_first_of_equal_logits_is_predicted(library: str) -> None:
    data = Data({"logits": np.zeros((3, 4)), "labels": np.zeros(3, int)}, 4)
    np.testing.assert_array_equal(seen(views.Predicted(), data, library), 0)


def test_pooled_is_the_mean_of_tokens_in_float64() -> None:
    tokens = DATA.arrays["features"].astype(np.float64)
    np.testing.assert_allclose(seen(views.Pooled(), DATA), tokens.mean(axis=1), rtol=1e-15)
    vectors = DATA.with_arrays(features=tokens[:, 0].astype(np.float32))
    np.testing.assert_array_equal(
        seen(views.Pooled(), vectors), tokens[:, 0].astype(np.float32).astype(np.float64)
    )


def test_half_precision_neither_overflows_nor_rounds() -> None:
    tokens = np.full((2, 49, 3), 2000.0, np.float16)
    data = Data({"features": tokens, "labels": np.zeros(2, int)}, 1)
    np.testing.assert_array_equal(seen(views.Pooled(), data), 2000.0)
    assert seen(views.Tokens(), data).dtype == np.float32


def test_the_class_token_is_a_field_of_its_own() -> None:
    data = DATA.with_arrays(cls=RNG.standard_normal((40, 7)).astype(np.float32))
    assert views.Pooled("cls").fields == {"cls"}
    np.testing.assert_array_equal(seen(views.Pooled("cls"), data), data.arrays["cls"])


def test_masked_tokens_do_not_count() -> None:
    data = masked()
    mask, tokens = data.arrays["mask"], data.arrays["features"]
    pooled = seen(views.Pooled(), data)
    for row in range(data.rows):
        valid = tokens[row, mask[row]]
        if row == 11:
            assert np.isnan(pooled[row]).all()
        else:
            np.testing.assert_allclose(pooled[row], valid.mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(seen(views.TokenCounts(), data), mask.sum(axis=1))
    np.testing.assert_array_equal(seen(views.Valid(), data), np.arange(40) != 11)
    filled = seen(views.Tokens(), data)
    np.testing.assert_allclose(filled.mean(axis=1), pooled, rtol=1e-5)
    assert seen(views.Finite(("features",)), data).all()


def test_a_mask_means_the_same_alone_and_in_company() -> None:
    split = masked().cut()
    (alone,) = fold([ConfusionMatrix()], split, split.blocks[0]).states
    _, fused = fold([ClassMoments(), ConfusionMatrix()], split, split.blocks[0]).states
    assert_same(fused, alone)
    assert alone.sum() == 39


def test_linear_and_projected() -> None:
    x = DATA.arrays["features"].mean(axis=1, dtype=np.float64)
    linear = views.Linear(views.Pooled(), Const(W), Const(B))
    np.testing.assert_allclose(seen(linear, DATA), x @ W.T + B)
    projected = views.Projected(views.Pooled(), Const(W.T), Const(np.ones(12)))
    np.testing.assert_allclose(seen(projected, DATA), (x - 1) @ W.T)


def test_labels() -> None:
    data = DATA.with_arrays(labels=np.arange(40, dtype=np.int8) % 6 - 1)
    assert seen(views.Labels(), data).dtype == np.int64
    np.testing.assert_array_equal(seen(views.Valid(), data), data.arrays["labels"] >= 0)
    unlabelled = Data({"scores": np.zeros(3)}, 5)
    np.testing.assert_array_equal(views.Labels()(chunk_of(unlabelled)), -1)
    above = DATA.with_arrays(labels=np.where(np.arange(40) == 8, 5, 0))
    with pytest.raises(DataError, match=r"id/train: 1 labels.*row 8: 5.*classes=6"):
        views.Labels()(chunk_of(above))


def test_correct_rows_are_labelled_and_predicted_right() -> None:
    predicted = DATA.arrays["logits"].argmax(axis=1)
    np.testing.assert_array_equal(seen(views.Correct(), DATA), predicted == DATA.arrays["labels"])


@pytest.mark.parametrize("library", drive.PLACES)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_finite_finds_single_values(library: str, wrong: float) -> None:
    features = DATA.arrays["features"].copy()
    features[3, 2, 1] = wrong
    features[17, 0, 0] = -wrong
    found = seen(views.Finite(("features", "labels")), DATA.with_arrays(features=features), library)
    np.testing.assert_array_equal(np.flatnonzero(~found), [3, 17])


def test_finite_values_whose_sum_is_not_are_finite() -> None:
    huge = np.full((40, 4, 12), 3e38, np.float32)
    assert seen(views.Finite(("features",)), DATA.with_arrays(features=huge)).all()


def test_what_does_not_fit_is_said() -> None:
    schema = DATA.schema
    with pytest.raises(ConfigError, match="median"):
        views.Pooled("median")
    with pytest.raises(MissingInputError, match=r"no array 'cls'; it has .*features"):
        views.Pooled("cls").shape(schema)
    with pytest.raises(DataError, match="5 classes"):
        views.Logits("features").shape(schema)
    with pytest.raises(DataError, match="tokens need"):
        views.Tokens("logits").shape(schema)
    with pytest.raises(DataError, match=r"\(d,\) or \(t, d\)"):
        views.Pooled(field="scores").shape(schema)
    with pytest.raises(DataError, match="head of shape"):
        views.Linear(views.Logits(), Const(W), Const(B)).shape(schema)
    with pytest.raises(DataError, match="basis over"):
        views.Projected(views.Logits(), Const(W), Const(np.ones(12))).shape(schema)
    with pytest.raises(MissingInputError, match="logits"):
        views.Logits()(Chunk(schema, 0, 1, {"scores": np.zeros(1)}))


def test_views_of_an_empty_chunk_are_empty() -> None:
    chunk = chunk_of(DATA.take(slice(0, 0)))
    for view in EVERY_VIEW:
        array = view(chunk)
        assert array.shape[0] == 0
        assert namespace(array) is namespace(chunk["features"])


@pytest.mark.parametrize("recipe", [lambda: labelled(150), lambda: masked(150)])
def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it(recipe: Any) -> None:
    data = recipe()
    every = next(drive.chunks(data.cut(), data.arrays))[0]
    for size in (1, 7, data.rows - 1):
        cut = data.cut(recipes.regular(data.rows, size))
        parts = [chunk for block in drive.chunks(cut, data.arrays) for chunk in block]
        for view in EVERY_VIEW:
            joined = np.concatenate([view(part) for part in parts])
            assert_same(joined, view(every))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("view", [views.Tokens(), views.Pooled()])
def test_views_of_masked_tokens_say_what_they_allocate(view: View, dtype: str) -> None:
    data = masked(4000)
    tokens = data.arrays["features"].astype(dtype)
    chunk = chunk_of(data.with_arrays(features=tokens))
    views.Pooled()(chunk) if isinstance(view, views.Tokens) else None
    tracemalloc.start()
    try:
        view(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    slack = 64 * data.rows  # masks, counts and indices
    assert peak <= view.nbytes(chunk.schema, data.rows) + slack


@pytest.mark.parametrize("view", [Tokens(), Pooled(), Pooled("max")])
def test_features_whose_tokens_come_last_are_refused(view: View) -> None:
    schema = Schema(5, 2, {"features": ArraySpec((8, 3), "float32", "DT")}, "id/train")
    with pytest.raises(DataError, match=r"laid out DT.*store it as TD"):
        view.shape(schema)
