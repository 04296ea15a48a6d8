import numpy as np
import pytest
import reference_formulas as reference

from pipeline.detectors import CTM
from pipeline.errors import ConfigError, DataError
from pipeline.testing import Data, DetectorLaws, drive


def cosine_distance(x, y, test):
    means = np.stack([x[y == c].mean(axis=0) for c in np.unique(y)])
    cosines = test @ means.T / np.linalg.norm(test, axis=1)[:, None]
    return 1 - (cosines / np.linalg.norm(means, axis=1)).max(axis=1)


class TestCTM(DetectorLaws):
    detector = CTM()

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        return cosine_distance(x, y, reference.pooled(test))


def rows(features, labels, classes=3):
    return Data(
        {"features": np.asarray(features, np.float64), "labels": np.asarray(labels)}, classes
    )


TRAIN = rows([[3, 1], [3, -1], [0, 2], [1, 0], [-1, 0]], [0, 0, 1, 2, 2])


def scores(test, train=TRAIN):
    scorer = drive.outcome(CTM(), train.cut())
    return drive.scores_of(scorer, rows(test, [-1] * len(test)).cut())


def test_cosine_to_the_nearest_class_whatever_the_length():
    found = scores([[5, 0], [0, 1e6], [1, 1], [-1, 0], [0, -1e-6]])
    np.testing.assert_allclose(found, [0, 0, 1 - 0.5**0.5, 1, 1], atol=1e-15)


def test_a_row_of_zeros_is_orthogonal_to_every_class():
    np.testing.assert_array_equal(scores([[0, 0], [0, 0]]), [1, 1])


def test_classes_without_direction_are_left_out():
    scorer = drive.outcome(CTM(), TRAIN.cut())
    assert scorer.notes == ("2 of 3 classes have a direction",)
    np.testing.assert_array_equal(scorer.directions.array, np.eye(2))


def test_order_survives_where_the_cosine_rounds_to_one():
    found = scores([[1, 1e-9], [1, 1e-10], [1, 1e-12], [1, 0]])
    np.testing.assert_allclose(found, [5e-19, 5e-21, 5e-25, 0], rtol=1e-9)


def test_means_of_zero_are_refused():
    with pytest.raises(DataError, match="zero in every class"):
        drive.outcome(CTM(), rows(np.zeros((4, 2)), [0, 1, 2, 0]).cut())


def test_pool_tokens_is_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="pool: 'tokens'"):
        next(CTM(pool="tokens").passes(TRAIN.schema))
