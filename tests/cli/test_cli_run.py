"""``featfold run`` and ``report``: from a YAML file to a report, and what interrupts it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pipeline as ff

MADE = """\
import time
from pathlib import Path

import numpy as np
import torch

from pipeline.extract import Batch


class Rows:
    def __init__(self, name, rows, shift=0.0, ood=False):
        self.name, self.rows, self.shift, self.ood = name, rows, shift, ood

    def __len__(self):
        return self.rows

    def read(self, start, stop):
        while self.ood and Path("wait").exists():
            time.sleep(0.02)
        ids = np.arange(start, stop)
        noise = np.random.default_rng([len(self.name), start]).standard_normal((len(ids), 8))
        labels = np.full(len(ids), -1) if self.ood else ids % 4
        centres = 6 * np.eye(4, 8)[labels] + self.shift
        return Batch((noise + centres).astype("float32"), labels.astype("int64"), ids)


def rows(**options):
    return Rows(**options)


def model():
    return torch.nn.Identity()
"""
FROM_SOURCES = """\
name: made
store: made.zarr
classes: 4
model: {{import: "made:model"}}
sources:
  - {{split: id/train, data: {{import: "made:rows", name: train, rows: 80}}}}
  - {{split: id/test, data: {{import: "made:rows", name: test, rows: 40}}}}
  - {{split: ood/far/f, data: {{import: "made:rows", name: far, rows: 40, shift: 9, ood: on}}}}
detectors: [mahalanobis]
evaluate: {{far: [ood/far/f]}}
resources: {{cluster: threads, workers: 2, cache: {cache}}}
"""


def test_a_run_ends_with_the_table_the_report_and_the_verdict(cli, job):
    code, out, err = cli("run", job)
    assert code == 0
    assert "runs on 2 threads" in err
    assert "fit-pass1: " in err
    *table, report, verdict = out.strip().splitlines()
    rows = [line.split()[0] for line in table if line.strip()]
    assert {"msp", "mahalanobis(covariance=pinvh)", "plain"} <= set(rows)
    html = Path(report.removeprefix("report: "))
    assert html.name == "report.html"
    assert html.read_text().startswith("<!doctype html>")
    assert verdict.startswith("done in")
    assert "per worker" in verdict
    assert "projected" in verdict


def test_a_script_runs_the_file_and_every_id_keeps_its_scores(job):
    text = job.read_text()
    mine = "[{name: msp, id: a/b}, {name: energy, id: a_b}]"
    job.write_text(re.sub(r"detectors: .*", f"detectors: {mine}", text))
    done = ff.run(job)
    assert done.html.is_file()
    filed = [np.load(done.directory / f"scores/id/test/{name}.npy") for name in ("a%2Fb", "a_b")]
    assert not np.array_equal(*filed)


def test_quiet_and_json_are_for_scripts(cli, job):
    code, out, err = cli("run", job, "--json", "-q", "--no-progress")
    assert code == 0
    done = json.loads(out)
    far = {s["detector"]: s["metrics"] for s in done["scores"] if s["ood"] == "ood/far/b"}
    assert far["mahalanobis(covariance=pinvh)"]["auroc"]["value"] == 1
    assert done["memory"]["measured_nbytes"] > 0
    assert "runs on" not in err
    assert "fit-pass1" not in err


def test_a_run_without_evaluation_fits_and_reports(cli, job):
    code, out, err = cli("run", job, "--set", "evaluate=null")
    assert code == 0, err
    assert "report: " in out


def test_a_run_over_budget_ends_with_3_and_leaves_no_run(cli, job):
    code, out, err = cli("run", job, "--memory", "20MiB")
    assert (code, out) == (3, "")
    assert "refused before reading" in err
    assert not (job.parent / "runs").exists()


def test_a_report_is_made_again_from_its_results(cli, job):
    cli("run", job)
    (folder,) = (path.parent for path in job.parent.rglob("results.json"))
    before = (folder / "results.json").read_bytes()
    for name in ("report.html", "report.md", "results.csv"):
        (folder / name).unlink()
    for given in (folder, folder / "results.json", folder.parent):
        code, out, _ = cli("report", given)
        assert code == 0
        assert f"report: {folder / 'report.html'}" in out
        assert "mahalanobis(covariance=pinvh)" in out
    assert (folder / "results.json").read_bytes() == before
    assert (folder / "report.html").exists()
    assert (folder / "results.csv").exists()
    code, out, err = cli("report", folder, "--json")
    assert json.loads(out)["html"] == str(folder / "report.html")
    assert "mahalanobis" in err


@pytest.mark.parametrize(
    ("text", "words"), [(None, "no such file"), ("{", "not a JSON"), ("{}", "")]
)
def test_a_report_of_nothing_ends_with_4(cli, tmp_path, text, words):
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    code, out, err = cli("report", tmp_path)
    assert (code, out) == (4, "")
    assert words in err
    assert "results.json" in err


@pytest.fixture
def from_sources(tmp_path, cache):
    (tmp_path / "made.py").write_text(MADE)
    path = tmp_path / "job.yaml"
    path.write_text(FROM_SOURCES.format(cache=cache))
    return path


def heed_interrupts():
    """Let a child process see Ctrl-C: one that is started in the background would ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def interrupt(from_sources, environment):
    """Run the job, send a signal while the third split is extracted; return how it ended."""

    def send(number):
        folder = from_sources.parent
        (folder / "wait").touch()
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "run", "job.yaml"],
            cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=heed_interrupts,
        )  # fmt: skip
        said = ""
        while "extract id/test" not in said and process.poll() is None:
            said += process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        (folder / "wait").unlink()
        return process.returncode, out, said + err

    return send


