import numpy as np
import pytest

from pipeline.detectors import ODIN
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.testing import Data, DetectorLaws, drive, labelled, planted


def with_odin(data):
    """Logits that moved a little from the stored ones, as those of perturbed inputs do."""
    return data.with_arrays(odin_logits=(1.05 * data.arrays["logits"]).astype(np.float32))


def odin(f, temperature=1000.0):
    """Liang et al. 2018, equation 2: 1 - max_c softmax(f / T)."""
    e = np.exp((f - f.max(axis=1, keepdims=True)) / temperature)
    return 1 - (e / e.sum(axis=1, keepdims=True)).max(axis=1)


def scores(f, detector=None, dtype=np.float64):
    data = Data({"odin_logits": np.asarray(f, dtype)}, len(f[0]))
    return drive.scores_of(drive.outcome(detector or ODIN(), data.cut()), data.cut())


class TestODIN(DetectorLaws):
    detector = ODIN()

    def id_train(self):
        return with_odin(labelled())

    def id_test(self):
        return with_odin(labelled(rows=90, seed=7, name="id/test"))

    def far_ood(self):
        return with_odin(planted())

    def reference(self, train, test):
        return odin(test["odin_logits"])


@pytest.mark.parametrize("temperature", [1.0, 10.0, 1000.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_temperature_is_that_of_the_paper(temperature, dtype):
    f = np.random.default_rng(0).standard_normal((50, 7)).astype(dtype) * 4
    found = scores(f, ODIN(temperature), dtype)
    np.testing.assert_allclose(found, odin(f.astype(float), temperature), rtol=1e-12)


def test_order_survives_where_the_largest_probability_rounds_to_one():
    gaps = [60.0, 40.0, 50.0, 700.0]
    found = scores([[gap, 0.0, -1e4] for gap in gaps], ODIN(temperature=1.0))
    np.testing.assert_array_equal(np.argsort(found), np.argsort(gaps)[::-1])


def test_rows_that_were_not_probed_are_refused_and_the_probe_is_named():
    with pytest.raises(MissingInputError, match=r"no 'odin_logits'.*probe odin writes it"):
        drive.outcome(ODIN(), labelled().cut())


def test_logits_of_other_classes_are_refused():
    data = Data({"odin_logits": np.zeros((4, 3))}, 5)
    with pytest.raises(DataError, match=r"shape \(3,\).*expected \(5,\)"):
        drive.outcome(ODIN(), data.cut())


@pytest.mark.parametrize("temperature", [0, -1, float("inf"), float("nan")])
def test_a_temperature_that_is_none_is_refused(temperature):
    with pytest.raises(ConfigError, match="temperature"):
        ODIN(temperature=temperature)
