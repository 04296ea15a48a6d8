"""Splits of a job whose weights, data or code have changed since they were made."""

import os
import shutil
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from pipeline import provenance
from pipeline.errors import ConfigError
from pipeline.fill import fill
from pipeline.job import Silent
from pipeline.store import Store, disk

JOB = """\
name: stale
store: feats.zarr
classes: 2
model:
  import: "pipeline.extract.models.module:load"
  factory: "net_of_stale:net"
  weights: net.safetensors
  taps: {features: "1"}
sources:
  - split: id/train
    data: {folder: images, size: 4, crop: 4}
  - {split: ood/far/x, data: {import: "net_of_stale:rows", path: rows.npy}}
detectors: [knn]
"""
CODE = """
import numpy as np
import torch
from pipeline.extract import Batch

class Pixels(torch.nn.Module):
    def forward(self, x):
        return x.float().flatten(1)

def net():
    return torch.nn.Sequential(Pixels(), torch.nn.Linear(48, 5, bias=False))

class Rows:
    def __init__(self, path):
        self.name, self.rows = path, np.load(path)
    def __len__(self):
        return len(self.rows)
    def read(self, start, stop):
        return Batch(self.rows[start:stop], np.full(stop - start, -1), np.arange(start, stop))

def rows(path):
    return Rows(path)
"""


class Told(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job in the current folder whose splits are there, and what has it filled again."""
    from pipeline import config

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("net_of_stale", None)
    (tmp_path / "net_of_stale.py").write_text(textwrap.dedent(CODE))
    for place in range(4):
        folder = tmp_path / "images" / f"c{place % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (60 * place, 9, 9)).save(folder / f"{place}.png")
    np.save("rows.npy", np.zeros((3, 4, 4, 3), "float32"))
    weigh(1)
    (tmp_path / "job.yaml").write_text(JOB)

    def again(**options):
        told = Told()
        return fill(config.load("job.yaml"), told, **options), told.said

    assert [one.written for one in again()[0]] == [1, 1]
    yield again
    sys.modules.pop("net_of_stale", None)


def weigh(value):
    save_file({"1.weight": np.full((5, 48), value, "float32")}, "net.safetensors")


def test_what_has_not_changed_is_used_without_a_word(job):
    assert job() == ([], [])


def test_another_checkpoint_of_one_size_is_refused(job):
    weigh(2)
    with pytest.raises(ConfigError, match=r"id/train is stale.*net\.safetensors \(other content"):
        job()
    with pytest.raises(ConfigError, match="stale"):
        job(verify=True)
    weigh(1)  # the same content at another time
    assert job() == ([], [])


def test_an_image_more_or_less_or_of_another_size_is_refused(job):
    Image.new("RGB", (4, 4)).save("images/c1/new.png")
    with pytest.raises(ConfigError, match=r"data images \(4 files.* then, 5 files.*delete .*train"):
        job()
    os.unlink("images/c1/new.png")
    assert job() == ([], [])
    with open("images/c1/1.png", "ab") as file:
        file.write(b"0")
    with pytest.raises(ConfigError, match="data images"):
        job()


def test_data_of_another_time_and_code_are_said(job, tmp_path):
    os.utime("rows.npy", (1, 1))
    done, said = job()
    assert done == []
    assert len(said) == 1
    assert "ood/far/x: used as it is" in said[0]
    assert "data rows.npy" in said[0]
    code = tmp_path / "net_of_stale.py"
    code.write_text(code.read_text() + "\n")
    assert "code net_of_stale:rows" in job()[1][0]


def test_data_that_are_gone_are_not_missed(job):
    os.unlink("rows.npy")
    os.unlink("net.safetensors")
    assert job() == ([], [])


def test_splits_of_before_are_used_with_a_word(job, tmp_path):
    group = Store.open("feats.zarr").path / "id/train"
    said = disk.read_group(group)
    del said[provenance.MADE_OF]
    disk.write_group(group, said)
    done, said = job()
    assert done == []
    assert said == ["id/train: what it was made of was not recorded, so changes since are not "
                    "noticed"]  # fmt: skip
    assert [one.rewritten for one in job(verify=True)[0]] == [0, 0]


def test_an_extraction_that_was_stopped_goes_on_with_what_was_recorded(job):
    shutil.rmtree("feats.zarr/ood/far/x/manifest/block-00000")
    os.utime("rows.npy", (1, 1))
    done, said = job()
    assert [one.written for one in done] == [1]
    assert "data rows.npy" in said[0]
