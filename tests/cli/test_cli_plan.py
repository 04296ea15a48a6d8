"""``featfold plan``: before anything is read, and before there is anything to read."""

import json

import numpy as np
import pytest

from pipeline.machine import rss_nbytes
from pipeline.plan import human
from pipeline.store import Store, reader

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


def test_hours_and_disk_of_a_shape_that_nobody_has_stored(cli, tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shape = "1280000x49x1024:float32:1000"
    code, out, _ = cli("plan", "--synthetic", shape, "--cluster", "local", "--workers", "2",
                       "--cache", cache)  # fmt: skip
    assert code == 0
    assert f"reads {human(1_280_000 * ROW_NBYTES)}" in out
    for words in ("min to", " tasks", "disk: partials", "pooled copies 9.77 GiB", "client: "):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80
    assert not list(tmp_path.iterdir())


def test_a_store_of_32_terabytes_has_at_most_ten_thousand_tasks_a_pass(cli, cache):
    code, out, _ = cli("plan", "--synthetic", "32TBx49x1024", "--json", "--cluster", "local",
                       "--workers", "2", "--cache", cache)  # fmt: skip
    plan = json.loads(out)
    (only,) = plan["passes"]
    assert code == 0
    assert only["nbytes"] > 32e12
    assert only["blocks"] > 60_000
    assert 5_000 < only["tasks"] <= 10_000
    assert only["copies_nbytes"] == 32 * 10**12 // (49 * 1024 * 4) * 1024 * 8
    assert 9_000 * 39 * 2**20 < only["partials_nbytes"] < 10_000 * 40 * 2**20
    least, most = only["seconds_expected"]
    assert 0 < least < most
    ours = plan["client"]["projected_nbytes"] - rss_nbytes()  # beside what this process holds now
    assert ours < 2**30


def test_a_job_is_planned_for_a_shape(cli, job):
    code, out, _ = cli("plan", job, "--synthetic", "4000x512:float16:10", "--set",
                       "detectors=[mahalanobis]")  # fmt: skip
    assert code == 0
    assert f"reads {human(4000 * (512 * 2 + 8))}" in out
    assert "ood/far/b" not in out


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("", "expected one or two lengths"),
        ("1e6x49x1024", "the rows: '1e6' is not a whole number"),
        ("1KBx49x1024", "hold less than one row"),
        ("-5x49x1024", "the rows: '-5' is not a whole number"),
        ("99999999999999999999x49x1024", "are not planned"),
        ("100x49x1024:float32:99999999999999999999", "expected ROWSx"),
        ("50000", "expected one or two lengths"),
        ("50000x49x1024x2", "expected one or two lengths"),
        ("50000x49x1024:float32:1000:x", "expected one or two lengths"),
        ("50000x49x1024:float33", "float33"),
        ("0x49x1024", "at least one row"),
        ("manyx49x1024", "many"),
        ("5x0x1024", "length >= 1"),
        ("5x49x1024:float32:-1", "-1"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(cli, shape, words):
    code, _, err = cli("plan", "--synthetic", shape)
    assert code == 2
    assert words in err
    assert "50000x49x1024:float32:1000" in err


def test_plan_needs_a_job_or_a_shape(cli):
    code, _, err = cli("plan")
    assert code == 2
    assert "--synthetic" in err


VIM = ("--set", "detectors=[vim]", "--set", "head=lda")


def test_a_pinned_plan_counts_exactly_what_the_pinned_run_reads(cli, job, tmp_path):
    cache = ("--cache", tmp_path / "own")
    assert cli("run", job, *VIM, *cache, "--set", "evaluate=null").code == 0
    rng = np.random.default_rng(1)
    new = {"features": rng.standard_normal((9, 3, 8)).astype("f4"), "labels": np.arange(9) % 4,
           "plain": rng.random(9)}  # fmt: skip
    Store.open(tmp_path / "feats.zarr").writer("id/train").append(new)

    def blocks(*more):
        _, out, _ = cli("plan", job, *VIM, *cache, "--set", "evaluate=null", "--json", *more)
        return [(p["blocks_to_read"], p["blocks"]) for p in json.loads(out)["passes"]]

    assert blocks() == [(1, 2), (2, 2)]  # the second pass depends on what the first will find
    assert blocks("--pin") == [(1, 2), (1, 2)]
    reader.reset_reads()
    assert cli("run", job, *VIM, *cache, "--set", "evaluate=null", "--pin").code == 0
    assert {chunk for _, _, chunk in reader.READS} == {1}
    assert blocks("--pin") == [(0, 2), (0, 2)]
    code, _, err = cli("plan", job, *VIM, "--pin", tmp_path / "nowhere")
    assert code == 4
    assert "nowhere" in err


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


def test_a_head_of_a_model_that_was_not_run_is_planned(cli, declared):
    for detector in ("vim", "residual", "mcm", "energy"):
        options = ("--set", "head=model", "--set", f"detectors=[{detector}]")
        code, _, err = cli("plan", declared, *options)
        assert code == 0, err
