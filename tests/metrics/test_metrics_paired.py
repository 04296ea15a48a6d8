import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.metrics import fpr_at_tpr
from pipeline.metrics.paired import Paired, bootstrap_fpr, delong, differences, holm
from pipeline.statistics import Ranks


def ranks(inside, outside):
    values = np.unique(np.concatenate((inside, outside)))
    counts = [(side[None, :] == values[:, None]).sum(axis=1) for side in (inside, outside)]
    return Ranks(values, *counts)


def ranks_of(inside, outside):
    return [ranks(inside[:, r], outside[:, r]) for r in range(inside.shape[1])]


def psi(outside, inside):
    """1 where the OOD score is above, 1/2 where equal: (n_ood, n_id)."""
    gap = outside[:, None] - inside[None, :]
    return (gap > 0) + 0.5 * (gap == 0)


def delong_by_pairs(inside, outsides):
    """DeLong 1988 over all pairs of rows; several sets that share the ID rows by their mean."""
    detectors = inside.shape[1]
    of_ood = [
        np.stack([psi(o[:, r], inside[:, r]).mean(axis=1) for r in range(detectors)])
        for o in outsides
    ]
    of_id = np.mean(
        [
            np.stack([psi(o[:, r], inside[:, r]).mean(axis=0) for r in range(detectors)])
            for o in outsides
        ],
        axis=0,
    )
    values = of_id.mean(axis=1)
    covariance = np.atleast_2d(np.cov(of_id)) / len(inside)
    for components in of_ood:
        covariance += np.atleast_2d(np.cov(components)) / components.shape[1] / len(outsides) ** 2
    return values, covariance


def rows(seed, n, detectors=3, shift=0.0, ties=True):
    random = np.random.default_rng(seed)
    shared = random.standard_normal((n, 1))
    scores = shared + random.standard_normal((n, detectors)) + shift
    return np.round(scores, 1) if ties else scores


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 30),
    sets=st.lists(st.integers(2, 20), min_size=1, max_size=3),
    size=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_delong_is_that_over_all_pairs_of_rows(n, sets, size, seed):
    inside = rows(seed, n)
    outsides = [rows(seed + 1 + s, m, shift=0.5) for s, m in enumerate(sets)]

    def blocks(scores):
        return [scores[start : start + size] for start in range(0, len(scores), size)]

    found = delong(
        [ranks_of(inside, o) for o in outsides], blocks(inside), [blocks(o) for o in outsides]
    )
    values, covariance = delong_by_pairs(inside, outsides)
    np.testing.assert_allclose(found.values, values, rtol=1e-13)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-10, atol=1e-16)


def test_a_monotone_map_of_scores_is_the_same_detector():
    inside, outside = rows(0, 40, 1), rows(1, 30, 1, shift=1.0)
    inside, outside = (np.hstack((x, np.exp(x))) for x in (inside, outside))
    found = delong([ranks_of(inside, outside)], [inside], [[outside]])
    assert differences(found, 0)[1] == (0.0, 0.0, 1.0)


def test_perfect_detectors_cannot_be_told_apart():
    inside, outside = np.zeros((5, 2)), np.ones((7, 2))
    found = delong([ranks_of(inside, outside)], [inside], [[outside]])
    np.testing.assert_array_equal(found.covariance, np.zeros((2, 2)))
    assert [d.p for d in differences(found, 0)] == [1.0, 1.0]


def test_a_perfect_and_a_random_detector_differ():
    random = np.random.default_rng(0)
    inside = np.stack((np.zeros(200), random.random(200)), axis=1)
    outside = np.stack((np.ones(200), random.random(200)), axis=1)
    found = delong([ranks_of(inside, outside)], [inside], [[outside]])
    assert differences(found, 0)[1].p < 1e-12


def test_one_row_has_no_error_estimate():
    inside, outside = np.zeros((1, 2)), np.ones((7, 2))
    found = delong([ranks_of(inside, outside)], [inside], [[outside]])
    assert all(math.isnan(d.p) for d in differences(found, 0))


def test_p_values_are_uniform_where_nothing_differs():
    p = []
    for seed in range(400):
        inside, outside = rows(2 * seed, 60, 2, ties=False), rows(2 * seed + 1, 60, 2, shift=1.0)
        found = delong([ranks_of(inside, outside)], [inside], [[outside]])
        p.append(differences(found, 0)[1].p)
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.09
    assert 0.43 < np.mean(p) < 0.57


def test_bootstrap_estimates_are_those_of_the_metric():
    inside, outside = rows(0, 300), rows(1, 200, shift=1.5)
    found = bootstrap_fpr(inside, [outside], replicates=50)
    expected = [fpr_at_tpr(one).value for one in ranks_of(inside, outside)]
    np.testing.assert_array_equal(found.values, [expected])


def test_bootstrap_covariance_is_that_of_resampled_metrics():
    inside, outside = rows(0, 120, 2), rows(1, 80, 2, shift=1.0)
    random = np.random.default_rng(5)
    rates = []
    for _ in range(2000):
        a, b = (x[random.integers(0, len(x), len(x))] for x in (inside, outside))
        rates.append([fpr_at_tpr(one).value for one in ranks_of(a, b)])
    expected = np.cov(np.array(rates), rowvar=False)
    found = bootstrap_fpr(inside, [outside], replicates=4000, seed=1)
    np.testing.assert_allclose(found.over([0]).covariance, expected, rtol=0.15)


def test_the_bootstrap_of_several_sets_shares_the_inside_rows():
    inside, outside = rows(0, 100, 2), rows(1, 5000, 2, shift=0.5)
    found = bootstrap_fpr(inside, [outside, outside], replicates=2000)
    one, both = found.over([0]), found.over([0, 1])
    np.testing.assert_array_equal(both.values, one.values)
    # Nearly all the error is that of the 100 shared rows: a second set does not halve it.
    np.testing.assert_allclose(both.covariance, one.covariance, rtol=0.15)


def test_the_bootstrap_is_the_same_whatever_its_batches(monkeypatch):
    inside, outside = rows(0, 50), rows(1, 60, shift=1.0)
    whole = bootstrap_fpr(inside, [outside], replicates=30)
    monkeypatch.setattr("pipeline.metrics.paired.WEIGHTS_NBYTES", 1)
    found = bootstrap_fpr(inside, [outside], replicates=30)
    np.testing.assert_array_equal(found.drawn, whole.drawn)


def test_one_replicate_is_refused():
    with pytest.raises(ConfigError, match="replicates: 1"):
        bootstrap_fpr(rows(0, 5), [rows(1, 5)], replicates=1)


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([0.2, 0.001]) == [False, True]
    assert holm([math.nan, 0.001]) == [False, True]
    assert holm([]) == []


def test_a_difference_without_error_is_certain():
    paired = Paired(np.array([0.5, 0.6]), np.zeros((2, 2)))
    assert differences(paired, 0)[1].p == 0.0
