import numpy as np
import pytest
import safetensors.numpy
from scipy import special

import pipeline as ff
from pipeline.content import Const
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.heads import LDAHead, LinearHead, StoredHead, refuse_without_weights
from pipeline.procedure import Rows
from pipeline.testing import Data, drive, labelled
from pipeline.views import Linear, Logits, Pooled


class Ask:
    """A head as a procedure that returns its logits."""

    def __init__(self, head):
        self.head = head

    def passes(self, schema):
        view = yield from self.head.passes(schema)
        return view


def logits_of(head, data, partition=None):
    view = drive.outcome(Ask(head), data.cut(partition))
    return drive.outcome(drive.Ask(Rows(view)), data.cut()).array()


def pooled(data):
    return data.arrays["features"].mean(axis=1, dtype=np.float64)


def test_stored_logits_ask_for_nothing():
    data = labelled(rows=20)
    assert drive.requests_of(Ask(StoredHead()), data.cut()) == []
    assert drive.outcome(Ask(StoredHead()), data.cut()) == Logits()
    np.testing.assert_array_equal(logits_of(StoredHead(), data), data.arrays["logits"])


def test_missing_logits_name_the_other_heads():
    data = labelled(rows=20)
    with pytest.raises(MissingInputError, match=r"'other'.*features.*head: lda"):
        next(StoredHead("other").passes(data.schema))


def test_linear_head():
    data = labelled(rows=20)
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((5, 12)), rng.standard_normal(5)
    found = logits_of(LinearHead(Const(weight), Const(bias)), data)
    np.testing.assert_allclose(found, pooled(data) @ weight.T + bias, rtol=1e-13)


@pytest.mark.parametrize(("weight", "bias"), [((12,), (12,)), ((5, 12), (12,)), ((5, 12), (5, 1))])
def test_shapes_of_a_head_are_checked_at_once(weight, bias):
    with pytest.raises(ConfigError, match=r"shape \(k, d\)"):
        LinearHead(Const(np.zeros(weight)), Const(np.zeros(bias)))


@pytest.mark.parametrize("shape", [(5, 11), (4, 12)])
def test_a_head_that_does_not_fit_the_split_is_refused_before_anything_is_read(shape):
    head = LinearHead(Const(np.zeros(shape)), Const(np.zeros(shape[0])))
    with pytest.raises(DataError, match=r"does not fit features \(12,\) and 5 classes"):
        next(head.passes(labelled().schema))


def test_a_head_that_is_not_finite_is_refused():
    head = LinearHead(Const(np.full((5, 12), np.nan)), Const(np.zeros(5)))
    with pytest.raises(ConfigError, match="not finite"):
        next(head.passes(labelled().schema))


@pytest.mark.parametrize("prefix", ["", "fc.", "head.classifier."])
def test_a_head_is_read_from_safetensors(tmp_path, prefix):
    weight, bias = np.ones((5, 12), np.float32), np.arange(5, dtype=np.float32)
    path = tmp_path / "head.safetensors"
    safetensors.numpy.save_file({f"{prefix}weight": weight, f"{prefix}bias": bias}, path)
    expected = LinearHead(Const(weight.astype(np.float64)), Const(np.arange(5.0)))
    assert LinearHead.read(path) == expected
    safetensors.numpy.save_file({f"{prefix}weight": weight}, path)
    read = LinearHead.read(path, of=Pooled("cls"))
    assert read.of == Pooled("cls")
    np.testing.assert_array_equal(read.bias.array, np.zeros(5))


def test_files_that_hold_no_head_are_refused(tmp_path):
    with pytest.raises(MissingInputError, match="there is no file"):
        LinearHead.read(tmp_path / "head.safetensors")
    text = tmp_path / "text.safetensors"
    text.write_text("W = 1, b = 2")
    with pytest.raises(ConfigError, match="not a safetensors file"):
        LinearHead.read(text)
    two = tmp_path / "two.safetensors"
    safetensors.numpy.save_file({"a.weight": np.ones((2, 2)), "b.weight": np.ones((2, 2))}, two)
    with pytest.raises(ConfigError, match=r"a\.weight, b\.weight"):
        LinearHead.read(two)


