import numpy as np
import pytest
import reference_formulas as reference
from sklearn.decomposition import PCA

from pipeline.content import Const
from pipeline.detectors import KPCA, PNML, Mahalanobis
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LinearHead
from pipeline.testing import Data, DetectorLaws, drive
from pipeline.views import Pooled, RandomFourier

HEAD = LinearHead(Const(np.eye(2, 12)), Const(np.zeros(2)))


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def error(x, test, components):
    pca = PCA(components, svd_solver="full").fit(x)
    return np.linalg.norm(test - pca.inverse_transform(pca.transform(test)), axis=1)


def waves(x, m, gamma, seed=0):
    drawn = RandomFourier.drawn(Pooled(), x.shape[1], m, gamma, seed)
    return np.sqrt(2 / m) * np.cos(x @ drawn.frequencies.array + drawn.phases.array)


class TestCoP(DetectorLaws):
    detector = KPCA()

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return error(unit(x), unit(reference.pooled(test)), 0.85)


class TestCoRP(DetectorLaws):
    detector = KPCA(kernel="cosine-gaussian", fourier=60, components=12)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        mapped = (waves(unit(z), 60, 2.0) for z in (x, reference.pooled(test)))
        return error(*mapped, 12)


def rows(features):
    labels = np.arange(len(features)) % 2
    return Data({"features": np.asarray(features), "labels": labels}, 2)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, train, test):
    return drive.scores_of(drive.outcome(detector, rows(train).cut()), rows(test).cut())


def statistics_of(**chosen):
    split, trace = rows(noise(60)).cut([[7] * 4, [32]]), Trace()
    run_jobs({name: Job(d, {"train": (split,)}) for name, d in chosen.items()}, trace=trace)
    return [len(pass_.works[0].statistics) for pass_ in trace.passes]


def test_a_sweep_over_components_reads_once_and_shares_the_moments_of_directions():
    company = {"mahalanobis": Mahalanobis(normalize=1), "pnml": PNML(HEAD)}
    assert statistics_of(a=KPCA(), b=KPCA(components=3), c=KPCA(components=0.5), **company) == [1]
    gaussian = KPCA(kernel="cosine-gaussian", fourier=20)
    wider = KPCA(kernel="cosine-gaussian", fourier=20, components=5)
    other = KPCA(kernel="cosine-gaussian", fourier=20, seed=1)
    assert statistics_of(a=gaussian, b=wider) == [1]
    assert statistics_of(a=gaussian, b=other, c=KPCA()) == [3]


def test_fourier_features_approximate_the_gaussian_kernel():
    x, m, gamma = unit(noise(50)), 20_000, 1.5
    mapped = waves(x, m, gamma)
    squared = ((x[:, None] - x[None]) ** 2).sum(axis=-1)
    np.testing.assert_allclose(mapped @ mapped.T, np.exp(-gamma * squared), atol=5 / np.sqrt(m))


def test_the_cosine_gaussian_error_is_that_of_kernel_pca():
    """The error in the space of the kernel itself, from the eigenvectors of its matrix."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 6)) + 0.1 * noise(200, 6, seed=1)
    test, q = noise(40, 6, seed=2), 10

    def kernel(a, b):
        return np.exp(-2.0 * ((unit(a)[:, None] - unit(b)[None]) ** 2).sum(axis=-1))

    centred = kernel(x, x)
    rowwise = kernel(test, x)
    about = rowwise - rowwise.mean(axis=1)[:, None] - centred.mean(axis=0) + centred.mean()
    own = 1.0 - 2 * rowwise.mean(axis=1) + centred.mean()
    centred = centred - centred.mean(axis=0) - centred.mean(axis=1)[:, None] + centred.mean()
    values, vectors = np.linalg.eigh(centred)
    top = vectors[:, -q:] / np.sqrt(values[-q:])
    expected = np.sqrt(own - ((about @ top) ** 2).sum(axis=1))
    found = scores(KPCA("cosine-gaussian", q, fourier=800), x, test)
    assert np.corrcoef(found, expected)[0, 1] > 0.95
    np.testing.assert_allclose(found, expected, atol=0.15)


def test_the_length_of_a_row_does_not_matter_and_a_zero_vector_has_a_score():
    x, test = noise(200) + 1.0, noise(20, seed=1)
    for kernel in ("cosine", "cosine-gaussian"):
        scorer = drive.outcome(KPCA(kernel), rows(x).cut())
        found = drive.scores_of(scorer, rows(test).cut())
        scaled = drive.scores_of(scorer, rows(test * 1e-6).cut())
        np.testing.assert_allclose(found, scaled, rtol=1e-9)
        assert np.isfinite(drive.scores_of(scorer, rows(np.zeros((1, 12))).cut())).all()


def test_defaults_are_those_of_the_kernel():
    x = noise(400)
    scorer = drive.outcome(KPCA("cosine-gaussian"), rows(x).cut())
    assert "of 48 components" in scorer.notes[0]
    q = PCA(0.8, svd_solver="full").fit(waves(unit(x), 48, 2.0)).n_components_
    assert scorer.notes[0].startswith(f"{q} of 48")
    schema = rows(np.zeros((3, 2048), np.float32)).schema
    (asked,) = next(KPCA("cosine-gaussian").passes(schema)).values()
    assert asked.of.shape(schema) == (4096,)


def test_fewer_rows_than_features():
    x, test = noise(10, 40), noise(5, 40, seed=1)
    scorer = drive.outcome(KPCA(components=4), rows(x).cut())
    assert scorer.notes[0].startswith("4 of 40 components, the fit rows span 9")
    found = drive.scores_of(scorer, rows(test).cut())
    np.testing.assert_allclose(found, error(unit(x), unit(test), 4), rtol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "rbf"},
        {"gamma": 0.0},
        {"gamma": float("inf")},
        {"fourier": 1},
        {"seed": -1},
        {"components": 1.5},
        {"components": 0},
    ],
)
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        KPCA(**options)


@pytest.mark.parametrize(
    ("options", "rows_"),
    [({"components": 12}, 90), ({"kernel": "cosine-gaussian", "components": 48}, 90),
     ({"components": 9}, 9)],
)  # fmt: skip
def test_components_that_leave_nothing_are_refused_before_anything_is_read(options, rows_):
    with pytest.raises(ConfigError, match="components: "):
        next(KPCA(**options).passes(rows(noise(rows_)).schema))


def test_components_beyond_what_the_rows_span_are_an_error():
    flat = noise(50, 5) @ noise(5, 12, seed=1)
    with pytest.raises(DataError, match="kpca: the fit rows span 5 dimensions, and 5 components"):
        scores(KPCA(components=5), flat, flat)
    with pytest.raises(DataError, match="kpca: the fit rows span 0 dimensions"):
        scores(KPCA(), np.ones((9, 12)), flat)


def test_a_plan_rehearses_without_an_eigendecomposition():
    job = Job(KPCA("cosine-gaussian", fourier=500), {"train": (rows(noise(300, 20)).cut(),)})
    passes, outcomes = rehearse({"kpca": job})
    assert len(passes) == 1
    assert outcomes["kpca"].notes[0].startswith("400 of 500")
