import numpy as np
import pytest
import reference_formulas as reference
import torch
from peers import peer
from scipy import special

from pipeline.content import Const
from pipeline.detectors.nnguide import NNGuide
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import DetectorLaws, drive, recipes


def directions(x):
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0)


def guided(bank, bank_logits, x, logits, k):
    scaled = directions(bank) * special.logsumexp(bank_logits, axis=1)[:, None]
    largest = np.sort(directions(x) @ scaled.T, axis=1)[:, -k:]
    return -largest.mean(axis=1) * special.logsumexp(logits, axis=1)


class TestNNGuide(DetectorLaws):
    detector = NNGuide()

    def reference(self, train, test):
        x, _, f = reference.fit_rows(train)
        return guided(x, f, reference.pooled(test), test["logits"], 10)


class TestNNGuideOnLDA(DetectorLaws):
    detector = NNGuide(head=LDAHead(), k=20)
    tolerance = 1e-8
    planted_auroc = 0.0  # an lda head is not centred: energies say little

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        z = reference.pooled(test)
        return guided(x, x @ weight.T + bias, z, z @ weight.T + bias, 20)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": 0}, "k: 0"),
        ({"alpha": 0.0}, "alpha: 0"),
        ({"alpha": 1.5}, "alpha: 1.5"),
        ({"alpha": 0.5, "max_bank": 9}, "alpha and max_bank"),
    ],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ConfigError, match=match):
        NNGuide(**options)


def test_a_share_of_the_rows_is_a_sample_of_them():
    train = recipes.labelled()
    scorer = drive.outcome(NNGuide(alpha=0.1), train.cut())
    held = scorer.bank.held.array
    everything = drive.outcome(NNGuide(), train.cut()).bank.held.array
    assert len(held) == 24
    assert {row.tobytes() for row in held} <= {row.tobytes() for row in everything}


def test_scores_are_those_of_pytorch_ood():
    train, test = recipes.labelled().upcast(), recipes.labelled(rows=60, seed=5).upcast()
    weight, bias = np.eye(5, 12) + 0.1, 0.1 * np.arange(5)

    def head(z):
        return z @ torch.from_numpy(weight.T).float() + torch.from_numpy(bias).float()

    theirs = peer("NNGuide")(None, head)
    x, z = reference.pooled(train), reference.pooled(test)
    theirs.fit_features(torch.from_numpy(x), torch.from_numpy(train["labels"]))
    expected = theirs.predict_features(torch.from_numpy(z).float()).numpy()
    given = LinearHead(Const(weight), Const(bias))
    scorer = drive.outcome(
        NNGuide(given, **NNGuide.presets["pytorch-ood-0.4"]), recipes.labelled().cut()
    )
    found = drive.scores_of(scorer, recipes.labelled(rows=60, seed=5).cut())
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (np.argsort(found) == np.argsort(expected)).all()


def test_scores_are_those_of_openood_on_all_rows():
    train, test = recipes.labelled().upcast(), recipes.labelled(rows=60, seed=5).upcast()

    def normalizer(x):  # 1e-10 is added to every feature
        return x / np.linalg.norm(x, axis=-1, keepdims=True) + 1e-10

    x, _, f = reference.fit_rows(train)
    bank = normalizer(x) * special.logsumexp(f, axis=1)[:, None]
    nearest = np.sort(normalizer(reference.pooled(test)) @ bank.T, axis=1)[:, -100:]
    expected = -nearest.mean(axis=1) * special.logsumexp(test["logits"], axis=1)
    preset = {**NNGuide.presets["openood-1.5"], "alpha": 1.0}
    scorer = drive.outcome(NNGuide(**preset), recipes.labelled().cut())
    found = drive.scores_of(scorer, recipes.labelled(rows=60, seed=5).cut())
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_logits_as_large_as_1e4_leave_scores_finite():
    rows = recipes.labelled()
    large = rows.with_arrays(logits=1e4 * np.sign(rows.arrays["logits"]))
    scorer = drive.outcome(NNGuide(), large.cut())
    assert np.isfinite(drive.scores_of(scorer, large.cut())).all()
