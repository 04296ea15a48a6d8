import numpy as np
import pytest
import reference_formulas as reference
from shaping_formulas import BIAS, HEAD, WEIGHT, energy_of, rectified, rows, scores, signed
from shaping_peers import scores_of_peer

from pipeline.content import Const
from pipeline.detectors import ReAct
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import DetectorLaws
from pipeline.views import Pooled


class TestReAct(DetectorLaws):
    detector = ReAct(head=HEAD)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return energy_of(np.minimum(reference.pooled(test), np.percentile(x, 90)))


class TestReActOnLDA(DetectorLaws):
    detector = ReAct(head=LDAHead(), percentile=97.5)
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        cut = np.minimum(reference.pooled(test), np.percentile(x, 97.5))
        present = np.unique(y)
        return energy_of(cut, weight[present], bias[present])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("percentile", [85, 90, 95, 99])
def test_scores_are_those_of_pytorch_ood(percentile, dtype):
    z, weight, bias = (x.astype(dtype) for x in rectified())
    theirs = scores_of_peer("ReAct", z, weight, bias, percentile=percentile / 100)
    head = LinearHead(Const(weight.astype(float)), Const(bias.astype(float)))
    ours = scores(ReAct(head, percentile=percentile), rows(z, classes=10))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == np.float32 else 1e-12)
    if dtype == np.float64:
        np.testing.assert_array_equal(np.argsort(ours), np.argsort(theirs))


def test_a_sweep_over_percentiles_shares_the_first_pass(monkeypatch):
    monkeypatch.setattr("pipeline.quantiles.ROOM", 1024)
    split = rows(signed(3000, 12)).cut([[500] * 6])
    jobs = {str(p): Job(ReAct(LDAHead(), p), {"train": (split,)}) for p in (85.0, 90.0, 95.0)}
    trace = Trace()
    run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [2, 3]
    planned, _ = rehearse(jobs)
    assert len(planned) == 2


@pytest.mark.parametrize("percentile", [0, 100])
def test_percentiles_may_be_the_ends(percentile):
    z = signed(50, 12)
    expected = energy_of(np.minimum(z, np.percentile(z, percentile)))
    np.testing.assert_allclose(scores(ReAct(HEAD, percentile=percentile), rows(z)), expected)


def test_one_row_and_equal_rows():
    for z in (np.arange(12.0)[None], np.ones((9, 12)), np.zeros((3, 12))):
        expected = energy_of(np.minimum(z, np.percentile(z, 90)))
        np.testing.assert_allclose(scores(ReAct(HEAD), rows(z)), expected)


def test_huge_features_have_finite_scores():
    z = signed(50, 12) * 1e4
    assert np.isfinite(scores(ReAct(HEAD), rows(z), rows(1e30 * z))).all()


@pytest.mark.parametrize("percentile", [-1, 100.5, np.nan, np.inf])
def test_a_percentile_that_is_none_is_refused_at_once(percentile):
    with pytest.raises(ConfigError, match=r"percentile: .*from 0 to 100"):
        ReAct(HEAD, percentile=percentile)


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(ReAct().passes(rows(signed(9, 12)).schema))


def test_a_head_over_other_features_is_refused():
    head = LinearHead(Const(WEIGHT), Const(BIAS), of=Pooled("mean", "other"))
    data = rows(signed(30, 12)).with_arrays(other=signed(30, 12))
    with pytest.raises(ConfigError, match="same pool and field"):
        scores(ReAct(head), data)
