import numpy as np
import pytest
import reference_formulas as reference
from peers import peer

from pipeline.content import Const
from pipeline.detectors import DICE
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive

WEIGHT = 1.5 * np.eye(5, 12) + 0.1
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


def sparse_energy(x, weight, bias, test, p):
    contributions = weight * x.mean(axis=0)
    kept = contributions > np.percentile(contributions, 100 * p)
    votes = test[:, None, :] * (weight * kept)
    return reference.energy(votes.sum(axis=2) + bias)


class TestDICE(DetectorLaws):
    detector = DICE(head=HEAD)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return sparse_energy(x, WEIGHT, BIAS, reference.pooled(test), 0.9)


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


@pytest.mark.parametrize("p", [0.0, 0.5, 0.9])
def test_the_score_of_pytorch_ood(p):
    import torch

    weight, bias = noise(7, 12, seed=3), noise(1, 7, seed=4)[0]
    train, test = noise(400, seed=1) + 1.0, noise(80, seed=2).astype(np.float32)
    theirs = peer("DICE")(None, torch.tensor(weight), torch.tensor(bias), p)
    theirs.fit_features(torch.tensor(train), torch.zeros(400))
    expected = theirs.predict_features(torch.tensor(test)).numpy()
    detector = DICE(LinearHead(Const(weight), Const(bias)), p, **DICE.presets["pytorch-ood-0.4"])
    scorer = drive.outcome(detector, rows(train, classes=7).cut())
    found = drive.scores_of(scorer, rows(test, classes=7).cut())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_sweep_over_p_asks_for_the_same_statistics():
    data, test = rows(noise(60)), rows(noise(9, seed=1))
    jobs = {f"dice-{p}": Job(DICE(HEAD, p), {"train": (data.cut(),)}) for p in (0.1, 0.5, 0.9)}
    trace = Trace()
    scorers = run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1]
    for p in (0.1, 0.5, 0.9):
        x = data.arrays["features"]
        expected = sparse_energy(x, WEIGHT, BIAS, test.arrays["features"], p)
        found = drive.scores_of(scorers[f"dice-{p}"], test.cut())
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_classes_without_rows_are_left_out_of_the_quantile():
    data = rows(noise(200) + 3 * np.eye(5, 12)[np.random.default_rng(0).integers(0, 5, 200)])
    data = data.take(data.arrays["labels"] != 2)
    x, y = data.arrays["features"], data.arrays["labels"]
    scorer = drive.outcome(DICE(LDAHead()), data.cut())
    weight, bias = reference.linear_discriminant(x, y, 5)
    expected = sparse_energy(x, weight[np.unique(y)], bias[np.unique(y)], x, 0.9)
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), expected, rtol=1e-8)
    assert scorer.notes == ("5 of 48 weights kept",)


def test_logits_of_any_size_and_rows_of_zeros_are_finite():
    head = LinearHead(Const(1e4 * WEIGHT), Const(BIAS))
    scorer = drive.outcome(DICE(head, 0.5), rows(noise(60)).cut())
    found = drive.scores_of(scorer, rows(np.stack([np.zeros(12), np.full(12, 1e3)])).cut())
    assert np.isfinite(found).all()


def test_features_of_zero_keep_no_weight():
    with pytest.raises(DataError, match="contributions are all 0"):
        drive.outcome(DICE(HEAD), rows(np.zeros((9, 12))).cut())


@pytest.mark.parametrize("p", [-0.1, 1.0, 90, np.nan])
def test_p_is_a_share(p):
    with pytest.raises(ConfigError, match="p: "):
        DICE(HEAD, p)


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(DICE().passes(rows(noise(9)).schema))
