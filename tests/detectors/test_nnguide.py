import numpy as np
import pytest
import reference_formulas as reference
from scipy import special

from pipeline.detectors.nnguide import NNGuide
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead
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
