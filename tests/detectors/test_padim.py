from dataclasses import replace

import numpy as np
import pytest
from scipy import linalg

import pipeline as ff
from pipeline.content import replaced
from pipeline.detectors import PaDiM
from pipeline.engine import Job, Trace, rehearse, run_jobs, run_serial
from pipeline.errors import ConfigError, DataError
from pipeline.plan import Room, project
from pipeline.testing import Data, DetectorLaws, assert_same, drive, labelled, planted
from pipeline.testing.recipes import Shape, regular


def drawn(d, channels, seed=0):
    return np.sort(np.random.default_rng(seed).permutation(d)[:channels])


def distances(train, test, channels, epsilon=0.01):
    """Return distances (n, t) to the Gaussian of each position, by inverses as in the paper."""
    index = drawn(train["features"].shape[-1], channels)
    x = train["features"][train["labels"] >= 0][..., index]
    z = test["features"][..., index]
    found = np.zeros(z.shape[:2])
    for i in range(x.shape[1]):
        covariance = np.cov(x[:, i], rowvar=False).reshape(len(index), len(index))
        inverse = linalg.inv(covariance + epsilon * np.eye(len(index)))
        deviation = z[:, i] - x[:, i].mean(axis=0)
        found[:, i] = np.sqrt(np.einsum("nd,de,ne->n", deviation, inverse, deviation))
    return found


class TestPaDiM(DetectorLaws):
    detector = PaDiM(channels=8, precision="float64")

    def reference(self, train, test):
        return distances(train, test, 8)


def tokens(n, t, d, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, t, d)) @ (np.eye(d) + 0.3 * rng.standard_normal((d, d)))
    return Data({"features": (features + offset).astype("f4"), "labels": np.zeros(n, int)}, 1)


@pytest.mark.parametrize("channels", [1, 5, 12, 100])
def test_channels_are_drawn_once_and_kept(channels):
    scorer = drive.outcome(PaDiM(channels, precision="float64"), labelled().cut())
    assert scorer.means.shape == (4, min(channels, 12))
    np.testing.assert_array_equal(scorer.tokens.index.array, drawn(12, channels))
    known = (labelled().arrays["labels"] >= 0).sum()
    note = f"{min(channels, 12)} of 12 channels, 4 Gaussians of {known} tokens or more"
    assert note in scorer.notes[0]
    expected = distances(labelled().upcast(), planted().upcast(), channels)
    np.testing.assert_allclose(drive.scores_of(scorer, planted().cut()), expected, rtol=1e-9)


def test_another_seed_draws_other_channels():
    first, second = (
        drive.outcome(PaDiM(6, seed=s), labelled().cut()).tokens.index.array for s in (0, 1)
    )
    assert set(first) != set(second)


def test_float32_products_are_close_to_float64_ones():
    fast, exact = (
        drive.scores_of(drive.outcome(PaDiM(precision=p), labelled().cut()), planted().cut())
        for p in ("auto", "float64")
    )
    np.testing.assert_allclose(fast, exact, rtol=1e-5)


def test_masked_tokens_neither_count_nor_score():
    data, test = labelled(), labelled(rows=50, seed=7)
    mask = np.arange(4) < 1 + np.arange(240)[:, None] % 3  # none is valid at the last position
    features = np.where(mask[:, :, None], data.arrays["features"], 1e30)
    train = data.with_arrays(features=features, mask=mask)
    some = np.ones((50, 4), bool)
    some[3, 1:], some[5] = False, False
    scorer = drive.outcome(PaDiM(precision="float64"), train.cut(regular(240, 50)))
    found = drive.scores_of(scorer, test.with_arrays(mask=some).cut(regular(50, 7)))
    assert np.isnan(found[~some]).all()
    known = (data.arrays["labels"] >= 0)[:, None] & mask
    x, z = (d.arrays["features"].astype(np.float64) for d in (data, test))
    for i in range(4):
        rows = x[known[:, i], i] if i < 3 else x[known]
        inverse = linalg.inv(np.cov(rows, rowvar=False) + 0.01 * np.eye(12))
        deviation = (z[:, i] - rows.mean(axis=0))[some[:, i]]
        expected = np.sqrt(np.einsum("nd,de,ne->n", deviation, inverse, deviation))
        np.testing.assert_allclose(found[some[:, i], i], expected, rtol=1e-9)
    assert "1 positions that no fit token had" in scorer.notes[1]