def test_an_interrupted_run_goes_on_where_it_was(from_sources, interrupt, cli, monkeypatch):
    code, out, err = interrupt(signal.SIGINT)
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert "error: interrupted; committed blocks are kept" in err
    monkeypatch.chdir(from_sources.parent)
    monkeypatch.syspath_prepend(from_sources.parent)
    files = list(Path("made.zarr/id").rglob("c/0*"))
    kept = {path: path.stat().st_mtime_ns for path in files}
    assert kept
    again = cli("run", "job.yaml")
    assert again.code == 0, again.err
    assert "extract id/train" not in again.err
    assert "extract ood/far/f" in again.err
    assert "mahalanobis" in again.out
    assert kept == {path: path.stat().st_mtime_ns for path in kept}


def test_a_terminated_run_ends_with_143(interrupt):
    code, out, err = interrupt(signal.SIGTERM)
    assert (code, out) == (143, "")
    assert "Traceback" not in err


def test_ctrl_c_reaches_workers_too_and_nobody_complains(job, environment):
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", str(job), "--cluster", "local"],
        cwd=job.parent, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_interrupts,
    )  # fmt: skip
    said = ""
    while "dashboard: " not in said and process.poll() is None:
        said += process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), said + err
    assert "Traceback" not in err


def test_a_terminal_that_knows_no_arrows_gets_the_table(job, environment, shell):
    environment["PYTHONIOENCODING"] = "latin-1"
    ended = shell("run", job)
    assert ended.code == 0, ended.err
    assert "AUROC ?" in ended.out


def test_a_split_of_another_source_is_not_taken_for_it(from_sources, shell):
    assert shell("run", from_sources).code == 0
    again = shell("run", from_sources)
    assert again.code == 0
    assert "extract" not in again.err
    text = from_sources.read_text()
    from_sources.write_text(text.replace("rows: 40", "rows: 44", 1))
    assert from_sources.read_text() != text
    code, _, err = shell("run", from_sources)
    assert code == 2
    assert "was extracted from" in err
    assert "Traceback" not in err


def test_a_split_that_another_run_fills_ends_with_75(from_sources, shell):
    store = ff.Store.create(from_sources.parent / "made.zarr")
    with store.lock("id/train"):
        code, _, err = shell("run", from_sources)
    assert code == 75
    assert "id/train" in err
    assert "try again" in err


def test_a_cache_limit_below_everything_takes_nothing_from_the_run(cli, job, tmp_path):
    cache = tmp_path / "own"
    code, _, err = cli("run", job, "--cache", cache, "--cache-limit", "1kB")
    assert code == 0, err
    directory = tmp_path / "runs" / "small"
    latest = directory / (directory / "LATEST").read_text().strip()
    assert list((latest / "scores").rglob("*.npy"))
    assert sum(path.stat().st_size for path in cache.rglob("*.npz")) <= 1000
