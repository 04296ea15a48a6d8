"""``featfold init``: whatever there is to begin with, the job that is written can be planned."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline import config
from pipeline.chunk import ArraySpec
from pipeline.store import Store

K = 3
LABELS = {"labels": ArraySpec((), "int64")}


def write(store, name, specs, rows=12, blocks=None):
    rng = np.random.default_rng(0)
    writer = store.create_split(name, specs, classes=K, rows=rows, block_nbytes=1, chunk_nbytes=1)
    for block in writer.blocks[:blocks]:
        n = block.stop - block.start
        writer.write(
            block.index,
            {
                a: rng.integers(0, K, n) if a == "labels" else rng.random((n, *s.shape), "f4")
                for a, s in specs.items()
            },
        )


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_template_is_planned_as_it_is(cli):
    assert cli("init").code == 0
    planned = cli("plan", "job.yaml")
    assert (planned.code, "fit-pass1" in planned.out) == (0, True)
    written = config.load("job.yaml")
    assert (written.name, len(written.sources)) == ("job", 3)


def test_a_job_over_a_store_runs_on_all_that_is_there(cli, job):
    code, out, _ = cli("init", "new.yaml", "--store", "feats.zarr", "--json")
    assert code == 0
    assert json.loads(out) == {
        "job": "new.yaml", "splits": ["id/train", "id/test", "ood/near/a", "ood/far/b"],
        "left_out": {},
    }  # fmt: skip
    written = config.load("new.yaml")
    assert {"msp", "mahalanobis", "knn", "vim"} <= set(written.detectors)
    assert (written.evaluate.near, written.evaluate.far) == (("ood/near/a",), ("ood/far/b",))
    ended = cli("run", "new.yaml", "--json", "--set", "detectors=[msp, vim]")
    assert {row["ood"] for row in json.loads(ended.out)["scores"]} == {"ood/near/a", "ood/far/b"}


def test_features_of_another_name_are_named(cli):
    specs = {"tokens": ArraySpec((4, 8), "float32", "TD"), "logits": ArraySpec((K,), "float32")}
    write(Store.create("s.zarr"), "id/train", specs | LABELS)
    assert cli("init", "--store", "s.zarr").code == 0
    entries = {entry.name: entry.options for entry in config.load("job.yaml").entries}
    assert (entries["knn"], entries["msp"]) == ({"field": "tokens"}, {})
    assert cli("plan", "job.yaml").code == 0


def test_what_the_arrays_do_not_suffice_for_is_left_out_with_the_reason(cli):
    write(Store.create("s.zarr"), "id/train", {"logits": ArraySpec((K,), "float32"), **LABELS})
    assert cli("init", "--store", "s.zarr").code == 0
    entries = {entry.name for entry in config.load("job.yaml").entries}
    assert "msp" in entries
    assert "mahalanobis" not in entries
    assert "# - mahalanobis: split id/train has no array 'features'" in Path("job.yaml").read_text()
    assert cli("plan", "job.yaml").code == 0


def test_an_incomplete_split_is_left_out_with_the_reason(cli):
    store = Store.create("s.zarr")
    specs = {"features": ArraySpec((8,), "float32", "D"), **LABELS}
    write(store, "id/train", specs)
    write(store, "id/test", specs, blocks=1)
    code, out, _ = cli("init", "--store", "s.zarr", "--json")
    assert (code, list(json.loads(out)["left_out"])) == (0, ["id/test"])
    assert "# left out: id/test: " in Path("job.yaml").read_text()
    assert config.load("job.yaml").evaluate is None
    assert cli("plan", "job.yaml").code == 0


def test_folders_of_images_become_sources(cli, tmp_path):
    folders = {"train/cat": 3, "train/dog": 2, "test/dog": 2, "near/wolf": 2, "far/odd name": 1}
    for place, count in {**folders, "textures": 4, "train/cat/.hidden": 1}.items():
        folder = tmp_path / "photos" / place
        folder.mkdir(parents=True)
        for n in range(count):
            Image.new("RGB", (8, 8)).save(folder / f"{n}.png")
    assert cli("init", "--images", "photos").code == 0
    written = config.load("job.yaml")
    assert written.classes == 2
    rows = {"id/train": 5, "id/test": 2, "ood/near/wolf": 2}
    rows |= {"ood/far/odd_name": 1, "ood/far/textures": 4}
    assert {n: split.rows for n, split in written.declare.items()} == rows
    assert [source.split for source in written.sources] == list(rows)
    assert cli("plan", "job.yaml").code == 0


def test_a_folder_of_classes_is_fitted_on_and_not_evaluated(cli, tmp_path):
    for name in ("c1", "c2", "c10"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / "a.png")
    assert cli("init", "--images", "photos").code == 0
    written = config.load("job.yaml")
    assert (written.classes, written.evaluate) == (3, None)


def test_nothing_is_overwritten_unless_asked(cli, tmp_path):
    (tmp_path / "job.yaml").write_text("mine")
    code, _, err = cli("init")
    assert (code, "--force replaces it" in err) == (2, True)
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert cli("init", "--force").code == 0
    assert cli("plan", "job.yaml").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--store", "none.zarr"], 4, "none.zarr"),
        (["--store", "empty.zarr"], 4, "no split to fit on"),
        (["--images", "none"], 4, "is not there"),
        (["--images", "empty"], 4, "no sub-folder for each class"),
        (["--images", "empty", "--store", "empty.zarr"], 2, "one of them"),
    ],
)
def test_what_there_is_not_is_said(cli, tmp_path, arguments, code, words):
    (tmp_path / "empty").mkdir()
    Store.create("empty.zarr")
    ended = cli("init", *arguments)
    assert (ended.code, words in ended.err) == (code, True)
    assert not (tmp_path / "job.yaml").exists()
