import numpy as np
import pytest

from pipeline.detectors import MatrixNormal, TiedPositions
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.statistics import fields_of
from pipeline.testing import Data, DetectorLaws, drive, labelled
from pipeline.testing.memory_laws import LARGE_NBYTES, SLACK_NBYTES, peak
from pipeline.testing.recipes import Shape, regular


def ridged(covariance, ridge=1e-6):
    return covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))


def factors(x, valid, passes, ridge=1e-6):
    """Return means, U and V of images (n, t, d) whose masked tokens are not ``valid``."""
    t, d = x.shape[1:]
    means = np.array([x[valid[:, i], i].mean(axis=0) for i in range(t)])
    rest = np.where(valid[:, :, None], x - means, 0.0)
    v = ridged(np.einsum("nid,nie->de", rest, rest) / valid.sum(), ridge)
    u, pairs = np.eye(t), np.maximum(valid.T.astype(int) @ valid.astype(int), 1)
    for number in range(1, passes):
        if number % 2:
            u = np.einsum("nid,de,nje->ij", rest, np.linalg.inv(v), rest) / pairs / d
            u = ridged(u, ridge)
        else:
            inverses = [masked_inverse(u, there) for there in valid]
            v = np.einsum("nid,nij,nje->de", rest, inverses, rest) / valid.sum()
            v = ridged(v, ridge)
    return means, u, v


def masked_inverse(u, there):
    inverse = np.zeros_like(u)
    inverse[np.ix_(there, there)] = np.linalg.inv(u[np.ix_(there, there)])
    return inverse


def distances(fit, x, valid):
    """Return flattened distances under the whole Kronecker product of both covariances."""
    means, u, v = fit
    found = []
    for image, there in zip(x, valid, strict=True):
        flat = (image - means)[there].reshape(-1)
        whole = np.kron(u[np.ix_(there, there)], v)
        found.append(flat @ np.linalg.solve(whole, flat) * len(there) / max(there.sum(), 1))
    return np.array(found)


def every(x):
    return np.ones(x.shape[:2], bool)


class MatrixNormalLaws(DetectorLaws):
    def reference(self, train, test):
        x = train["features"][train["labels"] >= 0]
        fit = factors(x, every(x), self.detector.max_passes)
        return distances(fit, test["features"], every(test["features"]))


class TestTwoPasses(MatrixNormalLaws):
    detector = MatrixNormal(precision="float64")
    tolerance = 1e-8


def correlated(n, t=5, d=4, seed=0):
    """Return images (n, t, d) of a matrix-normal law, and its U and V."""
    rng = np.random.default_rng(seed)
    fixed = np.random.default_rng(99)
    u = 0.8 ** np.abs(np.subtract.outer(np.arange(t), np.arange(t)))
    mixing = np.eye(d) + 0.4 * fixed.standard_normal((d, d))
    x = np.linalg.cholesky(u) @ rng.standard_normal((n, t, d)) @ mixing.T
    data = Data({"features": x + fixed.standard_normal((t, d)), "labels": np.zeros(n, int)}, 1)
    return data, u, mixing @ mixing.T


@pytest.mark.parametrize("passes", [2, 3, 4, 5])
def test_every_number_of_passes_is_that_of_whole_arrays(passes):
    data, _, _ = correlated(90)
    test, _, _ = correlated(20, seed=1)
    detector = MatrixNormal(max_passes=passes, tolerance=0.0, precision="float64")
    scorer = drive.outcome(detector, data.cut(regular(90, 13)))
    x, z = data.arrays["features"], test.arrays["features"]
    expected = distances(factors(x, every(x), passes), z, every(z))
    np.testing.assert_allclose(drive.scores_of(scorer, test.cut()), expected, rtol=1e-9)


def test_the_covariances_are_found_and_distances_are_chi_squared():
    data, u, v = correlated(4000)
    scorer = drive.outcome(MatrixNormal(max_passes=3), data.cut())
    white = scorer.distances.whitening.array
    found = np.kron(scorer.distances.between.array, np.linalg.inv(white @ white.T))
    np.testing.assert_allclose(found, np.kron(u, v), atol=0.05 * np.abs(np.kron(u, v)).max())
    scores = drive.scores_of(scorer, data.cut())
    assert scores.mean() == pytest.approx(20.0, rel=1e-2)
    assert scores.var() == pytest.approx(40.0, rel=0.1)


