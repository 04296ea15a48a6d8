"""Evaluation of several detectors: what it says of sets, and how much of it there is."""

import numpy as np
import pytest

import pipeline as ff
from pipeline import evaluation

K, D = 3, 6
SETS = {"near": {"a": 0.5, "b": 0.8}, "far": {"c": 2.0}, "csid": {"blur": 0.2}}


def drawn(n, seed, shift=0.0):
    random = np.random.default_rng(seed)
    y = random.integers(0, K, n)
    x = random.standard_normal((n, D)) + 3 * np.eye(K, D)[y]
    x[:, -1] += 3 * shift
    return x.astype("f4"), y


@pytest.fixture(scope="module")
def fitted():
    return ff.fit(["mahalanobis", "energy", "msp"], drawn(300, 0), workers=1)


def evaluated(fitted, spoilt=None, **options):
    groups = {
        group: {name: drawn(90, 5 + n, shift)[0] for n, (name, shift) in enumerate(sets.items())}
        for group, sets in SETS.items()
    }
    if spoilt:
        group, name = spoilt
        groups[group][name][4, 2] = np.inf
    return ff.evaluate(fitted, drawn(120, 1), **groups, workers=1, **options)


def test_covariate_shifts_are_ranked_and_not_compared(fitted):
    found = evaluated(fitted)
    assert {row["group"] for row in found.scores} == {"near", "far", "csid"}
    assert {one["group"] for one in found.comparisons} == {"near", "far"}
    assert found.agreement["rows"] == 120 + 4 * 90


@pytest.mark.filterwarnings("error")
def test_a_set_with_rows_that_are_left_out_is_not_compared(fitted):
    found = evaluated(fitted, ("near", "a"), nonfinite="skip")
    assert {one["over"] for one in found.comparisons} == {"ood/near/b", "ood/far/c"}
    assert found.agreement["rows"] == 120 + 3 * 90
    assert found.value("energy", "ood/near/a", "auroc") > 0
    rows = {(row["detector"], row["ood"]): (row["n_id"], row["n_ood"]) for row in found.scores}
    for name in fitted:
        assert rows[name, "ood/near/a"] == (120, 89)
        assert rows[name, "ood/near/b"] == (120, 90)


def test_many_curves_have_fewer_points(fitted, monkeypatch):
    whole = evaluated(fitted)
    monkeypatch.setattr(evaluation, "LEAST_POINTS", 10)
    monkeypatch.setattr(evaluation, "POINTS_IN_ALL", 3 * 4 * 12)
    thinned = evaluated(fitted)
    for all_of_it, curve in zip(whole.curves, thinned.curves, strict=True):
        assert len(curve["fpr"]) <= 12
        points = set(zip(all_of_it["fpr"], all_of_it["tpr"], strict=True))
        assert set(zip(curve["fpr"], curve["tpr"], strict=True)) <= points
    assert max(len(curve["fpr"]) for curve in whole.curves) > 12
