import numpy as np
import pytest
import reference_formulas as reference
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from pipeline.content import Const
from pipeline.detectors import NECO, Mahalanobis, ViM
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LDAHead, LinearHead
from pipeline.statistics import fields_of
from pipeline.testing import Data, DetectorLaws, drive, recipes

LENGTH = {"both": "scaled", "principal": "raw", "none": "raw"}


def neco(x, test, dim, scaling="both", largest=None):
    scaler = StandardScaler(with_mean=scaling != "none", with_std=scaling != "none").fit(x)
    pca = PCA(svd_solver="full").fit(scaler.transform(x))
    scaled = scaler.transform(test)
    part = np.linalg.norm(pca.transform(scaled)[:, :dim], axis=1)
    length = np.linalg.norm(scaled if LENGTH[scaling] == "scaled" else test, axis=1)
    return -part / length * (1.0 if largest is None else largest)


class TestNECO(DetectorLaws):
    detector = NECO(dim=4)

    def far_ood(self):
        """Rows near the mean but for a direction that the noise of the fit rows has little of."""
        x = reference.pooled(self.id_train().arrays)
        signs = np.where(np.arange(12) % 2, 1.0, -1.0) * (np.arange(12) >= 5)
        data = recipes.planted()
        noise = data.arrays["features"] - data.arrays["features"].mean(axis=(0, 1))
        features = x.mean(axis=0) + 6.0 * signs * x.std(axis=0) + noise
        return data.with_arrays(features=features.astype(np.float32))

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return neco(x, reference.pooled(test), 4)


class TestNECOTimesLogit(DetectorLaws):
    detector = NECO(dim=4, scaling="principal", max_logit=True)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        largest = test["logits"].max(axis=1)
        return neco(x, reference.pooled(test), 4, "principal", largest)


class TestNECOOnLDA(DetectorLaws):
    detector = NECO(head=LDAHead(), dim=4, scaling="none", max_logit=True)
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        largest = (reference.pooled(test) @ weight.T + bias).max(axis=1)
        return neco(x, reference.pooled(test), 4, "none", largest)


def rows(features):
    labels = np.arange(len(features)) % 2
    return Data({"features": np.asarray(features), "labels": labels}, 2)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, train, test):
    return drive.scores_of(drive.outcome(detector, rows(train).cut()), rows(test).cut())


def test_a_sweep_shares_the_pass_of_mahalanobis_and_vim():
    head = LinearHead(Const(np.eye(2, 12)), Const(np.full(2, 20.0)))
    chosen = {
        "m": Mahalanobis(),
        "vim": ViM(head, 3),
        "a": NECO(dim=2),
        "b": NECO(dim=3, scaling="none"),
        "c": NECO(head, scaling="principal", max_logit=True),
    }
    split, trace = rows(noise(60)).cut([[7] * 4, [32]]), Trace()
    run_jobs({name: Job(d, {"train": (split,)}) for name, d in chosen.items()}, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1, 2]


def test_a_head_is_not_asked_without_need():
    scorer = drive.outcome(NECO(), rows(noise(60)).cut())  # stores no logits
    assert fields_of(*scorer.views) == {"features"}


@pytest.mark.parametrize("constant", [0.0, 5.3, 1e6])
def test_a_unit_that_does_not_vary_is_not_scaled(constant):
    x, test = noise(200) * 3, noise(9, seed=1) * 3
    x[:, 11] = test[:, 11] = constant
    test[0, 11] += 100.0
    found = scores(NECO(dim=4), x, test)
    np.testing.assert_allclose(found, neco(x, test, 4), rtol=1e-9)
    assert found[0] > found[1:].max()


def test_a_row_without_length_scores_zero():
    x = noise(200)
    assert scores(NECO(dim=4, scaling="none"), x, np.zeros((1, 12)))[0] == 0.0
    x = np.random.default_rng(0).integers(-5, 6, (100, 12))
    x = np.vstack([x, -x]).astype(np.float64)  # of mean zero to the last bit
    assert scores(NECO(dim=4), x, np.zeros((1, 12)))[0] == 0.0


def test_scores_survive_an_offset_and_scales_of_the_features():
    scale = np.logspace(-3, 3, 12)
    x, test = noise(200), noise(20, seed=1)
    found = scores(NECO(dim=4), x * scale + 1e4 * scale, test * scale + 1e4 * scale)
    np.testing.assert_allclose(found, neco(x, test, 4), rtol=1e-8)


@pytest.mark.parametrize(
    ("d", "n", "dim"), [(12, 90, 6), (300, 400, 100), (100, 300, 50), (300, 60, 29)]
)
def test_default_dim(d, n, dim):
    scorer = drive.outcome(NECO(), rows(noise(n, d)).cut())
    assert f"principal space {dim} of {d}," in scorer.notes[0]


@pytest.mark.parametrize("options", [{"dim": 0}, {"scaling": "all"}, {"pool": "flat"}])
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        next(NECO(**options).passes(rows(noise(9)).schema))


@pytest.mark.parametrize(("dim", "rows_"), [(12, 90), (1000, 90), (9, 9)])
def test_a_dim_that_leaves_nothing_is_refused_before_anything_is_read(dim, rows_):
    with pytest.raises(ConfigError, match=f"dim: {dim}"):
        next(NECO(dim=dim).passes(rows(noise(rows_)).schema))


def test_features_that_span_no_more_than_dim_are_an_error():
    flat = noise(50, 5) @ noise(5, 12, seed=1)
    with pytest.raises(DataError, match="neco: the fit rows span 5 dimensions"):
        scores(NECO(dim=5), flat, flat)
    with pytest.raises(DataError, match="span 0 dimensions"):
        scores(NECO(), np.ones((9, 12)), flat)


def test_a_plan_rehearses_on_fewer_rows_than_dim():
    job = Job(NECO(dim=150), {"train": (rows(noise(300, 200)).cut(),)})
    passes, outcomes = rehearse({"neco": job})
    assert len(passes) == 1
    assert "principal space 150 of 200" in outcomes["neco"].notes[0]