def test_it_exists_where_a_covariance_of_flattened_tokens_does_not():
    data, _, _ = correlated(12)  # 12 images of 20 numbers
    test, _, _ = correlated(20, seed=1)
    scorer = drive.outcome(MatrixNormal(max_passes=3), data.cut())
    scores = drive.scores_of(scorer, test.cut())
    assert np.isfinite(scores).all()
    assert scores.min() > 0


def test_passes_stop_where_nothing_changes():
    data, _, _ = correlated(300)
    asked = Trace()
    jobs = {"it": Job(MatrixNormal(max_passes=40, tolerance=1e-4), {"train": (data.cut(),)})}
    scorer = run_jobs(jobs, trace=asked)["it"]
    assert 4 <= len(asked.passes) < 20
    assert f"pass {len(asked.passes)} of 40 at most" in scorer.notes[1]
    jobs = {"it": Job(MatrixNormal(max_passes=5), {"train": (data.cut(),)})}
    assert len(rehearse(jobs)[0]) == 5  # a plan states the most


@pytest.mark.parametrize("passes", [2, 3])
def test_masked_tokens_neither_count_nor_score(passes):
    data, _, _ = correlated(150)
    test, _, _ = correlated(30, seed=1)
    rng = np.random.default_rng(5)
    masks = [rng.random(d.arrays["features"].shape[:2]) < 0.7 for d in (data, test)]
    masks[0][3], masks[1][4] = False, False
    rows = [
        d.with_arrays(mask=m, features=np.where(m[:, :, None], d.arrays["features"], 1e30))
        for d, m in zip((data, test), masks, strict=True)
    ]
    detector = MatrixNormal(max_passes=passes, precision="float64")
    scorer = drive.outcome(detector, rows[0].cut(regular(150, 40)))
    found = drive.scores_of(scorer, rows[1].cut(regular(30, 7)))
    kept = masks[0].any(axis=1)
    fit = factors(data.arrays["features"][kept], masks[0][kept], passes)
    expected = distances(fit, test.arrays["features"], masks[1])
    expected[4] = np.nan
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_a_position_that_no_fit_token_had_is_compared_with_all_tokens():
    data, _, _ = correlated(80)
    mask = np.arange(5) < 4 + np.zeros((80, 1))
    scorer = drive.outcome(MatrixNormal(), data.with_arrays(mask=mask).cut())
    np.testing.assert_allclose(
        scorer.distances.means.array[4], scorer.distances.means.array[:4].mean(axis=0)
    )
    between = scorer.distances.between.array
    np.testing.assert_array_equal(between[4, :4], 0.0)
    assert between[4, 4] == pytest.approx(1.0, rel=1e-5)
    assert np.isfinite(drive.scores_of(scorer, data.cut())).all()


def test_the_first_pass_is_shared_with_tied_positions():
    data = labelled()
    role = {"train": (data.cut(),)}
    jobs = {"matrix": Job(MatrixNormal(), role), "tied": Job(TiedPositions(), role)}
    trace = Trace()
    run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1, 1]


@pytest.mark.parametrize(
    "shape",
    [Shape(1, 2, 64, 2), Shape(8, 300, 48, 2), Shape(64, 16, 256, 2, "float16", masked=True)],
)
def test_memory_of_the_distances_is_declared(shape):
    scorer = drive.outcome(MatrixNormal(), Shape(60, *shape[1:]).data.cut())
    ((chunk,),) = drive.chunks(shape.data.cut(), fields_of(*scorer.views))
    scorer.distances.tokens(chunk)
    _, used = peak(scorer.distances, chunk)
    declared = scorer.distances.nbytes(shape.data.schema, shape.rows)
    assert used - SLACK_NBYTES <= declared <= max(3 * used, LARGE_NBYTES)


@pytest.mark.parametrize(
    "options",
    [{"max_passes": 1}, {"ridge": 0}, {"tolerance": 1}, {"tolerance": float("nan")},
     {"precision": "half"}],
)  # fmt: skip
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        MatrixNormal(**options)


def test_tokens_that_do_not_vary_and_vectors_are_errors():
    data = Data({"features": np.ones((9, 2, 3)), "labels": np.zeros(9, int)}, 1)
    with pytest.raises(DataError, match="do not vary"):
        drive.outcome(MatrixNormal(), data.cut())
    with pytest.raises(DataError, match="tokens need"):
        next(MatrixNormal().passes(data.with_arrays(features=np.ones((9, 3))).schema))
