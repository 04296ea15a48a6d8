import numpy as np
import pytest
import reference_formulas as reference

from pipeline.content import Const
from pipeline.detectors import Residual, ViM, make
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive
from pipeline.views import Pooled

WEIGHT = 1.5 * np.eye(5, 12) + 0.1
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


def residual(x, weight, bias, test, dim):
    u = -np.linalg.pinv(weight, rtol=1e-10) @ bias
    _, _, axes = np.linalg.svd(x - u, full_matrices=True)
    return np.linalg.norm((test - u) @ axes[dim:].T, axis=1)


class TestResidual(DetectorLaws):
    detector = Residual(head=HEAD, dim=4)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return residual(x, WEIGHT, BIAS, reference.pooled(test), 4)


class TestResidualOnLDA(DetectorLaws):
    detector = Residual(head=LDAHead())
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        present = np.unique(y)
        return residual(x, weight[present], bias[present], reference.pooled(test), 6)


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, train, test):
    return drive.scores_of(drive.outcome(detector, rows(train).cut()), rows(test).cut())


def statistics_of(chosen):
    trace = Trace()
    split = rows(noise(60)).cut()
    scorers = run_jobs(
        {name: Job(d, {"train": (split,)}) for name, d in chosen.items()}, trace=trace
    )
    return scorers, [pass_.works[0].statistics for pass_ in trace.passes]


def test_a_sweep_over_both_detectors_asks_for_the_statistics_of_one():
    _, alone = statistics_of({"vim": ViM(HEAD, 3)})
    chosen = {"vim": ViM(HEAD, 3), "more": ViM(HEAD, 7), "residual": Residual(HEAD, 5)}
    scorers, together = statistics_of(chosen)
    assert [len(pass_) for pass_ in together] == [1, 2]
    assert [set(pass_) for pass_ in together] == [set(pass_) for pass_ in alone]
    found = drive.scores_of(scorers["residual"], rows(noise(9, seed=1)).cut())
    expected = residual(noise(60), WEIGHT, BIAS, noise(9, seed=1), 5)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_sweep_alone_takes_the_first_pass_of_vim():
    _, asked = statistics_of({str(dim): Residual(HEAD, dim) for dim in (None, 1, 5, 11)})
    _, of_vim = statistics_of({"vim": ViM(HEAD)})
    assert [set(pass_) for pass_ in asked] == [set(of_vim[0])]


def test_the_preset_of_openood_has_its_dimensions_and_split():
    chosen = make("residual", preset="openood-1.5", head=HEAD)
    assert chosen.detector == Residual(HEAD, 512)
    assert chosen.fit_split == "id/val"


def test_an_offset_of_the_features_does_not_cancel():
    x, test = noise(200) + 1e3, noise(20, seed=1) + 1e3
    head = LinearHead(Const(WEIGHT), Const(BIAS - WEIGHT @ np.full(12, 1e3)))
    expected = residual(x, WEIGHT, head.bias.array, test, 4)
    np.testing.assert_allclose(scores(Residual(head, 4), x, test), expected, rtol=0, atol=1e-8)


def test_a_dead_unit_and_the_null_direction_of_a_layer_norm_are_residual():
    x = noise(100)
    x[:, 11] = 0.0
    x[:, :11] -= x[:, :11].mean(axis=1, keepdims=True)
    head = LinearHead(Const(WEIGHT), Const(np.zeros(5)))
    test = np.zeros((3, 12))
    test[1, 11] = 1000.0
    test[2, :11] = 1000.0
    found = scores(Residual(head, 6), x, test)
    np.testing.assert_allclose(found, [0.0, 1000.0, 1000.0 * 11**0.5], rtol=1e-6, atol=1e-12)


def test_fewer_rows_than_features():
    x, test = noise(10, 40), noise(5, 40, seed=1)
    weight = noise(5, 40, seed=2)
    head = LinearHead(Const(weight), Const(BIAS))
    scorer = drive.outcome(Residual(head), rows(x).cut())
    assert "principal space 5 of 40, the fit rows span 10" in scorer.notes[0]
    found = drive.scores_of(scorer, rows(test).cut())
    np.testing.assert_allclose(found, residual(x, weight, BIAS, test, 5), rtol=1e-9)


def test_condition_1e10_ranks_as_singular_vectors_do():
    rotation = np.linalg.qr(noise(40, 40, seed=3))[0]
    x = noise(500, 40) * np.logspace(0, -5, 40) @ rotation
    weight = noise(5, 40, seed=2)
    head = LinearHead(Const(weight), Const(np.zeros(5)))
    found = scores(Residual(head, 20), x, x)
    expected = residual(x, weight, np.zeros(5), x, 20)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"dim": 0}, "dim: 0"), ({"precision": "half"}, "precision: 'half'"), ({"pool": "?"}, "pool")],
)
def test_options_are_refused_before_anything_is_read(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        Residual(HEAD, **options)


@pytest.mark.parametrize(("dim", "rows_"), [(12, 90), (1000, 90), (9, 9)])
def test_a_dim_that_leaves_nothing_is_refused_before_anything_is_read(dim, rows_):
    with pytest.raises(ConfigError, match=f"dim: {dim}"):
        next(Residual(HEAD, dim).passes(rows(noise(rows_)).schema))


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="residual needs the weights of the head"):
        next(Residual().passes(rows(noise(9)).schema))


def test_a_head_over_other_features_is_refused():
    head = LinearHead(Const(WEIGHT), Const(BIAS), of=Pooled("mean", "other"))
    data = rows(noise(30)).with_arrays(other=noise(30))
    with pytest.raises(ConfigError, match="same pool and field"):
        drive.outcome(Residual(head), data.cut())


def test_features_that_span_no_more_than_dim_are_an_error():
    flat = noise(50, 5) @ noise(5, 12, seed=1)
    head = LinearHead(Const(WEIGHT), Const(np.zeros(5)))
    with pytest.raises(DataError, match="residual: the fit rows span 5 dimensions"):
        drive.outcome(Residual(head, 5), rows(flat).cut())
    with pytest.raises(DataError, match="span 1 dimensions"):
        drive.outcome(Residual(head), rows(flat[:, :1] @ flat[:1]).cut())


def test_huge_features_are_an_error():
    refused = pytest.raises(DataError, match="not finite; look for huge features")
    with refused, np.errstate(all="ignore"):
        drive.outcome(Residual(HEAD), rows(noise(50) * 1e200).cut())


def test_a_plan_rehearses_on_fewer_rows_than_dim():
    job = Job(Residual(LDAHead(), 100), {"train": (rows(noise(300, 200)).cut(),)})
    passes, outcomes = rehearse({"residual": job})
    assert len(passes) == 1
    assert "principal space 100 of 200" in outcomes["residual"].notes[0]
