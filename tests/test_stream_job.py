"""``featfold run --no-store``: the numbers of a run with a store, and no features on any disk."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import pipeline as ff
from pipeline.__main__ import main
from pipeline.fitted import Fitted

MADE = """
import time
from pathlib import Path

import numpy as np
import torch

from pipeline.extract import Batch
from pipeline.extract.model import Description


class Rows:
    def __init__(self, name, rows, ood=False, fails=-1):
        self.name, self.rows, self.ood, self.fails = name, rows, ood, fails

    def __len__(self):
        return self.rows

    def read(self, start, stop):
        while Path("wait").exists() and start > self.rows // 2:
            Path("waiting").touch()
            time.sleep(0.02)
        if start <= self.fails < stop:
            raise OSError("no such image")
        ids = np.arange(start, stop)
        random = np.random.default_rng(len(self.name))
        inputs = random.standard_normal((self.rows, 5, 8))[start:stop]
        without = self.ood | (self.name == "tr") & (ids % 11 == 3)
        labels = np.where(without, -1, ids % 4)
        inputs = inputs + 6 * np.eye(4, 8)[labels][:, None] + 9 * self.ood
        return Batch(inputs.astype("float32"), labels.astype("int64"), ids)


class Model(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dtype = torch.nn.Linear(8, 8), getattr(torch, dtype)
        self.description = Description(layouts={"features": "TD"})

    def forward(self, x):
        tokens = self.layer(x) + x
        return {"features": tokens.to(self.dtype), "logits": tokens.mean(1)[:, :4]}


def rows(**options):
    return Rows(**options)


def model(dtype="float32"):
    return Model(dtype)
"""
JOB = """\
name: made
store: made.zarr
classes: 4
block: 12KiB
model: {{import: "made_for_streams:model", dtype: {dtype}}}
sources:
  - {{split: id/train, data: {{import: "made_for_streams:rows", name: tr, rows: 230{more}}}}}
  - {{split: id/val, data: {{import: "made_for_streams:rows", name: val, rows: 70}}}}
  - {{split: id/test, data: {{import: "made_for_streams:rows", name: test, rows: 90}}}}
  - {{split: ood/far/f, data: {{import: "made_for_streams:rows", name: f, rows: 60, ood: true}}}}
detectors: [{detectors}]
evaluate: {{far: [ood/far/f]}}
resources: {{cluster: threads, workers: 2, cache: {cache}}}
"""
ONCE = (
    "msp", "mahalanobis", "she", "{name: mahalanobis, pool: tokens, id: tokens}", "knn",
    "{name: kl_matching, fit_split: val}",
)  # fmt: skip


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return what writes a job; its module and its runs are in a folder of their own."""
    (tmp_path / "made_for_streams.py").write_text(textwrap.dedent(MADE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(*detectors, dtype="float32", more="", batch=32):
        path = tmp_path / "job.yaml"
        text = JOB.format(
            dtype=dtype, more=more, detectors=", ".join(detectors), cache=tmp_path / "cache"
        )
        path.write_text(text)
        return path

    yield write
    sys.modules.pop("made_for_streams", None)


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_numbers_of_a_run_with_a_store_and_nothing_of_features_on_disk(job, tmp_path, dtype):
    path = job(*ONCE, dtype=dtype)
    before = files_of(tmp_path)
    streamed = ff.run(path, stored=False)
    made = {name for name in files_of(tmp_path) - before if "__pycache__" not in name}
    assert all(name.startswith(("runs/", "cache/")) for name in made)
    assert not any("partials" in name or "feature" in name for name in made)
    assert not (tmp_path / "made.zarr").exists()
    stored = ff.run(path)
    assert (tmp_path / "made.zarr").exists()
    for name, fitted in Fitted.load(stored.directory / "detectors").items():
        found = Fitted.load(streamed.directory / "detectors")[name]
        assert found.schema == fitted.schema
        assert found.rows == fitted.rows
        assert found.source == fitted.source
        assert found.scorer == fitted.scorer
    for file in sorted((stored.directory / "scores").rglob("*.npy")):
        other = streamed.directory / file.relative_to(stored.directory)
        assert np.array_equal(np.load(file), np.load(other)), file
    for key in ("scores", "classification", "data"):
        assert streamed.results[key] == stored.results[key]
    assert streamed.results["verdict"]["passes"] == 2
    ours, theirs = (done.results["provenance"] for done in (streamed, stored))
    assert ours["store"] == "none: --no-store"
    assert ours["checksums"] == theirs["checksums"]
    if dtype == "float32":  # a store that is there is not looked at
        again = ff.run(path, stored=False)
        assert again.results["scores"] == stored.results["scores"]


def test_detectors_that_need_a_second_pass_are_refused_before_the_stream_starts(
    job, tmp_path, capsys
):
    path = job("msp", "mahalanobis", "openmax", "temperature", more=", fails: 40")
    assert main(["run", str(path), "--no-store"]) == 2
    said = capsys.readouterr().err
    assert "id/train is a stream, which is read once" in said
    assert "openmax, temperature would need a second pass" in " ".join(said.split())
    assert "one pass is enough for msp, mahalanobis" in " ".join(said.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--blocks", "1/2"], 2, "nothing is kept that --blocks"),
        (["--pin"], 2, "nothing is kept that --blocks"),
        (["--cluster", "local"], 2, "in the process of its model"),
        (["--set", "sources=[]"], 2, "names no sources"),
        (["--memory", "1MiB"], 3, "refused before reading"),
    ],
)
def test_what_cannot_be_streamed_is_refused(job, tmp_path, capsys, arguments, code, message):
    path = job("mahalanobis", more=", fails: 40")
    assert main(["run", str(path), "--no-store", *arguments]) == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()


def test_a_source_that_fails_is_named_with_its_rows_and_leaves_no_run(job, tmp_path, capsys):
    path = job("mahalanobis", more=", fails: 40")
    assert main(["run", str(path), "--no-store"]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "split id/train rows 32-64: source 'tr' raised OSError: no such image" in said
    assert not list((tmp_path / "runs").rglob("results.json"))


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_ends_with_nothing_left(job, tmp_path, sent, code):
    path = job("mahalanobis")
    (tmp_path / "wait").touch()
    root = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", str(path), "--no-store", "--no-progress"],
        cwd=tmp_path, env={"PYTHONPATH": f"{root}:{tmp_path}", "PATH": "", "HOME": str(tmp_path)},
        stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs these may not
    ) as process:  # fmt: skip
        while not (tmp_path / "waiting").exists():  # amid the rows, behind all imports
            time.sleep(0.02)
            assert process.poll() is None, process.stderr.read()
        process.send_signal(sent)
        if sent == signal.SIGTERM:
            (tmp_path / "wait").unlink()
        said = process.stderr.read()
    assert process.returncode == code, said
    assert not list((tmp_path / "runs").rglob("results.json"))
    assert "nothing is kept" in said
    assert "blocks are kept" not in said


def test_json_is_the_same(job, capsys):
    assert main(["run", str(job("msp", "she")), "--no-store", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "runs on 1 thread (that of the models, with 1 more that fold)" in err
    found = json.loads(out)
    assert {score["detector"] for score in found["scores"]} == {"msp", "she"}


def test_it_needs_no_store_in_the_job(job, capsys, tmp_path):
    path = job("msp")
    path.write_text(path.read_text().replace("store: made.zarr\n", ""))
    assert main(["run", str(path)]) == 2
    assert "neither is given" in (said := " ".join(capsys.readouterr().err.split()))
    assert "run --no-store alone needs none" in said
    assert main(["plan", str(path)]) == main(["extract", str(path)]) == 2
    capsys.readouterr()
    assert main(["run", str(path), "--no-store", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"][0]["detector"] == "msp"
    assert not list(tmp_path.glob("*.zarr"))
    assert json.loads(next((tmp_path / "runs").rglob("results.json")).read_text())
