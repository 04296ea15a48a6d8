import numpy as np
import pytest
import reference_formulas as reference
from shaping_formulas import HEAD, energy_of, rectified, rows, scores, signed
from shaping_peers import scores_of_peer

from pipeline.content import Const
from pipeline.detectors import VRA
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import DetectorLaws


def rectify(z, low, high):
    return np.minimum(np.where(z < low, 0.0, z), high)


class TestVRA(DetectorLaws):
    detector = VRA(head=HEAD)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return energy_of(rectify(reference.pooled(test), *np.percentile(x, (60, 95), axis=0)))


class TestVRAOfAllActivations(DetectorLaws):
    detector = VRA(head=LDAHead(), low=10, high=90, below="clip", scope="all")
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        present = np.unique(y)
        clipped = np.clip(reference.pooled(test), *np.percentile(x, (10, 90)))
        return energy_of(clipped, weight[present], bias[present])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_are_those_of_pytorch_ood(dtype):
    z, weight, bias = (x.astype(dtype) for x in rectified())
    theirs = scores_of_peer("VRA", z, weight, bias)
    head = LinearHead(Const(weight.astype(float)), Const(bias.astype(float)))
    ours = scores(VRA(head, **VRA.presets["pytorch-ood-0.4"]), rows(z, classes=10))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)  # it rounds its bounds to float32
    if dtype == np.float64:
        np.testing.assert_array_equal(np.argsort(ours), np.argsort(theirs))


def test_the_preset_of_openood_clips_at_two_bounds_for_all():
    z, weight, bias = rectified()
    options = dict(VRA.presets["openood-1.5"])
    assert options.pop("fit_split") == "val"
    ours = scores(VRA(LinearHead(Const(weight), Const(bias)), **options), rows(z, classes=10))
    theirs = energy_of(np.clip(z, *np.percentile(z.ravel(), (10, 90))), weight, bias)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize("scope", ["feature", "all"])
def test_two_passes_share_the_first_with_other_percentiles(scope, monkeypatch):
    monkeypatch.setattr("pipeline.quantiles.ROOM", 1024)
    split = rows(signed(3000, 12)).cut([[500] * 6])
    jobs = {
        str(low): Job(VRA(LDAHead(), low, scope=scope), {"train": (split,)}) for low in (1.0, 60.0)
    }
    trace = Trace()
    run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [2, 2]
    assert len(rehearse(jobs)[0]) == 2


def test_an_upper_bound_below_zero_cuts_what_was_set_to_zero():
    z = -1.0 - np.random.default_rng(0).random((40, 12))
    expected = energy_of(rectify(z, *np.percentile(z, (60, 95), axis=0)))
    np.testing.assert_allclose(scores(VRA(HEAD), rows(z)), expected)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"low": 96}, "low: 96 is above high: 95"),
        ({"low": -1}, "low: -1"),
        ({"high": 101}, "high: 101"),
        ({"below": "nothing"}, "below: 'nothing'"),
        ({"scope": "class"}, "scope: 'class'"),
    ],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ConfigError, match=match):
        VRA(HEAD, **options)


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(VRA().passes(rows(signed(9, 12)).schema))