def gaussian_log_posterior(data):
    """Return log p(class | x) of Gaussians with one covariance, from densities and priors."""
    known = data.arrays["labels"] >= 0
    x, y = pooled(data)[known], data.arrays["labels"][known]
    classes = np.unique(y)
    means = np.stack([x[y == c].mean(axis=0) for c in classes])
    centred = x - means[np.searchsorted(classes, y)]
    covariance = centred.T @ centred / len(x)
    ridged = covariance + 1e-6 * np.trace(covariance) / 12 * np.eye(12)
    offsets = pooled(data)[:, None, :] - means
    squared = np.einsum("nki,ij,nkj->nk", offsets, np.linalg.inv(ridged), offsets)
    prior = np.array([(y == c).mean() for c in classes])
    return special.log_softmax(np.log(prior) - squared / 2, axis=1)


@pytest.mark.parametrize("partition", [None, [[1] * 100, [140]], [[7] * 20, [], [0, 99, 1]]])
def test_lda_is_the_posterior_of_gaussians_that_share_a_covariance(partition):
    data = labelled()
    found = special.log_softmax(logits_of(LDAHead(), data, partition), axis=1)
    np.testing.assert_allclose(found, gaussian_log_posterior(data), rtol=0, atol=1e-9)


def test_lda_never_predicts_a_class_without_rows():
    data = labelled()
    data = data.take(data.arrays["labels"] != 2)
    found = logits_of(LDAHead(), data)
    assert np.isfinite(found).all()
    present = special.log_softmax(found, axis=1)[:, [0, 1, 3, 4]]
    np.testing.assert_allclose(present, gaussian_log_posterior(data), rtol=0, atol=1e-9)
    assert (special.softmax(found, axis=1)[:, 2] == 0).all()


def test_lda_of_features_with_a_large_offset():
    data = labelled().with_arrays(
        features=labelled().arrays["features"].mean(axis=1, dtype=np.float64) + 1e5
    )
    plain = special.log_softmax(logits_of(LDAHead(), labelled()), axis=1)
    found = special.log_softmax(logits_of(LDAHead(), data), axis=1)
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-6)


def test_lda_needs_two_classes():
    data = labelled()
    with pytest.raises(DataError, match=r"at least 2 classes, found 1 of 5"):
        drive.outcome(Ask(LDAHead()), data.take(data.arrays["labels"] == 1).cut())


def test_lda_refuses_a_ridge_that_is_not_above_zero():
    with pytest.raises(ConfigError, match="ridge"):
        LDAHead(ridge=0.0)


def test_lda_logits_are_linear_in_the_features_it_was_fitted_on():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 90)
    cls = rng.standard_normal((90, 4)) + 3 * np.eye(3, 4)[labels]
    data = Data({"cls": cls, "features": np.zeros((90, 2, 4)), "labels": labels}, 3)
    view = drive.outcome(Ask(LDAHead(of=Pooled("cls"))), data.cut())
    assert isinstance(view, Linear)
    assert view.fields == {"cls"}
    accuracy = (logits_of(LDAHead(of=Pooled("cls")), data).argmax(axis=1) == labels).mean()
    assert accuracy > 0.8


@pytest.mark.parametrize(
    "options",
    [
        {"name": "vim", "pool": "max"},
        {"name": "react", "pool": "cls"},
        {"name": "nci", "field": "layer3"},
        {"name": "ensemble", "detectors": [{"name": "vim", "pool": "topk"}, "energy"]},
    ],
)
def test_a_head_reads_the_features_that_its_detector_reads(options):
    random = np.random.default_rng(0)
    y = random.integers(0, 4, 200)
    x = random.standard_normal((200, 3, 8)) + 3 * np.eye(4, 8)[y][:, None]
    data = {"features": x, "labels": y, "layer3": x[:, :, :6].copy(), "cls": x[:, 0].copy()}
    fitted = ff.fit(options, data, head="lda", workers=1)
    (scores,) = ff.score(fitted, data).values()
    assert np.isfinite(scores).all()


def test_what_lacks_weights_names_every_head_that_has_them():
    with pytest.raises(ConfigError, match=r"weights: FILE.*head: model.*tapped\(.*head: lda"):
        refuse_without_weights(StoredHead(), "vim")
    with pytest.raises(MissingInputError, match=r"head: lda.*weights: FILE.*head: model"):
        next(StoredHead("other").passes(labelled(rows=20).schema))
