from itertools import pairwise

import numpy as np
import pytest
import reference_formulas as reference
from shaping_formulas import BIAS, HEAD, WEIGHT, ShapingLaws, rectified, rows, scores, signed

from pipeline.content import Const
from pipeline.detectors import OptFS
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LDAHead, LinearHead


def optfs(x, z, weight, bias, bins=100):
    """Interval by interval, as in the reference code."""
    low, high = np.quantile(x, (0.001, 0.999))
    edges = np.linspace(low, high, bins + 1)

    def by_interval(z):
        contributions = weight[(z @ weight.T + bias).argmax(axis=1)] * z
        masks = [(z >= a) & (z < b) for a, b in pairwise(edges)]
        return np.stack([(mask * contributions).sum(axis=1) for mask in masks], axis=1)

    worth = by_interval(x).mean(axis=0)
    return -by_interval(z) @ (worth / np.linalg.norm(worth) * 1000)


class TestOptFS(ShapingLaws):
    detector = OptFS(head=HEAD)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return optfs(x, reference.pooled(test), WEIGHT, BIAS)


class TestOptFSOnLDA(ShapingLaws):
    detector = OptFS(head=LDAHead(), bins=7)
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        present = np.unique(y)
        return optfs(x, reference.pooled(test), weight[present], bias[present], 7)


def test_features_after_a_relu():
    z, weight, bias = rectified()
    ours = scores(OptFS(LinearHead(Const(weight), Const(bias))), rows(z, classes=10))
    np.testing.assert_allclose(ours, optfs(z, z, weight, bias), rtol=1e-9)


def test_three_passes_are_planned_and_taken(monkeypatch):
    monkeypatch.setattr("pipeline.quantiles.ROOM", 1024)
    split = rows(signed(3000, 12)).cut([[500] * 6])
    jobs = {"it": Job(OptFS(LDAHead()), {"train": (split,)})}
    trace = Trace()
    run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [2, 1, 1]
    assert len(rehearse(jobs)[0]) == 3


def test_features_far_outside_all_intervals_count_nothing():
    z = signed(100, 12)
    found = scores(OptFS(HEAD), rows(z), rows(np.full((3, 12), 1e6)))
    np.testing.assert_array_equal(found, np.zeros(3))


@pytest.mark.parametrize("z", [np.zeros((20, 12)), np.full((20, 12), 3.0)])
def test_equal_activations_are_an_error(z):
    with pytest.raises(DataError, match="intervals between them have no width"):
        scores(OptFS(HEAD), rows(z))


def test_a_head_of_zeros_is_an_error():
    head = LinearHead(Const(np.zeros((5, 12))), Const(BIAS))
    with pytest.raises(DataError, match="contribute nothing"):
        scores(OptFS(head), rows(signed(30, 12)))


def test_bins_below_one_are_refused_at_once():
    with pytest.raises(ConfigError, match="bins: 0"):
        OptFS(HEAD, bins=0)


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(OptFS().passes(rows(signed(9, 12)).schema))
