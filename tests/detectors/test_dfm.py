import numpy as np
import pytest
import reference_formulas as reference
from scipy import stats
from sklearn.decomposition import PCA

from pipeline.detectors import DFM, Mahalanobis
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.procedure import Rows, Scored
from pipeline.testing import Data, DetectorLaws, drive


def reconstruction(x, test, q):
    pca = PCA(q, svd_solver="full").fit(x)
    return ((test - pca.inverse_transform(pca.transform(test))) ** 2).sum(axis=-1)


def likelihood(x, test, q):
    """Return minus twice the log density of the principal coordinates, without the constant."""
    pca = PCA(q, svd_solver="full").fit(x)
    variances = pca.explained_variance_ * (len(x) - 1) / len(x)
    density = stats.multivariate_normal(np.zeros(q), np.diag(variances))
    return -2 * density.logpdf(pca.transform(test)) - q * np.log(2 * np.pi)


class TestDFM(DetectorLaws):
    detector = DFM(components=0.9)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        q = PCA(0.9, svd_solver="full").fit(x).n_components_
        assert q < 12
        return reconstruction(x, reference.pooled(test), int(q))


class TestDFMLikelihood(DetectorLaws):
    detector = DFM(score="likelihood", components=7)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return likelihood(x, reference.pooled(test), 7)


class TestDFMOverTokens(DetectorLaws):
    detector = DFM(components=5, pool="tokens", precision="float64")

    def reference(self, train, test):
        x = train["features"][train["labels"] >= 0]
        tokens = test["features"]
        d = x.shape[-1]
        flat = reconstruction(x.reshape(-1, d), tokens.reshape(-1, d), 5)
        return flat.reshape(tokens.shape[:2])


def rows(features):
    labels = np.arange(len(features)) % 2
    return Data({"features": np.asarray(features), "labels": labels}, 2)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, train, test):
    return drive.scores_of(drive.outcome(detector, rows(train).cut()), rows(test).cut())


def test_a_sweep_shares_the_pass_of_mahalanobis():
    chosen = {"m": Mahalanobis(), "a": DFM(), "b": DFM(components=3), "c": DFM(score="likelihood")}
    split, trace = rows(noise(60)).cut([[7] * 4, [32]]), Trace()
    run_jobs({name: Job(d, {"train": (split,)}) for name, d in chosen.items()}, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1]


def test_a_number_may_be_written_as_a_float():
    assert DFM(components=3.0) == DFM(components=3)
    assert DFM(components=3.0).components == 3


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.97])
def test_a_share_takes_the_fewest_components_that_hold_it(share):
    x = noise(300) * np.linspace(3, 0.1, 12)
    scorer = drive.outcome(DFM(components=share), rows(x).cut())
    expected = PCA(share, svd_solver="full").fit(x).n_components_
    assert scorer.notes[0].startswith(f"{expected} of 12 components")


def test_a_share_always_leaves_a_direction_out():
    scorer = drive.outcome(DFM(components=0.999), rows(noise(300)).cut())
    assert scorer.notes[0].startswith("11 of 12 components")
    spanned = noise(300, 3) @ noise(3, 12, seed=1)
    scorer = drive.outcome(DFM(components=0.999999), rows(spanned).cut())
    assert scorer.notes[0].startswith("2 of 12 components, the fit rows span 3")


def test_the_error_keeps_its_digits_far_from_zero_and_near_the_principal_space():
    x = noise(300) * np.where(np.arange(12) < 4, 1e3, 1e-3) + 1e5
    test = noise(20, seed=1) * np.where(np.arange(12) < 4, 1e3, 1e-3) + 1e5
    found = scores(DFM(components=4), x, test)
    np.testing.assert_allclose(found, reconstruction(x, test, 4), rtol=1e-4)


def test_dead_units_are_reconstruction_error_and_invisible_to_the_likelihood():
    x = noise(200)
    x[:, 11] = 0.0
    test = np.zeros((2, 12))
    test[1, 11] = 100.0
    error = scores(DFM(), x, test)
    assert error[1] == pytest.approx(error[0] + 1e4, rel=1e-9)
    blind = scores(DFM(score="likelihood"), x, test)
    assert blind[1] == pytest.approx(blind[0], abs=1e-9)


