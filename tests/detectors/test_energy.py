import numpy as np
import pytest
import reference_formulas as reference

from pipeline.detectors import Energy
from pipeline.errors import ConfigError
from pipeline.testing import Data, DetectorLaws, drive


class TestEnergy(DetectorLaws):
    detector = Energy()

    def reference(self, train, test):
        return reference.energy(test["logits"])


def test_temperature():
    data = TestEnergy().id_test()
    found = drive.scores_of(drive.outcome(Energy(temperature=2.5), data.cut()), data.cut())
    np.testing.assert_allclose(found, reference.energy(data.arrays["logits"], 2.5), rtol=1e-14)


def test_nothing_overflows():
    logits = np.array([[1e4, 1e4], [-1e4, -1e4], [88.0, 800.0]])
    data = Data({"logits": logits}, 2)
    found = drive.scores_of(drive.outcome(Energy(), data.cut()), data.cut())
    np.testing.assert_allclose(found, [-1e4 - np.log(2), 1e4 - np.log(2), -800.0], rtol=1e-15)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf")])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ConfigError, match="temperature"):
        Energy(temperature=temperature)
