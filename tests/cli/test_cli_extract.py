"""``featfold extract``: a store is filled, mended and shared out, and mistakes are named."""

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from pipeline.store import Store

MADE = """\
import time
from pathlib import Path

import numpy as np
import torch

from pipeline.extract import Batch
from pipeline.extract.model import Description


class Rows:
    def __init__(self, name, rows, ood=False):
        self.name, self.rows, self.ood = name, rows, ood

    def __len__(self):
        return self.rows

    def read(self, start, stop):
        while Path("wait").exists() and start >= 32:
            time.sleep(0.02)
        ids = np.arange(start, stop)
        values = np.random.default_rng([len(self.name), start]).standard_normal((len(ids), 8))
        labels = np.full(len(ids), -1) if self.ood else ids % 4
        return Batch(values.astype("float32"), labels.astype("int64"), ids)


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 100)
        self.description = Description({"model": "wide"}, {"features": "TD"})

    def forward(self, x):
        return self.layer(x)[:, None].expand(-1, 5_000, -1)


def rows(**options):
    return Rows(**options)


def model():
    return Wide()
"""
JOB = """\
name: made
store: made.zarr
classes: 4
block: 17MB
model: {import: "made:model"}
sources:
  - {split: id/train, data: {import: "made:rows", name: train, rows: 40}, batch: 8}
  - {split: ood/far/f, data: {import: "made:rows", name: far, rows: 9, ood: on}, batch: auto}
detectors: [mahalanobis]
"""


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A job in the current directory: blocks of 8 rows, of 2 MB each."""
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("made", None)
    return tmp_path


def features(store, name="id/train"):
    split = Store.open(store).split(name, verify=True)
    return np.concatenate([c["features"].copy() for b in split.blocks
                           for c in split.read(b, {"features"})])  # fmt: skip


def test_a_store_is_filled_then_there_is_nothing_to_do(cli, made):
    code, out, err = cli("extract", "job.yaml", "--json")
    assert code == 0, err
    done = json.loads(out)
    assert done["changed"] is True
    train, far = done["splits"]
    assert (train["split"], train["rows"], train["batch_rows"]) == ("id/train", 40, 8)
    assert train["written"] == train["blocks"] == 5
    assert far["batch_rows"] == 32
    assert "extract id/train: 40 rows in" in err
    assert "id/train: 40 rows, 5 of 5 blocks written" in err
    store = Store.open("made.zarr")
    assert store.splits() == ("id/train", "ood/far/f")
    assert store.attributes("ood/far/f")["batch_rows"] == 32
    assert not (made / "runs").exists()

    code, out, _ = cli("extract", "job.yaml", "--json")
    assert (code, json.loads(out)) == (0, {"store": "made.zarr", "splits": [], "changed": False})


def test_damage_is_mended_with_resume_alone(cli, made):
    cli("extract", "job.yaml", "-q")
    before = features("made.zarr")
    (path,) = (p for p in (made / "made.zarr/id/train/features/c/3").rglob("*") if p.is_file())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert cli("extract", "job.yaml").out.strip() == "nothing to do: all splits are there"
    code, out, err = cli("extract", "job.yaml", "--resume", "--split", "id/train")
    assert code == 0
    assert "block 3 (rows 24-32) is damaged and written again" in err
    assert out.strip() == "id/train: 40 rows, 0 of 5 blocks written, 1 written again"
    np.testing.assert_array_equal(features("made.zarr"), before)


def test_shares_are_filled_one_by_one(cli, made):
    code, out, _ = cli("extract", "job.yaml", "--split", "id/train", "--blocks", "1/2")
    assert code == 0
    assert "3 of 5 blocks written; share 1/2 is done, 2 blocks are left to others" in out
    code, out, _ = cli("extract", "job.yaml", "--split", "id/train", "--blocks", "2/2", "--json")
    assert json.loads(out)["splits"][0]["missing"] == 0
    assert len(features("made.zarr")) == 40


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_extraction_is_gone_on_with_bit_for_bit(cli, made, environment, how):
    (made / "wait").touch()
    command = [sys.executable, "-m", "pipeline", "extract", "job.yaml", "--split", "id/train"]
    with subprocess.Popen(command, cwd=made, env=environment, stderr=subprocess.DEVNULL) as process:
        record = made / "made.zarr/id/train/manifest/block-00003/zarr.json"
        while not record.exists() and process.poll() is None:
            time.sleep(0.02)
        code, _, err = cli("extract", "job.yaml", "--split", "id/train")
        assert code == 75
        assert "held by process" in err
        process.send_signal(how)
    assert process.returncode in (-signal.SIGKILL, 143)
    (made / "wait").unlink()
    code, out, _ = cli("extract", "job.yaml", "--split", "id/train", "--json")
    assert code == 0
    assert json.loads(out)["splits"][0]["written"] == 1
    resumed = features("made.zarr")
    cli("extract", "job.yaml", "--set", "store=whole.zarr", "-q")
    np.testing.assert_array_equal(resumed, features("whole.zarr"))


def test_workers_of_a_job_write_the_same(cli, made):
    far = ["extract", "job.yaml", "--split", "ood/far/f"]
    code, out, err = cli(*far, "--workers", "2")
    assert code == 0, err
    assert "2 of 2 blocks written" in out
    cli(*far, "--set", "store=whole.zarr", "-q")
    found = [features(store, "ood/far/f") for store in ("made.zarr", "whole.zarr")]
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["none.yaml"], 4, "no such file"),
        (["job.yaml", "--split", "id/tran"], 2, "'id/tran' has no source in this job; those with"),
        (["job.yaml", "--blocks", "3/2"], 2, "expected I/N with I from 1 to N"),
        (["job.yaml", "--workers", "0"], 2, "0 is not in the range x>=1"),
        (["job.yaml", "--set", "sources.0.batch=none"], 2, "a number of rows, or auto, got 'none'"),
        (["job.yaml", "--set", "sources=[]"], 2, "has no sources, which say what to extract"),
        (["job.yaml", "--set", "sources.1.data={folder: none}"], 4, "none is not there"),
        (["job.yaml", "--set", "model={import: 'made:modle'}"], 2, "did you mean 'model'?"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(cli, made, arguments, code, words):
    ended = cli("extract", *arguments)
    assert (ended.code, ended.out) == (code, "")
    assert words in re.sub(r"\s+", " ", ended.err)
    assert not (made / "made.zarr").exists()