def test_one_token_at_a_position_has_the_covariance_of_epsilon():
    train, test = tokens(1, 3, 5), tokens(4, 3, 5, seed=1)
    scorer = drive.outcome(PaDiM(epsilon=0.25), train.cut())
    deviation = (test.arrays["features"] - train.arrays["features"]).astype(np.float64)
    expected = np.linalg.norm(deviation, axis=2) / 0.5
    np.testing.assert_allclose(drive.scores_of(scorer, test.cut()), expected, rtol=1e-6)


def test_dead_channels_and_fewer_rows_than_channels_score_finitely():
    train, test = tokens(5, 3, 12), tokens(9, 3, 12, seed=1)
    for data in (train, test):
        data.arrays["features"][..., 7] = 0.0
    scorer = drive.outcome(PaDiM(precision="float64"), train.cut())
    expected = distances(train.upcast(), test.upcast(), 12)
    np.testing.assert_allclose(drive.scores_of(scorer, test.cut()), expected, rtol=1e-9)


def test_epsilon_is_raised_where_rounding_of_the_products_is_more_than_it():
    data = tokens(40, 2, 30)
    data.arrays["features"][:] *= 1e6
    data.arrays["features"][..., 10:] = data.arrays["features"][..., :1]
    scorer = drive.outcome(PaDiM(epsilon=1e-9), data.cut())
    assert np.isfinite(drive.scores_of(scorer, data.cut())).all()
    assert "epsilon 1e-09" not in scorer.notes[0]


def test_an_offset_of_the_features_costs_no_digits():
    near, far = tokens(60, 3, 8), tokens(60, 3, 8)
    far.arrays["features"] = far.arrays["features"].astype(np.float64) + 1e6
    near.arrays["features"] = near.arrays["features"].astype(np.float64)
    found, expected = (
        drive.scores_of(drive.outcome(PaDiM(precision="float64"), d.cut()), d.cut())
        for d in (far, near)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("positions", [1, 3])
def test_a_fit_in_stripes_gives_the_bits_of_the_whole(positions):
    data = Shape(60, 9, 24, 3).data
    jobs = {"it": Job(PaDiM(channels=24), {"train": (data.cut(regular(60, 8)),)})}
    ((pass_,), _) = rehearse(jobs)
    (work,) = pass_.works
    (statistic,) = work.statistics
    narrow = replace(work, statistics=(replaced(statistic, stripe=(0, positions)),))
    room = Room(0, project(replace(pass_, works=(narrow,)), 0).nbytes)
    trace = Trace()
    found = run_jobs(jobs, run_serial, room=room, trace=trace)["it"]
    assert len(trace.passes) == 9 // positions
    assert found == run_jobs(jobs, run_serial)["it"]


def test_maps_and_image_scores_from_python():
    data, test = labelled(), planted()
    fitted = ff.fit(PaDiM(), (data.arrays["features"], data.arrays["labels"]))
    maps = fitted["padim"](test.arrays["features"])
    assert maps.shape == (80, 4)
    found = ff.evaluate(fitted, data.arrays["features"][:50], far={"x": test.arrays["features"]})
    assert found.value("padim", "ood/far/x", "auroc") > 0.99


@pytest.mark.parametrize(
    "options",
    [{"channels": 0}, {"seed": -1}, {"epsilon": 0}, {"epsilon": float("nan")}, {"image": "min"},
     {"precision": "half"}],
)  # fmt: skip
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        PaDiM(**options)


def test_vectors_are_refused_before_anything_is_read():
    data = Data({"features": np.zeros((9, 3)), "labels": np.zeros(9, int)}, 1)
    with pytest.raises(DataError, match="tokens need"):
        next(PaDiM().passes(data.schema))


def test_equal_draws_are_one_statistic():
    asked = [drive.requests_of(PaDiM(5, image=i), labelled().cut()) for i in ("max", "mean")]
    assert asked[0] == asked[1]
    assert_same(*(hash(a[0]) for a in asked))
