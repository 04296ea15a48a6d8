import numpy as np
import pytest
from peers import peer
from safetensors.numpy import save_file
from scipy import special

from pipeline.config.detector import DetectorConfig
from pipeline.content import Const
from pipeline.detectors import WeightedEnergy
from pipeline.errors import ConfigError, MissingInputError
from pipeline.testing import Data, DetectorLaws, drive

WEIGHTS = (0.5, 2.0, -1.0, 1e-3, 1.0)


def scores(logits, weights=WEIGHTS):
    data = Data({"logits": np.asarray(logits)}, len(logits[0]))
    scorer = drive.outcome(WeightedEnergy(weights), data.cut())
    return drive.scores_of(scorer, data.cut())


class TestWeightedEnergy(DetectorLaws):
    detector = WeightedEnergy((0.5, 2.0, 0.7, 1.0, 0.3))

    def reference(self, train, test):
        weights = np.maximum(self.detector.weights.array, 0.0)
        return -special.logsumexp(test["logits"], b=weights, axis=1)


def test_nothing_overflows_or_vanishes():
    found = scores([[1e4] * 5, [-1e4] * 5, [0.0, -1e4, 1e4, -1e4, -1e4]])
    total = np.log(3.501)
    np.testing.assert_allclose(found, [-1e4 - total, 1e4 - total, np.log(2)], rtol=1e-14)


def test_a_file_a_list_and_a_constant_are_the_same_weights(tmp_path):
    path = tmp_path / "vos.safetensors"
    save_file({"energy.weight": np.asarray([WEIGHTS], np.float32)}, path)
    exact = tuple(float(weight) for weight in np.asarray(WEIGHTS, np.float32))
    given = WeightedEnergy(exact)
    assert WeightedEnergy(str(path)) == given
    assert WeightedEnergy(Const(np.asarray(exact))) == given
    for entry in (str(path), list(exact)):
        config = DetectorConfig.model_validate({"name": "weighted_energy", "weights": entry})
        assert list(config.members.values()) == [given]


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ((0.0, -1.0), "none is above 0"),
        ((1.0, float("nan")), "finite"),
        ((), "shape"),
        (("a", "b"), "list of numbers"),
        (Const(np.ones((2, 3))), "shape"),
    ],
)
def test_weights_are_checked(weights, match):
    with pytest.raises(ConfigError, match=f"^weights: .*{match}"):
        WeightedEnergy(weights)


def test_weights_of_other_classes_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="3 numbers for the 5 classes"):
        next(WeightedEnergy((1.0, 2.0, 3.0)).passes(TestWeightedEnergy().id_test().schema))


def test_files_are_checked(tmp_path):
    path = tmp_path / "vos.safetensors"
    with pytest.raises(MissingInputError, match="no file"):
        WeightedEnergy(str(path))
    path.write_text("weights")
    with pytest.raises(ConfigError, match="not a safetensors file"):
        WeightedEnergy(str(path))
    save_file({"bias": np.ones(3)}, path)
    with pytest.raises(ConfigError, match="holds bias"):
        WeightedEnergy(str(path))


def test_pytorch_ood():
    import torch

    logits = np.random.default_rng(0).standard_normal((500, 5)) * 4
    weights = torch.tensor([WEIGHTS], dtype=torch.float64)
    theirs = peer("WeightedEBO")(None, weights).predict_logits(torch.from_numpy(logits)).numpy()
    np.testing.assert_allclose(scores(logits), theirs, rtol=1e-12, atol=1e-13)