def test_fewer_rows_than_features():
    x, test = noise(10, 40), noise(5, 40, seed=1)
    scorer = drive.outcome(DFM(), rows(x).cut())
    assert "of 40 components, the fit rows span 9" in scorer.notes[0]
    q = int(scorer.notes[0].split()[0])
    found = drive.scores_of(scorer, rows(test).cut())
    np.testing.assert_allclose(found, reconstruction(x, test, q), rtol=1e-9)


def test_condition_1e13_scores_as_singular_vectors_do():
    rotation = np.linalg.qr(noise(40, 40, seed=3))[0]
    x = noise(500, 40) * np.logspace(0, -6.5, 40) @ rotation
    test = noise(50, 40, seed=1) * np.logspace(0, -6.5, 40) @ rotation
    for q in (5, 20):
        found = scores(DFM(components=q), x, test)
        np.testing.assert_allclose(found, reconstruction(x, test, q), rtol=1e-4)
        assert (found >= 0).all()


def test_more_components_than_images_but_not_than_tokens():
    features = np.random.default_rng(0).standard_normal((6, 9, 12))
    data = Data({"features": features, "labels": np.arange(6) % 2}, 2)
    scorer = drive.outcome(DFM(components=8, pool="tokens"), data.cut())
    assert scorer.notes[0].startswith("8 of 12 components, the fit rows span 12")


def test_a_likelihood_may_use_every_direction():
    x, test = noise(200), noise(9, seed=1)
    found = scores(DFM("likelihood", components=12), x, test)
    np.testing.assert_allclose(found, likelihood(x, test, 12), rtol=1e-9)
    with pytest.raises(ConfigError, match="components: 13 of 12 features are too many"):
        scores(DFM("likelihood", components=13), x, test)


def test_image_scores_of_tokens():
    features = np.random.default_rng(0).standard_normal((30, 6, 4))
    data = Data({"features": features, "labels": np.arange(30) % 2}, 2)
    largest = drive.outcome(DFM(pool="tokens", components=2), data.cut())
    mean = drive.outcome(DFM(pool="tokens", components=2, image="mean"), data.cut())
    tokens = drive.scores_of(largest, data.cut())
    for scorer, of_image in ((largest, tokens.max(axis=1)), (mean, tokens.mean(axis=1))):
        found = drive.outcome(drive.Ask(Rows(Scored(scorer))), data.cut()).array()
        np.testing.assert_allclose(found, of_image, rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"components": 0},
        {"components": -1},
        {"components": 2.5},
        {"components": float("nan")},
        {"components": True},
        {"score": "nll"},
        {"image": "median"},
        {"precision": "half"},
        {"pool": "flat"},
    ],
)
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        DFM(**options)


@pytest.mark.parametrize(("components", "rows_"), [(12, 90), (13, 90), (9, 9)])
def test_components_that_leave_nothing_are_refused_before_anything_is_read(components, rows_):
    with pytest.raises(ConfigError, match=f"components: {components}"):
        next(DFM(components=components).passes(rows(noise(rows_)).schema))


def test_components_beyond_what_the_rows_span_are_an_error():
    flat = noise(50, 5) @ noise(5, 12, seed=1)
    with pytest.raises(DataError, match="span 5 dimensions, and 5 components"):
        scores(DFM(components=5), flat, flat)
    with pytest.raises(DataError, match="span 5 dimensions, and 6 components"):
        scores(DFM("likelihood", components=6), flat, flat)
    assert np.isfinite(scores(DFM("likelihood", components=5), flat, flat)).all()
    with pytest.raises(DataError, match="span 0 dimensions"):
        scores(DFM(), np.ones((9, 12)), flat)


@pytest.mark.parametrize("score", ["reconstruction", "likelihood"])
def test_a_plan_rehearses_on_fewer_rows_than_components(score):
    job = Job(DFM(score, components=100), {"train": (rows(noise(300, 200)).cut(),)})
    passes, outcomes = rehearse({"dfm": job})
    assert len(passes) == 1
    assert outcomes["dfm"].notes[0].startswith("100 of 200")
