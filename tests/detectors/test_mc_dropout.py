import numpy as np
import pytest

from pipeline.detectors import MCDropout
from pipeline.disagreement import MEASURES
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.testing import Data, DetectorLaws, drive, labelled, planted

RUNS = 6


def with_runs(data, seed=0, spread=0.5):
    """Logits (s, k) that differ from run to run, more so where no class is likely."""
    f = data.arrays["logits"]
    noise = np.random.default_rng(seed).standard_normal((len(f), RUNS, f.shape[1]))
    return data.with_arrays(dropout_logits=(f[:, None, :] + spread * noise).reshape(len(f), -1))


def softmax(f):
    e = np.exp(f - f.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def entropy(p):
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)


def measured(f, measure):
    """As in the papers, whole arrays f (n, s, k)."""
    p = softmax(f)
    q = p.mean(axis=1)
    return {
        "confidence": lambda: 1 - q.max(axis=1),
        "entropy": lambda: entropy(q),
        "mutual_information": lambda: entropy(q) - entropy(p).mean(axis=1),
        "variance": lambda: p.var(axis=1, ddof=1).mean(axis=1),
        "mean_logits": lambda: 1 - softmax(f.mean(axis=1)).max(axis=1),
    }[measure]()


def scores(f, detector, dtype=np.float64):
    f = np.asarray(f, dtype)
    data = Data({"dropout_logits": f.reshape(len(f), -1)}, f.shape[2])
    return drive.scores_of(drive.outcome(detector, data.cut()), data.cut())


class TestMCDropout(DetectorLaws):
    detector = MCDropout()

    def id_train(self):
        return with_runs(labelled())

    def id_test(self):
        return with_runs(labelled(rows=90, seed=7, name="id/test"))

    def far_ood(self):
        return with_runs(planted())

    def reference(self, train, test):
        f = test["dropout_logits"]
        return measured(f.reshape(len(f), RUNS, -1), self.detector.measure)


class TestMCDropoutByVariance(TestMCDropout):
    detector = MCDropout(measure="variance")


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(("runs", "classes"), [(2, 2), (10, 7), (200, 3)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_measures_are_those_of_the_papers(measure, runs, classes, dtype):
    f = (3 * np.random.default_rng(runs).standard_normal((150, runs, classes))).astype(dtype)
    found = scores(f, MCDropout(measure), dtype)
    np.testing.assert_allclose(found, measured(f.astype(float), measure), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("measure", MEASURES)
def test_order_survives_where_all_runs_are_sure(measure):
    gaps = np.array([60.0, 40.0, 50.0, 90.0])
    f = np.zeros((4, 2, 3))
    f[:, 0, 0], f[:, 1, 0] = gaps, gaps + 1
    found = scores(f, MCDropout(measure))
    assert (found > 0).all()
    np.testing.assert_array_equal(np.argsort(found), np.argsort(-gaps))


@pytest.mark.parametrize("measure", MEASURES)
def test_extreme_logits_have_finite_scores(measure):
    f = np.array(
        [[[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], [[1e4, 0, 0], [1e4, 0, 0]], [[0.0] * 3] * 2]
    )
    found = scores(f, MCDropout(measure))
    assert np.isfinite(found).all()
    if measure == "mutual_information":
        np.testing.assert_allclose(found, [np.log(2), 0, 0], atol=1e-12)
        assert (found >= 0).all()


def test_rows_that_were_not_probed_are_refused_and_the_probe_is_named():
    with pytest.raises(MissingInputError, match=r"no 'dropout_logits'.*probe dropout writes it"):
        drive.outcome(MCDropout(), labelled().cut())


@pytest.mark.parametrize("shape", [(), (5,), (12,), (4, 5), (0,)])
def test_arrays_of_another_shape_are_refused(shape):
    data = Data({"dropout_logits": np.zeros((4, *shape))}, 5)
    with pytest.raises(DataError, match=r"expected \(s x 5,\)"):
        drive.outcome(MCDropout(), data.cut())


def test_a_measure_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="measure: 'var' is unknown; choose confidence, entropy"):
        MCDropout(measure="var")


def test_the_notes_say_how_many_runs():
    assert drive.outcome(MCDropout(), with_runs(labelled()).cut()).notes == ("6 runs with dropout",)
