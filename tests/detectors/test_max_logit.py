import numpy as np
import reference_formulas as reference

from pipeline.detectors import MaxLogit
from pipeline.testing import Data, DetectorLaws, drive


class TestMaxLogit(DetectorLaws):
    detector = MaxLogit()
    tolerance = 0.0

    def reference(self, train, test):
        return reference.max_logit(test["logits"])


def test_half_precision_logits_score_in_float64():
    logits = np.array([[1.5, -2.0], [60000.0, 65000.0]], np.float16)
    data = Data({"logits": logits}, 2)
    found = drive.scores_of(drive.outcome(MaxLogit(), data.cut()), data.cut())
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [-1.5, -64992.0])
