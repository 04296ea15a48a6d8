import numpy as np
import pytest
import reference_formulas as reference

from pipeline.detectors import SHE
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.statistics import fields_of
from pipeline.testing import Data, DetectorLaws, drive


class TestSHE(DetectorLaws):
    detector = SHE()

    def reference(self, train, test):
        x, y, logits = reference.fit_rows(train)
        return reference.she(x, y, logits, reference.pooled(test), test["logits"])


def rows(features, labels, predicted, classes=3):
    logits = 5.0 * np.eye(classes)[predicted]
    arrays = {"features": np.asarray(features, np.float64), "logits": logits}
    return Data({**arrays, "labels": np.asarray(labels, np.int64)}, classes)


def test_only_correct_rows_make_a_pattern():
    train = rows([[1, 0], [3, 0], [100, 100], [0, 2]], [0, 0, 0, 1], [0, 0, 1, 1])
    scorer = drive.outcome(SHE(), train.cut())
    np.testing.assert_array_equal(scorer.patterns.array, [[2, 0], [0, 2], [0, 0]])


def test_a_prediction_without_a_pattern_scores_zero():
    train = rows([[1, 0], [0, 2], [5, 5]], [0, 1, 2], [0, 1, 0])
    scorer = drive.outcome(SHE(), train.cut())
    found = drive.scores_of(scorer, rows([[3, 4]] * 3, [-1] * 3, [0, 1, 2]).cut())
    np.testing.assert_array_equal(found, [-3.0, -8.0, 0.0])
    assert scorer.notes == ("2 of 3 classes have a pattern",)


def test_pool_tokens_is_refused_before_anything_is_read():
    train = rows([[1, 0]], [0], [0])
    with pytest.raises(ConfigError, match="pool: 'tokens'"):
        next(SHE(pool="tokens").passes(train.schema))


def test_the_class_token_is_another_array():
    train = rows([[1, 0], [0, 2]], [0, 1], [0, 1])
    with_cls = train.with_arrays(cls=np.array([[7.0, 0.0], [0.0, 1.0]]))
    scorer = drive.outcome(SHE(pool="cls"), with_cls.cut())
    assert fields_of(*scorer.views) == {"cls", "logits"}
    np.testing.assert_array_equal(drive.scores_of(scorer, with_cls.cut()), [-49.0, -1.0])


def test_missing_logits_say_which_heads_there_are():
    train = Data({"features": np.zeros((2, 2)), "labels": np.zeros(2, np.int64)}, 1)
    with pytest.raises(MissingInputError, match="head: lda"):
        next(SHE().passes(train.schema))


def test_logits_of_another_number_of_classes_are_refused():
    train = rows([[1, 0]], [0], [0]).with_arrays(logits=np.zeros((1, 4)))
    with pytest.raises(DataError, match="3 classes"):
        next(SHE().passes(train.schema))
