"""``featfold compare``: what differs between two runs, and the gate that fails on a regression."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.comparing import rule_of
from pipeline.errors import ConfigError


def changed(source: Path, target: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Write a results file that differs in what ``change`` does to it."""
    results = json.loads((source / "results.json").read_text())
    change(results)
    target.write_text(json.dumps(results))
    return target


def number(results: dict[str, Any], detector: str, metric: str, ood: str = "ood/near/a") -> Any:
    """Return one number of a results file."""
    return next(
        score["metrics"][metric]
        for score in results["scores"]
        if (score["detector"], score["ood"]) == (detector, ood)
    )


def lowered(points: float, bound: float = 0.0) -> Callable[[dict[str, Any]], None]:
    """Return what lowers the AUROC of msp by percentage points, and gives it bounds."""

    def lower(results: dict[str, Any]) -> None:
        value = number(results, "msp", "auroc")["value"] - points / 100
        number(results, "msp", "auroc").update(
            value=value, lower=value - bound / 100, upper=value + bound / 100, exact=not bound
        )

    return lower


@pytest.fixture
def run(cli, job, tmp_path) -> Path:
    """A finished run."""
    assert cli("run", job).code == 0
    return next((tmp_path / "runs" / "small").glob("2*"))


def test_a_run_equals_itself_and_breaks_no_rule(cli, run):
    code, out, err = cli("compare", run, run.parent, "--fail-if", "auroc<0", "--fail-if", "fpr95>0")
    assert (code, err) == (0, "")
    assert "equal: AUROC ↑ (6), AUPR-in ↑ (6), AUPR-out ↑ (6), FPR95 ↓ (6)" in out
    assert "config: the same\ndata: the same\nversions: the same" in out
    assert "auroc<0: kept\nfpr95>0: kept" in out


def test_a_rule_is_about_the_difference_in_points(cli, run, tmp_path):
    for fall, bound, rule, code in (
        (0.4, 0, "auroc<-0.5", 0),
        (0.6, 0, "auroc<-0.5", 10),
        (0.5, 0, "auroc<-0.5", 0),
        (0.4, 0.2, "auroc<-0.5", 10),  # at its worst it has fallen by 0.6
        (-0.6, 0, "auroc<-0.5", 0),
        (-0.6, 0, "AUROC > 0.5", 10),
        (0.6, 0, "fpr95>0.5", 0),
    ):
        later = changed(run, tmp_path / "later.json", lowered(fall, bound))
        ended = cli("compare", run, later, "--fail-if", rule, "--json")
        assert ended.code == code, rule
        said = json.loads(ended.out)
        assert said["regressed"] == (code == 10)
        broken = said["rules"][0]["broken_by"]
        assert [one["detector"] for one in broken] == ["msp"] * (code == 10)
        moved = [one for one in said["numbers"] if one["difference_points"]]
        assert [one["difference_points"] for one in moved] == [pytest.approx(-fall)]
        assert f"{-fall:+.2f}" in ended.err


def test_what_only_one_run_has_is_listed_and_breaks_rules(cli, run, tmp_path):
    def without(results):
        results["scores"] = [
            score
            for score in results["scores"]
            if score["ood"] != "ood/far/b" and score["detector"] != "plain"
        ]
        for key in ("curves", "histograms", "comparisons"):
            results[key] = []
        results["agreement"] = None
        results["detectors"] = [one for one in results["detectors"] if one["id"] != "plain"]
        number(results, "msp", "auroc").update(value=None, reason="all scores are equal")

    later = changed(run, tmp_path / "later.json", without)
    code, out, _ = cli("compare", run, later, "--fail-if", "auroc<-0.5")
    assert code == 10
    assert "only detectors in A: plain" in out
    assert "only sets in A: ood/far/b" in out
    broken = [line for line in out.splitlines() if line.startswith("auroc<-0.5: broken by")]
    assert len(broken) == 4 + 1  # all of plain and of b but one are gone; one is undefined
    assert any("msp on ood/near/a" in line and "undefined in B" in line for line in broken)
    assert any("plain on ood/near/a" in line and "not there in B" in line for line in broken)
    code, out, _ = cli("compare", later, run, "--fail-if", "auroc<-0.5")
    assert code == 0  # what is new is no regression
    assert "only detectors in B: plain" in out
    assert "new" in out


def test_config_data_and_versions_that_differ_are_named(cli, job, run, tmp_path):
    def edited(results):
        results["provenance"]["versions"]["numpy"] = "1.0"
        results["provenance"]["checksums"]["id/train"] = "other"
        results["data"][0]["rows"] += 5

    later = changed(run, tmp_path / "later.json", edited)
    out = cli("compare", later, run).out
    lines = [line.split() for line in out.splitlines()]
    assert ["id/train", "rows", "95", "90"] in lines
    assert ["id/train", "checksum", "other"] in [line[:3] for line in lines]
    assert ["numpy", "1.0"] in [line[:2] for line in lines]
    assert "config: the same" in out

    options = ("detectors.1.covariance=oas", "evaluate.baselines=[]", "resources.workers=1")
    ended = cli("run", job, *(word for option in options for word in ("--set", option)))
    assert ended.code == 0
    said = json.loads(cli("compare", run, run.parent, "--json").out)
    differs = {one["key"]: (one["before"], one["after"]) for one in said["differs"]}
    assert differs == {
        "mahalanobis(…).covariance": ("pinvh", "oas"),
        "evaluate.baselines": (["plain"], []),
        "resources.workers": (2, 1),
    }
    assert said["only"]["detectors of A"] == ["plain"]
    compared = {one["detector"] for one in said["numbers"]}
    assert compared == {"msp", "mahalanobis(…)", "plain", None}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("auroc", "expected METRIC<POINTS or METRIC>POINTS, such as 'auroc<-0.5'"),
        ("auroc<=1", "expected METRIC<POINTS"),
        ("auroc<0.5", "fails a run in which nothing has changed"),
        ("fpr95>-1", "write 'fpr95>1'"),
    ],
)
def test_rules_that_say_nothing_are_refused(rule, words):
    with pytest.raises(ConfigError, match="--fail-if") as refused:
        rule_of(rule)
    assert words in str(refused.value)


def test_mistakes_end_with_their_exit_code(cli, run, tmp_path):
    code, out, err = cli("compare", run, run, "--fail-if", "aurocc<-1")
    assert (code, out) == (2, "")
    assert "did you mean 'auroc'?" in err
    code, _, err = cli("compare", run, tmp_path / "nowhere")
    assert code == 4
    assert "no such file; expected the results.json of a finished run" in err
