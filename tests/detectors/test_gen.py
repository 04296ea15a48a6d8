import numpy as np
import pytest
from peers import peer
from scipy import special

from pipeline.detectors import GEN
from pipeline.errors import ConfigError
from pipeline.testing import Data, DetectorLaws, drive


def scores(logits, **options):
    data = Data({"logits": np.asarray(logits)}, len(logits[0]))
    return drive.scores_of(drive.outcome(GEN(**options), data.cut()), data.cut())


def generalised_entropy(logits, gamma=0.1, largest=100):
    p = np.sort(special.softmax(logits, axis=1), axis=1)[:, -largest:]
    return (p**gamma * (1 - p) ** gamma).sum(axis=1)


class TestGEN(DetectorLaws):
    detector = GEN()

    def reference(self, train, test):
        return generalised_entropy(test["logits"])


class TestGENOfThree(DetectorLaws):
    detector = GEN(gamma=0.5, M=3)

    def reference(self, train, test):
        return generalised_entropy(test["logits"], 0.5, 3)


def test_the_largest_are_summed_and_more_than_all_classes_are_all():
    logits = np.random.default_rng(0).standard_normal((40, 300)) * 3
    np.testing.assert_allclose(scores(logits), generalised_entropy(logits), rtol=1e-13)
    for every in (300, 1000, None):
        expected = generalised_entropy(logits, largest=300)
        np.testing.assert_allclose(scores(logits, M=every), expected, rtol=1e-13)


def test_order_survives_where_the_largest_probability_rounds_to_one():
    gaps = np.array([60.0, 40.0, 50.0, 700.0])
    found = scores([[gap, 0.0] for gap in gaps])
    np.testing.assert_allclose(found, 2 * np.exp(-0.1 * gaps), rtol=1e-13)


def test_extreme_logits():
    found = scores([[1e4, -1e4, 0.0], [2.0, 2.0, 2.0], [8e307, -8e307, 0.0]])
    np.testing.assert_allclose(found, [0.0, 3 * (2 / 9) ** 0.1, 0.0], rtol=1e-14)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("gamma", 0.0), ("gamma", float("inf")), ("M", 0), ("reduce", "max"), ("clamp", 0.5)],
)
def test_options_are_checked(option, wrong):
    with pytest.raises(ConfigError, match=f"^{option}: "):
        GEN(**{option: wrong})


@pytest.mark.parametrize(("classes", "scale"), [(10, 3.0), (300, 3.0), (30, 30.0)])
def test_pytorch_ood(classes, scale):
    import torch

    logits = np.random.default_rng(0).standard_normal((500, classes)) * scale
    theirs = peer("GEN")(None).predict_logits(torch.from_numpy(logits)).numpy()
    ours = scores(logits, **GEN.presets["pytorch-ood-0.4"])
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    limited = peer("GEN")(None, gamma=0.5, M=5).predict_logits(torch.from_numpy(logits)).numpy()
    ours = scores(logits, gamma=0.5, M=5, reduce="mean", clamp=1e-7)
    np.testing.assert_allclose(ours, limited, rtol=1e-9)


def test_a_row_that_is_nan_does_not_look_certain():
    scorer = drive.outcome(GEN(), Data({"logits": np.eye(3)}, 3).cut())
    odd = Data({"logits": np.array([[np.nan] * 3, [1.0, 2.0, 3.0]])}, 3)
    ((chunk,),) = drive.chunks(odd.cut(), odd.arrays)
    np.testing.assert_array_equal(np.isnan(scorer.score(chunk)), [True, False])
