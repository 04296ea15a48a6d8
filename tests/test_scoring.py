"""Thresholds are those of the metric FPRAtTPR, and decisions have scikit-learn's sign."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline as ff
from pipeline.api import Fitted
from pipeline.errors import ConfigError, DataError
from pipeline.metrics import FPRAtTPR
from pipeline.scoring import Threshold
from pipeline.testing import Data, drive, partitions
from pipeline.testing.strategies import LAW
from pipeline.views import Stored

K, T, D = 5, 4, 12


def draw(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, n)
    x = rng.standard_normal((n, T, D)) + 6 * np.eye(K, D)[y][:, None, :] + shift
    return x.astype("f4"), y


@pytest.fixture(scope="module")
def fitted():
    return ff.fit(["mahalanobis", "vim", "msp"], draw(400, 0), cluster="threads")


def threshold(scores, tpr=0.95, cut=None):
    data = Data({"scores": np.asarray(scores, np.float64)}, 2)
    return drive.outcome(Threshold(Stored("scores"), tpr), data.cut(cut))


@LAW
@given(data=st.data())
def test_it_is_the_first_threshold_of_the_metric(data):
    numbers = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, -3.0, 1e300, -1e300])
    inside = np.array(data.draw(st.lists(numbers, min_size=1, max_size=40)))
    outside = np.array(data.draw(st.lists(numbers, min_size=1, max_size=40)))
    tpr = data.draw(st.sampled_from([0.01, 0.5, 0.7, 0.95, 0.999, 1.0]))
    found = threshold(inside, tpr, data.draw(partitions(len(inside))))
    assert found in inside
    assert (inside <= found).mean() >= tpr > (inside < found).mean()
    both = Data({"scores": np.concatenate([inside, outside])}, 2, "id/test")
    splits = (both.take(slice(0, len(inside))).cut(), both.take(slice(len(inside), None)))
    far = Data(splits[1].arrays, 2, "ood/far/x", is_ood=True).cut()
    metric = drive.outcome(FPRAtTPR(tpr, positive="id"), (splits[0], far))
    (number,) = metric.values()
    assert float(number) == (outside <= found).mean()


@pytest.mark.parametrize(
    ("rows", "tpr", "rank"),
    [(20, 0.95, 19), (20, 0.951, 20), (100, 0.07, 7), (1, 0.5, 1), (3, 1.0, 3), (10, 0.7, 7)],
)
def test_shares_are_the_decimals_that_were_written(rows, tpr, rank):
    assert threshold(np.arange(rows) + 1.0, tpr) == rank


def test_case_which_side_is_positive():
    # A16: with ID positive a confidence of 2 keeps 19 of 20, and 4 of 10 OOD rows.
    inside = -np.arange(1.0, 21.0)
    outside = -np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1.5, 2.5, 3.5, 18.5, 19.5])
    found = threshold(inside)
    assert found == -2.0
    assert (inside <= found).sum() == 19
    assert (outside <= found).mean() == 0.4


def test_every_detector_has_its_threshold_from_one_read(fitted):
    x, _ = draw(300, 1)
    found = fitted.threshold_at(x, tpr=0.9)
    assert set(found) == set(fitted)
    for name, scores in ff.score(fitted, x).items():
        assert found[name] == np.sort(scores)[269]
        assert fitted[name].threshold_at(x, 0.9) == found[name]
        assert isinstance(found[name], float)


def test_decisions_have_the_sign_of_scikit_learn(fitted):
    x, _ = draw(300, 1)
    far, _ = draw(100, 2, shift=4.0)
    found = fitted.threshold_at(x)
    assert found == fitted.thresholds
    inside, outside = fitted.predict(x), fitted.predict(far, found)
    for name in fitted:
        assert inside[name].dtype == np.int64
        assert (inside[name] == 1).sum() == 285  # ceil(0.95 * 300)
        assert set(np.unique(inside[name])) == {-1, 1}
        np.testing.assert_array_equal(fitted[name].predict(far, found[name]), outside[name])
    assert (outside["mahalanobis"] == -1).mean() > 0.9


def test_thresholds_are_saved(fitted, tmp_path):
    x, _ = draw(60, 1)
    found = fitted.threshold_at(x, workers=1)
    fitted.save(tmp_path / "fitted")
    loaded = Fitted.load(tmp_path / "fitted")
    assert loaded.thresholds == found
    for name, decisions in loaded.predict(x).items():
        np.testing.assert_array_equal(decisions, fitted.predict(x)[name])


def test_token_detectors_decide_on_images():
    x, y = draw(200, 0)
    tokens = ff.fit(ff.detectors.Mahalanobis(pool="tokens"), (x, y), cluster="threads")
    (name,) = tokens
    found = tokens.threshold_at(x)[name]
    assert found == np.sort(tokens[name](x).max(axis=1))[189]
    assert tokens.predict(x)[name].shape == (200,)


@pytest.mark.filterwarnings("error")
def test_rows_that_are_not_finite(fitted):
    x, _ = draw(50, 1)
    x[3, 0, 0] = np.nan
    with pytest.raises(DataError, match="not finite"):
        fitted.threshold_at(x)
    found = fitted.threshold_at(x, nonfinite="skip")
    kept = np.delete(x, 3, axis=0)
    assert found == fitted.threshold_at(kept)
    decisions, of_kept = fitted.predict(x, nonfinite="skip"), fitted.predict(kept)
    for name, scores in ff.score(fitted, x, nonfinite="skip").items():
        assert np.flatnonzero(np.isnan(scores)).tolist() == [3]
        assert decisions[name][3] == -1
        np.testing.assert_array_equal(np.delete(decisions[name], 3), of_kept[name])


def test_errors_say_what_to_do(fitted):
    x, _ = draw(20, 1)
    for tpr in (0, 1.01, -1, np.nan, True, "0.95"):
        with pytest.raises(ConfigError, match="tpr: expected a share above 0"):
            fitted.threshold_at(x, tpr)
    with pytest.raises(ConfigError, match="no threshold for vim, msp: call threshold_at"):
        fitted.predict(x, {"mahalanobis": 1.0})
    with pytest.raises(ConfigError, match="threshold for msp is nan, not a number"):
        fitted["msp"].predict(x, np.nan)
    with pytest.raises(ConfigError, match="nonfinite: 'drop'"):
        fitted.predict(x, dict.fromkeys(fitted, 0.0), nonfinite="drop")
