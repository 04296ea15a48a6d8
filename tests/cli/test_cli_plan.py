"""``featfold plan``: before anything is read, and before there is anything to read."""

import json

import pytest

from pipeline.plan import human

DECLARED = """\
name: vit
store: none.zarr
declare:
  id/train:
    rows: 50000
    classes: 1000
    arrays:
      features: {{shape: [49, 1024], dtype: float32}}
      logits: {{shape: [1000]}}
detectors: [msp, mahalanobis, kl_matching, she]
resources: {{cache: {cache}}}
"""
ROW_NBYTES = 49 * 1024 * 4 + 1000 * 4 + 8


@pytest.fixture
def declared(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "vit.yaml"
    path.write_text(DECLARED.format(cache=cache))
    return path


def test_a_split_that_does_not_exist_is_planned(cli, declared):
    code, out, _ = cli("plan", declared)
    assert code == 0
    assert f"reads {human(50000 * ROW_NBYTES)}" in out
    for words in ("fit-pass1", "ClassMoments", "state", "projected", "per worker", "kl_matching"):
        assert words in out
    assert "fit-pass2" not in out
    assert list(declared.parent.iterdir()) == [declared]


def test_a_plan_over_budget_is_shown_and_refused(cli, declared):
    code, out, err = cli("plan", declared, "--memory", "100MiB")
    assert code == 3
    assert "fit-pass1" in out
    assert "refused before reading" in err
    assert "worst statistic: ClassMoments" in err
    assert "asked for by mahalanobis" in err
    assert "--memory" in err


def test_json_is_one_object_whether_refused_or_not(cli, declared):
    code, out, err = cli("plan", declared, "--json")
    plan = json.loads(out)
    assert (code, plan["refused"]) == (0, None)
    assert plan["passes"][0]["nbytes"] == 50000 * ROW_NBYTES
    assert "fit-pass1" in err
    code, out, _ = cli("plan", declared, "--json", "--memory", "100MiB")
    plan = json.loads(out)
    assert code == 3
    assert plan["passes"][0]["projected_nbytes"] > plan["allowed_nbytes"] == 100 * 2**20
    assert plan["refused"].startswith("refused before reading")


def test_options_override_the_job(cli, declared):
    code, out, _ = cli(
        "plan", declared, "--workers", "3", "--cluster", "threads", "--memory", "2GiB",
        "--set", "detectors.0=energy", "--set", "detectors=[energy]", "--cache", declared.parent,
    )  # fmt: skip
    assert code == 0
    assert "3 threads" in out
    assert "mahalanobis" not in out
    code, _, err = cli("plan", declared, "--workers", "none")
    assert code == 2
    assert "command line resources.workers: expected a number of workers, or auto" in err


def test_a_store_is_planned_over_its_splits(cli, job):
    code, out, _ = cli("plan", job)
    assert code == 0
    assert "id/train: features, labels" in out
    assert "ood/far/b" in out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("store=other.zarr", "there is no store other.zarr"),
        ("fit.split=id/val", "no split 'id/val'"),
        ("evaluate.near=[ood/near/c]", "no split 'ood/near/c'"),
        ("evaluate.baselines=[plane]", "plane"),
    ],
)
def test_what_is_missing_ends_with_4(cli, job, change, words):
    code, _, err = cli("plan", job, "--set", change)
    assert code == 4
    assert words in err
