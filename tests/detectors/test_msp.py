import numpy as np
import reference_formulas as reference

from pipeline.detectors import MSP
from pipeline.testing import Data, DetectorLaws, drive


def scores(logits):
    data = Data({"logits": np.asarray(logits, np.float64)}, len(logits[0]))
    scorer = drive.outcome(MSP(), data.cut())
    return drive.scores_of(scorer, data.cut())


class TestMSP(DetectorLaws):
    detector = MSP()

    def reference(self, train, test):
        return reference.msp(test["logits"])


def test_order_survives_where_the_largest_probability_rounds_to_one():
    gaps = [60.0, 40.0, 50.0, 700.0, 745.0]
    logits = [[gap, 0.0, -1000.0] for gap in gaps]
    assert len(set(reference.msp(np.array(logits)))) == 1, "the naive form ties"
    np.testing.assert_array_equal(np.argsort(scores(logits)), np.argsort(gaps)[::-1])


def test_small_scores_are_exact():
    np.testing.assert_allclose(scores([[50.0, 0.0], [0.0, 50.0]]), np.exp(-50.0), rtol=1e-14)


def test_ties_and_extreme_logits():
    found = scores([[1.0, 1.0, 1.0], [1e308, 0.0, 0.0], [-1e308, -1e308, -1e308], [2.0, 2.0, -1e5]])
    np.testing.assert_allclose(found, [2 / 3, 0.0, 2 / 3, 0.5], rtol=1e-15)
