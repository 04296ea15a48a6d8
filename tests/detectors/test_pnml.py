from decimal import Decimal, localcontext

import numpy as np
import pytest
import reference_formulas as reference
import torch
from peers import peer

from pipeline.content import Const
from pipeline.detectors import PNML, make
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError, MissingInputError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive
from pipeline.views import Pooled

WEIGHT = 9.0 * np.eye(5, 12) + 0.1
BIAS = 0.1 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def pnml(x, test, logits, ridge=1e-6):
    """Return the regrets of unit vectors, as the sum over classes is written in the paper."""
    gram = unit(x).T @ unit(x)
    inverse = np.linalg.inv(gram + ridge * np.trace(gram) / len(gram) * np.eye(len(gram)))
    leverage = np.einsum("ni,ij,nj->n", unit(test), inverse, unit(test))
    g = leverage / (1 + leverage)
    return np.array([regret(*row) for row in zip(logits, g, strict=True)])


def regret(logits, g):
    """Return log sum_c p / (p + (1 - p) p^g) / log k, with digits enough for p next to 0 and 1."""
    with localcontext(prec=60):
        weights = [(Decimal(f) - Decimal(logits.max())).exp() for f in logits]
        p = [weight / sum(weights) for weight in weights if weight]
        total = sum(q / (q + (1 - q) * q ** Decimal(g)) for q in p)
        return float(total.ln() / Decimal(len(logits)).ln())


class TestPNML(DetectorLaws):
    detector = PNML(head=HEAD)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        z = reference.pooled(test)
        return pnml(x, z, unit(z) @ WEIGHT.T + BIAS)


class TestPNMLOfRawLogits(DetectorLaws):
    detector = PNML(probabilities="raw")
    planted_auroc = 0.9

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return pnml(x, reference.pooled(test), test["logits"])


class TestPNMLOnLDA(DetectorLaws):
    detector = PNML(head=LDAHead(), probabilities="raw")
    tolerance = 1e-8
    planted_auroc = 0.9

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        z = reference.pooled(test)
        return pnml(x, z, z @ weight.T + bias)


def rows(features, logits=None, classes=5):
    labels = np.arange(len(features)) % classes
    arrays = {"features": np.asarray(features), "labels": labels}
    return Data(arrays if logits is None else {**arrays, "logits": logits}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, train, test):
    return drive.scores_of(drive.outcome(detector, train.cut()), test.cut())


def test_parity_with_pytorch_ood():
    x, test = noise(400, 64) + 0.5, noise(100, 64, seed=1) + 0.5
    weight, bias = noise(10, 64, seed=2), noise(1, 10, seed=3)[0]
    head = torch.nn.Linear(64, 10)
    head.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    theirs = peer("PNML")(None, head)
    theirs.fit_features(torch.tensor(x), torch.zeros(len(x)))
    expected = theirs.predict_features(torch.tensor(test)).numpy()
    ours = make("pnml", preset="pytorch-ood-0.4", head=LinearHead(Const(weight), Const(bias)))
    found = scores(ours, rows(x, classes=10), rows(test, classes=10))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (np.argsort(found) == np.argsort(expected)).all()


