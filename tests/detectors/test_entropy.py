import numpy as np
import pytest
from peers import peer
from scipy import special, stats

from pipeline.detectors import Entropy
from pipeline.errors import ConfigError
from pipeline.testing import Data, DetectorLaws, drive


def scores(logits, **options):
    data = Data({"logits": np.asarray(logits)}, len(logits[0]))
    return drive.scores_of(drive.outcome(Entropy(**options), data.cut()), data.cut())


class TestEntropy(DetectorLaws):
    detector = Entropy()

    def reference(self, train, test):
        return stats.entropy(special.softmax(test["logits"], axis=1), axis=1)


def test_even_and_certain_rows():
    found = scores([[7.0] * 4, [1e4, -1e4, 0.0, 0.0], [8e307, -8e307, 0.0, 0.0]])
    np.testing.assert_allclose(found, [np.log(4), 0.0, 0.0], rtol=1e-15, atol=0)


def test_order_survives_where_the_largest_probability_rounds_to_one():
    gaps = np.array([60.0, 40.0, 50.0, 700.0])
    found = scores([[gap, 0.0] for gap in gaps])
    np.testing.assert_allclose(found, np.exp(-gaps) * (1 + gaps), rtol=1e-14)


@pytest.mark.parametrize("clamp", [-0.1, 0.5, float("nan")])
def test_clamp_is_a_small_probability(clamp):
    with pytest.raises(ConfigError, match="clamp"):
        Entropy(clamp=clamp)


def test_pytorch_ood():
    import torch

    logits = np.random.default_rng(0).standard_normal((500, 30)) * 4
    theirs = peer("Entropy")(None).predict_logits(torch.from_numpy(logits)).numpy()
    ours = scores(logits, **Entropy.presets["pytorch-ood-0.4"])
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
