"""``featfold status``: running, killed, stopped, refused and finished runs are told apart."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline import config, events
from pipeline.chunk import ArraySpec
from pipeline.store import Store

K, ROWS = 3, 24
# A run that takes its time after every block.
SLOW = """
import sys, time
import pipeline.job as job
from pipeline.__main__ import main

advance = job.Journal.advance
def slowly(self, amount):
    advance(self, amount)
    time.sleep(0.5)
job.Journal.advance = slowly
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def slow_job(tmp_path, cache):
    store = Store.create(tmp_path / "s.zarr")
    specs = {"features": ArraySpec((4,), "float32", "D"), "labels": ArraySpec((), "int64")}
    writer = store.create_split(
        "id/train", specs, classes=K, rows=ROWS, block_nbytes=1, chunk_nbytes=1
    )
    for block in writer.blocks:
        n = block.stop - block.start
        x = np.random.default_rng(block.index).random((n, 4), "f4")
        writer.write(block.index, {"features": x, "labels": np.full(n, block.index % K)})
    path = tmp_path / "slow.yaml"
    path.write_text(
        f"name: slow\nstore: {store.path}\ndetectors: [mahalanobis]\n"
        f"resources: {{cluster: threads, workers: 1, cache: {tmp_path / 'own'}}}\n"
        f"report: {{directory: {tmp_path / 'runs'}}}\n"
    )
    return path


@pytest.fixture
def started(tmp_path, slow_job, environment):
    """A run in a process of its own that has read some blocks, and not all."""
    script = tmp_path / "slowly.py"
    script.write_text(SLOW)
    made = subprocess.Popen(
        [sys.executable, str(script), "run", str(slow_job), "--no-progress"], env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    )  # fmt: skip
    journal = tmp_path / "runs" / "slow" / ".run.events.jsonl"
    end = time.monotonic() + 100
    while not (journal.exists() and '"advance"' in journal.read_text()):
        assert made.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    yield made
    made.kill()
    made.wait()


def looked(cli, place):
    ended = cli("status", place, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["runs"]


def test_a_run_on_its_way_and_the_same_once_killed(cli, slow_job, started, tmp_path):
    (one,) = looked(cli, tmp_path / "runs" / "slow")
    assert (one["state"], one["pid"], one["exit_code"]) == ("running", started.pid, None)
    assert one["stage"] == "fit-pass1"
    assert 0 < one["blocks_done"] < one["blocks"]
    assert 0 < one["done"] < one["total"]
    assert one["rate"] > 0
    assert one["seconds_left"] > 0
    text = cli("status", slow_job).out
    assert "runs/slow: running after" in text.replace("\n", "")
    assert f"of {one['blocks']} blocks" in text
    assert " left" in text
    started.kill()
    started.wait()
    (one,) = looked(cli, tmp_path / "runs")
    assert (one["state"], one["exit_code"], one["seconds_left"]) == ("killed", None, None)
    assert cli("run", slow_job, "-q").code == 0
    (one,) = looked(cli, slow_job)
    assert (one["state"], one["exit_code"]) == ("done", 0)


def test_a_run_that_was_asked_to_stop_says_so(cli, started, tmp_path):
    os.kill(started.pid, signal.SIGTERM)
    assert started.wait(100) == 143
    (one,) = looked(cli, tmp_path / "runs" / "slow")
    assert (one["state"], one["exit_code"]) == ("stopped", 143)
    assert "run the same again" in one["error"]


def test_a_finished_run_has_its_events_and_a_job_that_runs_again(cli, job, tmp_path):
    own = f"resources.cache={tmp_path / 'own'}"
    directory = Path(json.loads(cli("run", job, "--json", "--set", own).out)["directory"])
    told = list(events.read(directory / "events.jsonl"))
    assert [told[0]["kind"], told[-1]["kind"], told[-1]["exit_code"]] == ["run", "ended", 0]
    begun = [e["stage"] for e in told if e["kind"] == "begin"]
    assert begun == [e for e in begun if e.startswith(("fit-pass", "score"))] != []
    ends = [e for e in told if e["kind"] == "end"]
    totals = [(e["total"], e["blocks"]) for e in told if e["kind"] == "begin"]
    assert [(e["done"], e["blocks"]) for e in ends] == totals
    assert looked(cli, directory)[0]["state"] == "done"
    again = config.load(directory / "job.yaml")
    assert again.resolved() == config.load(job, [own]).resolved()
    assert cli("run", directory / "job.yaml", "-q").code == 0


def test_a_run_that_fails_midway_is_failed_and_the_one_before_still_there(cli, job, monkeypatch):
    assert cli("run", job, "-q").code == 0
    monkeypatch.setattr("pipeline.fitted.Fitted.save", lambda *_: 1 / 0)
    assert cli("run", job, "-q").code == 1
    failed, done = looked(cli, job)
    assert (failed["state"], failed["exit_code"], done["state"]) == ("failed", 1, "done")
    assert "division by zero" in failed["error"]
    monkeypatch.undo()
    assert cli("run", job, "-q").code == 0
    assert [one["state"] for one in looked(cli, job)] == ["done"]


def test_a_line_that_a_kill_cut_is_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"time": "2026-01-01T00:00:00+00:00", "kind": "run"}\n{"time": "20')
    assert [event["kind"] for event in events.read(path)] == ["run"]


def test_where_nothing_ran_is_said(cli, job, tmp_path):
    for place in (job, tmp_path / "none", tmp_path):
        code, _, err = cli("status", place)
        assert (code, "no run here has left events.jsonl" in err) == (4, True)
