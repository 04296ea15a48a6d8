import numpy as np
import pytest
import reference_formulas as reference
from scipy import special

from pipeline.content import Const
from pipeline.detectors import ViM, make
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive
from pipeline.views import Pooled

WEIGHT = 1.5 * np.eye(5, 12) + 0.1
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


class TestViM(DetectorLaws):
    detector = ViM(head=HEAD, dim=4)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return reference.vim(x, WEIGHT, BIAS, reference.pooled(test), 4)


class TestViMOnLDA(DetectorLaws):
    detector = ViM(head=LDAHead())
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        return reference.vim(x, weight, bias, reference.pooled(test), 6)


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def test_the_preset_of_openood_has_its_scores():
    x, test = noise(900, 300) + 0.5, noise(40, 300, seed=1)
    weight, bias = noise(5, 300, seed=2), 30.0 + BIAS
    u = -np.linalg.pinv(weight) @ bias
    values, vectors = np.linalg.eig((x - u).T @ (x - u) / len(x))
    outside = vectors[:, np.argsort(-values)[256:]]
    logits, residuals = x @ weight.T + bias, np.linalg.norm((x - u) @ outside, axis=1)
    alpha = logits.max(axis=1).mean() / residuals.mean()
    virtual = alpha * np.linalg.norm((test - u) @ outside, axis=1)
    confidence = special.logsumexp(test @ weight.T + bias, axis=1) - virtual
    head = LinearHead(Const(weight), Const(bias))
    detector = make("vim", preset="openood-1.5", head=head).detector
    found = drive.scores_of(drive.outcome(detector, rows(x).cut()), rows(test).cut())
    np.testing.assert_allclose(found, -confidence, rtol=1e-9)


def test_an_unknown_precision_is_refused_at_once():
    with pytest.raises(ConfigError, match="precision: 'half'"):
        ViM(HEAD, precision="half")


def test_a_sweep_over_dim_asks_for_the_same_statistics():
    data = rows(noise(60))
    jobs = {f"vim-{dim}": Job(ViM(HEAD, dim), {"train": (data.cut(),)}) for dim in (None, 1, 5, 11)}
    trace = Trace()
    scorers = run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1, 2]
    for dim in (1, 5, 11):
        expected = reference.vim(data.arrays["features"], WEIGHT, BIAS, noise(9, seed=1), dim)
        found = drive.scores_of(scorers[f"vim-{dim}"], rows(noise(9, seed=1)).cut())
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("missing", [(), (2,), (0, 3)])
def test_classes_without_rows_leave_an_lda_head_and_its_origin_sane(missing):
    data = rows(noise(200) + 3 * np.eye(5, 12)[np.random.default_rng(0).integers(0, 5, 200)])
    labels = data.arrays["labels"]
    keep = ~np.isin(labels, missing)
    data = data.take(keep)
    x, y = data.arrays["features"], data.arrays["labels"]
    scorer = drive.outcome(ViM(LDAHead(), dim=3), data.cut([[7] * 10, [len(x) - 70]]))
    weight, bias = reference.linear_discriminant(x, y, 5)
    present = np.unique(y)
    expected = reference.vim(x, weight[present], bias[present], x, 3)
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), expected, rtol=1e-8)


def test_scores_survive_an_offset_of_the_features():
    x, test = noise(200) + 1e3, noise(20, seed=1) + 1e3
    head = LinearHead(Const(WEIGHT), Const(BIAS - WEIGHT @ np.full(12, 1e3)))
    scorer = drive.outcome(ViM(head, 4), rows(x).cut([[1] * 50, [150]]))
    expected = reference.vim(x, WEIGHT, head.bias.array, test, 4)
    found = drive.scores_of(scorer, rows(test).cut())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


def test_dead_units_are_residual():
    x = noise(100)
    x[:, 11] = 0.0
    scorer = drive.outcome(ViM(HEAD, 6), rows(x).cut())
    test = np.zeros((2, 12))
    test[1, 11] = 1000.0
    found = drive.scores_of(scorer, rows(test).cut())
    assert found[1] > found[0] + 100.0


@pytest.mark.parametrize(
    ("d", "rows_", "dim"),
    [(12, 100, 6), (768, 900, 512), (1500, 1020, 1000), (768, 300, 150), (12, 4, 2)],
)
def test_default_dim(d, rows_, dim):
    head = LinearHead(Const(np.eye(2, d)), Const(np.full(2, 50.0)))
    scorer = drive.outcome(ViM(head), rows(noise(rows_, d), classes=2).cut())
    assert f"principal space {dim} of {d}," in scorer.notes[0]


@pytest.mark.parametrize("dim", [12, 1000])
def test_dim_of_all_features_is_refused_before_anything_is_read(dim):
    with pytest.raises(ConfigError, match="12 features"):
        next(ViM(HEAD, dim).passes(rows(noise(9)).schema))


def test_dim_below_one_is_refused():
    with pytest.raises(ConfigError, match="dim: 0"):
        ViM(HEAD, 0)


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(ViM().passes(rows(noise(9)).schema))


def test_a_head_over_other_features_is_refused():
    head = LinearHead(Const(WEIGHT), Const(BIAS), of=Pooled("mean", "other"))
    data = rows(noise(30)).with_arrays(other=noise(30))
    with pytest.raises(ConfigError, match="same pool and field"):
        drive.outcome(ViM(head), data.cut())


@pytest.mark.parametrize("precision", ["auto", "float64", "float32"])
def test_features_that_span_no_more_than_dim_are_an_error(precision):
    flat = noise(50, 5) @ noise(5, 12, seed=1)
    head = LinearHead(Const(WEIGHT), Const(np.zeros(5)))
    with pytest.raises(DataError, match="span 5 dimensions"):
        drive.outcome(ViM(head, 8, precision), rows(flat).cut())
    with pytest.raises(DataError, match="span 1 dimensions"):
        drive.outcome(
            ViM(LinearHead(Const(WEIGHT), Const(np.zeros(5)))), rows(flat[:, :1] @ flat[:1]).cut()
        )


def test_fewer_rows_than_dim_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="residual of 8 fit rows"):
        next(ViM(HEAD, 8).passes(rows(noise(8)).schema))


def test_a_plan_rehearses_on_fewer_rows_than_dim():
    job = Job(ViM(LDAHead(), 100), {"train": (rows(noise(300, 200)).cut(),)})
    passes, outcomes = rehearse({"vim": job})
    assert [len(pass_.works[0].statistics) for pass_ in passes] == [1, 2]
    assert "principal space 100 of 200" in outcomes["vim"].notes[0]


def test_logits_below_zero_are_an_error():
    head = LinearHead(Const(WEIGHT), Const(BIAS - 100.0))
    with pytest.raises(DataError, match="largest logits"):
        drive.outcome(ViM(head, 4), rows(noise(50)).cut())