def test_parity_with_pytorch_ood_of_certain_rows(monkeypatch):
    """It clamps probabilities at 1e-12, in float64 here: in float32 the upper end would be 1."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    x, test = noise(400, 16), noise(100, 16, seed=1)
    weight, bias = 60 * noise(10, 16, seed=2), noise(1, 10, seed=3)[0]
    head = torch.nn.Linear(16, 10).double()
    head.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    theirs = peer("PNML")(None, head).fit_features(torch.tensor(x), torch.zeros(len(x)))
    expected = theirs.predict_features(torch.tensor(test)).numpy()
    given = LinearHead(Const(weight), Const(bias))
    ours = make("pnml", preset="pytorch-ood-0.4", head=given)
    exact = make("pnml", preset="pytorch-ood-0.4", head=given, clamp=0.0)
    data = rows(x, classes=10), rows(test, classes=10)
    np.testing.assert_allclose(scores(ours, *data), expected, rtol=1e-5, atol=1e-15)
    assert np.abs(scores(exact, *data) / expected - 1).max() > 0.1


@pytest.mark.parametrize("clamp", [-1e-12, 0.5, float("nan")])
def test_clamp_is_a_small_probability(clamp):
    with pytest.raises(ConfigError, match="clamp"):
        PNML(clamp=clamp)


def test_a_sweep_reads_once():
    options = ({}, {"covariance": "pinvh"}, {"ridge": 1e-3}, {"probabilities": "raw"})
    split, trace = rows(noise(60)).cut([[7] * 4, [32]]), Trace()
    jobs = {str(o): Job(PNML(head=HEAD, **o), {"train": (split,)}) for o in options}
    run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1]


def test_saturated_probabilities_keep_their_order():
    x = noise(300)
    far = np.zeros((6, 5))
    far[:, 0] = [30.0, 60.0, 300.0, 600.0, 1e4, 0.0]
    far[:, 1] = [0.0, 0.0, 0.0, 0.0, -1e4, 0.0]
    test = np.tile(noise(1, seed=1), (6, 1))
    found = scores(PNML(probabilities="raw"), rows(x, noise(300, 5)), rows(test, far))
    assert (np.diff(found[:4]) < 0).all()
    assert (found[:4] > 0).all()
    assert found[4] == 0.0
    assert found[5] == found.max()


def test_a_row_outside_of_the_span_has_no_leverage_left_under_a_ridge():
    x = noise(300)
    x[:, 11] = 0.0
    test = np.zeros((2, 12))
    test[0, 0] = test[1, 11] = 1.0
    data = rows(test, np.zeros((2, 5)))
    known, outside = scores(PNML(probabilities="raw"), rows(x, noise(300, 5)), data)
    free = np.log(5 * 0.2 / (0.2 + 0.8 * 0.2)) / np.log(5)  # with g = 1
    assert outside == pytest.approx(free, rel=0.01)
    assert known < 0.1 * free
    blind = scores(PNML(probabilities="raw", covariance="pinvh"), rows(x, noise(300, 5)), data)
    assert blind[1] == 0.0


def test_a_zero_vector_has_no_regret():
    found = scores(PNML(HEAD), rows(noise(300)), rows(np.zeros((1, 12))))
    assert found[0] == 0.0


def test_fewer_rows_than_features():
    x, test = noise(20, 40), noise(5, 40, seed=1)
    head = LinearHead(Const(noise(5, 40, seed=2)), Const(BIAS))
    scorer = drive.outcome(PNML(head), rows(x).cut())
    assert "rank 20 of 40" in scorer.notes[0]
    expected = pnml(x, test, unit(test) @ head.weight.array.T + BIAS)
    np.testing.assert_allclose(drive.scores_of(scorer, rows(test).cut()), expected, rtol=1e-7)


def test_classes_without_rows_under_an_lda_head():
    labels = np.arange(200) % 3
    x = noise(200) + 4 * np.eye(5, 12)[labels]
    data = Data({"features": x, "labels": labels}, 5)
    weight, bias = reference.linear_discriminant(x, labels, 5)
    found = scores(PNML(LDAHead()), data, data)
    expected = pnml(x, x, unit(x) @ weight.T + bias)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize(
    "options", [{"probabilities": "clamped"}, {"covariance": "oas"}, {"ridge": 0.0}]
)
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        PNML(**options)


def test_stored_logits_are_refused_where_the_head_reads_unit_vectors():
    with pytest.raises(ConfigError, match=r"needs its weights.*probabilities: raw"):
        next(PNML().passes(rows(noise(9)).schema))
    with pytest.raises(MissingInputError, match="stores no 'logits'"):
        next(PNML(probabilities="raw").passes(rows(noise(9)).schema))


@pytest.mark.parametrize("probabilities", ["normalized", "raw"])
def test_a_head_over_other_features_is_refused(probabilities):
    head = LinearHead(Const(WEIGHT), Const(BIAS), of=Pooled("mean", "other"))
    data = rows(noise(30)).with_arrays(other=noise(30))
    with pytest.raises(ConfigError, match="same pool and field"):
        drive.outcome(PNML(head, probabilities), data.cut())


def test_one_class_is_refused():
    with pytest.raises(ConfigError, match="at least 2 classes"):
        next(PNML(HEAD).passes(rows(noise(9), classes=1).schema))
