from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from test_metrics_paired import ranks

from pipeline.metrics import Scored, agreement, compared
from pipeline.metrics.comparison import BOOTSTRAP_NBYTES
from pipeline.partials import RowTable

STRENGTHS = {"strong": 3.0, "alike": 3.0, "weak": 0.3}


def drawn(n=300, sets=("a", "b"), strengths=STRENGTHS, blocks=3, seed=0):
    random = np.random.default_rng(seed)

    def tables(rows, shift):
        common = random.standard_normal(rows)
        return {
            name: common + 0.3 * random.standard_normal(rows) + shift * strength
            for name, strength in strengths.items()
        }

    inside, outside = tables(n, 0.0), {name: tables(n // 2, 0.5) for name in sets}
    return inside, outside, blocks


def scored(inside, outside, blocks=3):
    def kept(tables):
        return {name: RowTable(np.array_split(x, blocks)) for name, x in tables.items()}

    found = {
        (name, of): ranks(inside[name], tables[name])
        for of, tables in outside.items()
        for name in inside
    }
    groups = {"near": list(outside)[:2], "far": list(outside)[2:]}
    return Scored(
        list(inside), kept(inside), {of: kept(t) for of, t in outside.items()}, found, groups
    )


def test_the_best_is_told_from_the_weak_and_not_from_its_like():
    found = compared(scored(*drawn()), list(STRENGTHS))
    for column in found:
        others = {other["detector"]: other for other in column["others"]}
        assert column["best"] in ("strong", "alike")
        assert not others["weak"]["tied"]
        alike = "alike" if column["best"] == "strong" else "strong"
        assert others[alike]["tied"]
    assert [(c["over"], c["metric"]) for c in found] == [
        (over, metric) for over in ("near", "a", "b") for metric in ("auroc", "fpr95")
    ]


def test_the_mean_of_a_group_is_that_of_its_sets():
    found = {(c["over"], c["metric"]): c for c in compared(scored(*drawn()), ["strong"])}
    for metric in ("auroc", "fpr95"):
        single = [
            {o["detector"]: o["difference"] for o in found[over, metric]["others"]}
            for over in ("a", "b")
        ]
        for other in found["near", metric]["others"]:
            mean = np.mean([one[other["detector"]] for one in single])
            assert other["difference"] == pytest.approx(mean, abs=1e-12)


def test_a_candidate_is_the_best_even_where_another_is_better():
    found = compared(scored(*drawn()), ["weak"])
    assert {column["best"] for column in found} == {"weak"}
    assert all(other["difference"] > 0 for other in found[0]["others"])


def test_blocks_change_nothing():
    inside, outside, _ = drawn(n=40)
    whole, cut = (compared(scored(inside, outside, n), list(STRENGTHS)) for n in (1, 20))
    for one, other in zip(whole, cut, strict=True):
        for a, b in zip(one["others"], other["others"], strict=True):
            assert a["p"] == pytest.approx(b["p"], rel=1e-9, abs=1e-300)


def test_a_set_with_a_score_that_is_nan_is_not_compared():
    inside, outside, _ = drawn(n=40)
    spoilt = scored(inside, outside)
    part = spoilt.outside["a"]["weak"].parts[1]
    part[2] = np.nan
    assert {column["over"] for column in compared(spoilt, list(STRENGTHS))} == {"b"}
    assert agreement(spoilt)["rows"] == 60


@pytest.mark.parametrize("score", [np.inf, -np.inf, 0.0])
def test_a_set_with_a_row_that_does_not_count_for_a_detector_is_not_compared(score):
    inside, outside, _ = drawn(n=40)
    kept = outside["a"]["weak"]
    spoilt = scored(
        inside, {"a": outside["a"] | {"weak": np.append(kept[:-1], score)}, "b": outside["b"]}
    )
    spoilt.ranks["weak", "a"] = ranks(inside["weak"], kept[:-1])
    assert {column["over"] for column in compared(spoilt, list(STRENGTHS))} == {"b"}
    assert agreement(spoilt)["rows"] == 60


def test_nothing_is_compared_where_an_inside_row_does_not_count_for_a_detector():
    inside, outside, _ = drawn(n=40)
    spoilt = scored(inside, outside)
    for of, tables in outside.items():
        spoilt.ranks["weak", of] = ranks(inside["weak"][1:], tables["weak"])
    assert compared(spoilt, list(STRENGTHS)) == []
    assert agreement(spoilt) is None


def test_a_set_of_no_group_is_not_compared_and_agrees():
    inside, outside, _ = drawn(n=40)
    found = replace(scored(inside, outside), groups={"near": ["a"]})
    assert {column["over"] for column in compared(found, list(STRENGTHS))} == {"a"}
    assert agreement(found)["rows"] == 80


def test_a_set_of_one_row_is_left_out():
    inside, outside, _ = drawn(n=40)
    outside["b"] = {name: x[:1] for name, x in outside["b"].items()}
    found = compared(scored(inside, outside, blocks=1), list(STRENGTHS))
    assert {column["over"] for column in found} == {"a"}


def test_one_detector_has_nobody_to_differ_from():
    inside, outside, _ = drawn(strengths={"only": 1.0})
    assert compared(scored(inside, outside), ["only"]) == []


def test_rates_of_too_many_rows_are_not_tested(monkeypatch):
    inside, outside, _ = drawn(n=40)
    assert scored(inside, outside).nbytes(["a", "b"]) == 12 * 3 * 80 < BOOTSTRAP_NBYTES
    monkeypatch.setattr("pipeline.metrics.comparison.BOOTSTRAP_NBYTES", 12 * 3 * 79)
    found = compared(scored(inside, outside), list(STRENGTHS))
    assert {column["metric"] for column in found} == {"auroc"}


def test_agreement_is_spearmans_with_ties():
    inside, outside, _ = drawn(sets=("a", "b", "c"))
    for tables in (inside, *outside.values()):
        tables["weak"] = np.round(tables["weak"])
    found = agreement(scored(inside, outside))
    columns = [np.concatenate([t[name] for t in (inside, *outside.values())]) for name in STRENGTHS]
    expected = stats.spearmanr(np.stack(columns, axis=1)).statistic
    np.testing.assert_allclose(found["spearman"], expected, rtol=1e-12)
    assert found["rows"] == len(columns[0])


def test_agreement_with_a_constant_score_is_undefined():
    inside, outside, _ = drawn(n=20)
    for tables in (inside, *outside.values()):
        tables["weak"] = np.zeros_like(tables["weak"])
    matrix = np.array(agreement(scored(inside, outside))["spearman"])
    assert np.isnan(matrix[2]).all()
    assert np.isfinite(matrix[:2, :2]).all()
