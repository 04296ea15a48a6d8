"""What scores say of elements: against definitions in float64, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pipeline import arrays
from pipeline.chunk import Chunk
from pipeline.content import to_tree
from pipeline.errors import ConfigError, DataError
from pipeline.statistics import ImageOverlaps
from pipeline.testing import Data
from pipeline.testing.drive import PLACES
from pipeline.views import AmongTop, ArgMax, AtLeast, Every
from pipeline.views.class_probabilities import ClassProbabilities, IsClass
from pipeline.views.judged import CountedElements, Judged, Judgements
from pipeline.views.quantities import QUANTITIES


def chunk_of(labels: Any, scores: Any, classes: int, library: str = "numpy") -> Chunk:
    data = Data({"labels": np.asarray(labels), "logits": np.asarray(scores)}, classes)
    put = PLACES[library].put
    return Chunk(data.schema, 0, data.rows, {name: put(x) for name, x in data.arrays.items()})


def judged(chunk: Chunk, **options: Any) -> dict[str, Any]:
    of = Judgements(**options)
    assert of.shape(chunk.schema)[1:] == Judged(of, "nll").shape(chunk.schema)
    return {name: arrays.to_host(Judged(of, name)(chunk)) for name in QUANTITIES}


def of_multiclass(p: Any, y: Any) -> dict[str, Any]:
    """Return the quantities of probabilities (n, k) from their definitions."""
    n, k = p.shape
    top = p.argmax(axis=1)
    hot = np.eye(k)[y]
    return {
        "confidence": p.max(axis=1),
        "hit": top == y,
        "nll": -np.log(p[np.arange(n), y]),
        "brier": ((p - hot) ** 2).sum(axis=1),
        "positive": p[:, 1],
        "is_positive": y == 1,
        "brier_positive": (p[:, 1] - (y == 1)) ** 2,
    }


def softmax(f: Any) -> Any:
    e = np.exp(f - f.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("library", PLACES)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("classes", [2, 5])
def test_multiclass_is_as_defined(library: str, kind: str, classes: int) -> None:
    rng = np.random.default_rng(classes)
    f = 3 * rng.standard_normal((200, classes))
    y = rng.integers(0, classes, 200)
    p = softmax(f)
    found = judged(chunk_of(y, f if kind == "logits" else p, classes, library), kind=kind)
    for name, expected in of_multiclass(p, y).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("library", PLACES)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_scores_of_one_class_are_as_defined(library: str, kind: str, task: str) -> None:
    rng = np.random.default_rng(1)
    z, y = 3 * rng.standard_normal((60, 2)), rng.integers(0, 2, (60, 2))
    p = 1 / (1 + np.exp(-z))
    found = judged(chunk_of(y, z if kind == "logits" else p, 2, library), kind=kind, task=task)
    flat = of_multiclass(np.stack((1 - p.ravel(), p.ravel()), axis=1), y.ravel())
    for name, expected in flat.items():
        shape = found[name].reshape(-1)
        np.testing.assert_allclose(shape, expected, rtol=1e-12, atol=1e-15, err_msg=name)


@pytest.mark.parametrize("library", PLACES)
def test_masks_are_rows_of_elements(library: str) -> None:
    rng = np.random.default_rng(2)
    f = rng.standard_normal((3, 4, 5, 6)).astype(np.float32)
    y = rng.integers(0, 4, (3, 5, 6)).astype(np.uint8)
    mask = judged(chunk_of(y, f, 4, library))
    each = judged(chunk_of(y.reshape(-1), np.moveaxis(f, 1, -1).reshape(-1, 4), 4))
    for name in QUANTITIES:
        assert mask[name].shape == (3, 5, 6)
        np.testing.assert_allclose(mask[name].reshape(-1), each[name], rtol=1e-14, err_msg=name)


def test_high_logits_lose_nothing() -> None:
    f = np.array([[0.0, 50.0, 0.0], [0.0, 0.0, 800.0], [2000.0, 0.0, -1000.0]])
    found = judged(chunk_of([1, 0, 2], f, 3))
    np.testing.assert_allclose(found["nll"], [2 * math.exp(-50.0), 800.0, 3000.0], rtol=1e-12)
    np.testing.assert_allclose(found["doubt"][:2], [2 * math.exp(-50.0), 0.0], rtol=1e-12)
    np.testing.assert_array_equal(found["confidence"], 1.0)
    z = np.array([50.0, -50.0, 800.0, -800.0])
    found = judged(chunk_of([1, 0, 0, 1], z, 2), task="binary")
    small = math.exp(-50.0)
    np.testing.assert_allclose(found["nll"], [small, small, 800.0, 800.0], rtol=1e-12)
    np.testing.assert_allclose(found["doubt"][:2], [small, small], rtol=1e-12)


def test_a_probability_of_zero_for_the_label_is_infinitely_unlikely() -> None:
    found = judged(chunk_of([1, 0], [[1.0, 0.0], [1.0, 0.0]], 2), kind="probabilities")
    np.testing.assert_array_equal(found["nll"], [np.inf, 0.0])
    found = judged(chunk_of([1, 0], [0.0, 1.0], 2), kind="probabilities", task="binary")
    np.testing.assert_array_equal(found["nll"], [np.inf, np.inf])
    tiny = judged(chunk_of([0], [1e-20], 2), kind="probabilities", task="binary")
    assert tiny["nll"] == 1e-20


def test_the_first_of_equal_scores_is_predicted_and_class_1_from_a_half_on() -> None:
    found = judged(chunk_of([0, 1, 1], [[1.0, 1.0, 0.0]] * 3, 3))
    np.testing.assert_array_equal(found["hit"], [1, 0, 0])
    found = judged(chunk_of([0, 1], [0.0, 0.0], 2), task="binary")
    np.testing.assert_array_equal(found["hit"], [0, 1])
    found = judged(chunk_of([0, 1], [0.5, 0.5], 2), task="binary", kind="probabilities")
    np.testing.assert_array_equal(found["hit"], [0, 1])


def test_what_does_not_count_may_be_anything() -> None:
    f = np.array([[np.nan, 0.0], [1.0, 2.0], [np.inf, np.inf], [7.0, -3.0]])
    among = CountedElements(ignore=(255,))
    chunk = chunk_of(np.array([255, 1, -1, 0], np.int16), f, 2)
    np.testing.assert_array_equal(among(chunk), [False, True, False, True])
    found = judged(chunk, among=among)
    np.testing.assert_allclose(found["confidence"][[1, 3]], softmax(f[[1, 3]]).max(axis=1))
    one = Judgements(kind="probabilities", task="binary", among=CountedElements("binary", (9,)))
    found_one = Judged(one, "confidence")(chunk_of([9, 1], [np.nan, 0.75], 2))
    assert found_one[1] == 0.75


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64"])
@pytest.mark.parametrize("library", PLACES)
def test_ignored_labels_beyond_the_type_ignore_nothing(dtype: str, library: str) -> None:
    chunk = chunk_of(np.array([0, 1, 100], dtype), np.zeros((3, 2)), 2, library)
    found = CountedElements(ignore=(-100, 100, 1000), where=Every())(chunk)
    np.testing.assert_array_equal(arrays.to_host(found), [True, True, False])


@pytest.mark.parametrize(
    ("labels", "where", "message"),
    [
        ([0, 2, 5, 2], None, r"3 labels are not 0 to 1, first in row 1: 2, 5; .*ignore=\(2,\)"),
        ([0, -1, 1, 1], Every(), r"1 labels are not 0 to 1, first in row 1: -1; "),
    ],
)
def test_labels_of_no_class_are_refused(labels: Any, where: Any, message: str) -> None:
    among = CountedElements() if where is None else CountedElements(where=where)
    with pytest.raises(DataError, match=message):
        among(chunk_of(labels, np.zeros((4, 2)), 2))


def test_labels_of_masks_and_of_several_labels_are_refused() -> None:
    masks = chunk_of(np.array([[[0, 1]], [[1, 7]]], np.uint8), np.zeros((2, 3, 1, 2)), 3)
    with pytest.raises(DataError, match="1 labels are not 0 to 2, first in row 1: 7"):
        CountedElements(where=Every())(masks)
    several = chunk_of([[0, 1, 2]], np.zeros((1, 3)), 3)
    with pytest.raises(DataError, match="are not 0 to 1"):
        CountedElements("multilabel", where=Every())(several)


def test_scores_that_are_not_finite_are_refused_by_row() -> None:
    f = np.zeros((5, 2))
    f[3, 1] = np.nan
    with pytest.raises(DataError, match="logits of 1 row, first row 3, are not finite"):
        judged(chunk_of([0] * 5, f, 2))
    f[3, 1] = np.inf
    with pytest.raises(DataError, match="logits of 1 row, first row 3, are not finite"):
        judged(chunk_of([0] * 5, f, 2))
    with pytest.raises(DataError, match="probabilities of 2 rows, first row 0, are not finite"):
        judged(chunk_of([0, 1], [np.nan, np.nan], 2), kind="probabilities", task="binary")


def test_logits_are_no_probabilities() -> None:
    with pytest.raises(DataError, match=r"first row 1, lie from -2 to 3;.*Declare kind='logits'"):
        judged(chunk_of([0, 1], [[0.4, 0.6], [-2.0, 3.0]], 2), kind="probabilities")
    with pytest.raises(
        DataError, match=r"lie from 0.2 to 0.4, with sums from 0.6 to 0.6; expected"
    ):
        judged(chunk_of([0], [[0.2, 0.4]], 2), kind="probabilities")
    with pytest.raises(DataError, match=r"lie from 1.5 to 1.5; expected 0 to 1: are they"):
        judged(chunk_of([0], [1.5], 2), kind="probabilities", task="binary")


def test_probabilities_rounded_to_half_precision_are_probabilities() -> None:
    p = softmax(np.random.default_rng(0).standard_normal((50, 1000)))
    judged(chunk_of([3] * 50, p.astype(np.float16), 1000), kind="probabilities")


@pytest.mark.parametrize(
    ("labels", "scores", "classes", "task", "message"),
    [
        ((3,), (3, 4), 5, "multiclass", r"\(4,\) beside labels \(\); .*\(5, ...\), a score for"),
        ((3, 2), (3, 5), 5, "multiclass", r"\(5,\) beside labels \(2,\)"),
        ((3,), (3, 2), 2, "binary", r"\(2,\) beside labels \(\); .*the score of class 1"),
        ((3, 4), (3, 4), 5, "multilabel", r"\(4,\) beside labels \(4,\); .*one for each label"),
    ],
)
def test_scores_that_do_not_fit_the_labels_are_refused(
    labels: Any, scores: Any, classes: int, task: str, message: str
) -> None:
    chunk = chunk_of(np.zeros(labels, int), np.zeros(scores), classes)
    with pytest.raises(DataError, match=message):
        Judgements(task=task).shape(chunk.schema)


def test_a_split_without_labels_counts_nothing() -> None:
    for task, shape in (("multiclass", (3, 2)), ("binary", (3,)), ("multilabel", (3, 2))):
        data = Data({"logits": np.zeros(shape)}, 2)
        chunk = Chunk(data.schema, 0, 3, data.arrays)
        of = Judgements(task=task)
        assert of.shape(data.schema)[1:] == Judged(of, "nll")(chunk).shape[1:]
        assert not of.among(chunk).any()
        assert IsClass(of)(chunk).shape == ClassProbabilities(of)(chunk).shape


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="task: 'multi' is unknown"):
        Judgements(task="multi")
    with pytest.raises(ConfigError, match="kind: 'scores' is unknown"):
        Judgements(kind="scores")
    with pytest.raises(ConfigError, match="quantity: 'x' is unknown"):
        Judged(Judgements(), "x")


@pytest.mark.parametrize("library", PLACES)
def test_probabilities_of_classes(library: str) -> None:
    rng = np.random.default_rng(3)
    f, y = 4 * rng.standard_normal((30, 4)), rng.integers(0, 4, 30)
    chunk, of = chunk_of(y, f, 4, library), Judgements()
    np.testing.assert_allclose(arrays.to_host(ClassProbabilities(of)(chunk)), softmax(f), 1e-13)
    np.testing.assert_array_equal(arrays.to_host(IsClass(of)(chunk)), np.eye(4, dtype=bool)[y])
    labels = rng.integers(0, 2, (30, 4))
    chunk, of = chunk_of(labels, f, 4, library), Judgements("multilabel")
    p = 1 / (1 + np.exp(-f))
    np.testing.assert_allclose(arrays.to_host(ClassProbabilities(of)(chunk)), p, 1e-13)
    np.testing.assert_array_equal(arrays.to_host(IsClass(of)(chunk)), labels == 1)


@pytest.mark.parametrize(
    "view",
    [
        Judgements(),
        ClassProbabilities(Judgements()),
        ArgMax(),
        AtLeast(0.5),
        AmongTop(2),
        ImageOverlaps(ArgMax()),
    ],
)
def test_formulas_have_a_version_that_what_was_kept_of_them_must_share(view: Any) -> None:
    assert to_tree(view)["version"] == 1
