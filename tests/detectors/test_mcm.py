import numpy as np
import pytest
from peers import peer
from scipy import special

from pipeline.content import Const
from pipeline.detectors import MCM, MSP
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead, StoredHead
from pipeline.testing import Data, DetectorLaws, drive, labelled

TEXT = np.eye(5, 12) + 0.1 * np.random.default_rng(3).standard_normal((5, 12))
HEAD = LinearHead(Const(TEXT), Const(np.full(5, 9.0)))


def cosines(z, text=TEXT):
    lengths = np.linalg.norm(z, axis=1)[:, None] * np.linalg.norm(text, axis=1)
    return z @ text.T / lengths


class TestMCMOfStoredSimilarities(DetectorLaws):
    detector = MCM(tau=2.5)

    def reference(self, train, test):
        return 1 - special.softmax(test["logits"] / 2.5, axis=1).max(axis=1)


class TestMCMOfCosines(DetectorLaws):
    detector = MCM(HEAD, tau=0.1, cosine=True)

    def reference(self, train, test):
        z = test["features"].mean(axis=1)
        return 1 - special.softmax(cosines(z) / 0.1, axis=1).max(axis=1)


def test_tau_1_is_msp():
    split = labelled().cut()
    ours, theirs = (drive.scores_of(drive.outcome(d, split), split) for d in (MCM(), MSP()))
    np.testing.assert_array_equal(ours, theirs)


def test_vectors_of_zeros_are_like_no_class():
    z = np.zeros((2, 12))
    z[1, :2] = 3.0
    text = TEXT.copy()
    text[4] = 0.0
    head = LinearHead(Const(text), Const(np.zeros(5)))
    data = Data({"features": z}, 5)
    found = drive.scores_of(drive.outcome(MCM(head, cosine=True), data.cut()), data.cut())
    expected = special.softmax([*cosines(z[1:], text[:4])[0], 0.0])
    np.testing.assert_allclose(found, [0.8, 1 - expected.max()], rtol=1e-14)


def test_classes_that_a_head_cannot_predict_are_left_out():
    data = labelled()
    kept = data.take(data.arrays["labels"] != 2)
    scorer = drive.outcome(MCM(LDAHead(), cosine=True), kept.cut())
    assert scorer.similarities.shape(data.schema) == (4,)
    assert np.isfinite(drive.scores_of(scorer, data.cut())).all()


@pytest.mark.parametrize("tau", [0, -1.0, float("nan"), float("inf")])
def test_tau_must_be_positive(tau):
    with pytest.raises(ConfigError, match=r"^tau: "):
        MCM(tau=tau)


def test_cosines_need_weights():
    with pytest.raises(ConfigError, match="cosine: true needs the weights"):
        next(MCM(StoredHead(), cosine=True).passes(labelled().schema))


@pytest.mark.parametrize("tau", [1.0, 0.05])
def test_pytorch_ood(tau):
    import torch

    z = np.random.default_rng(0).standard_normal((500, 12))
    theirs = peer("MCM")(None, torch.from_numpy(TEXT), tau).predict_features(torch.from_numpy(z))
    data = Data({"features": z}, 5)
    detector = MCM(HEAD, tau=tau, **MCM.presets["pytorch-ood-0.4"])
    ours = drive.scores_of(drive.outcome(detector, data.cut()), data.cut())
    np.testing.assert_allclose(ours - 1, theirs.numpy(), rtol=1e-5)
