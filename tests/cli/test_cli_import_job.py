"""A job whose sources are files: imported, fitted and evaluated by one command."""

import json

import numpy as np
import pytest

from pipeline.store import Store

K, D = 3, 6
RNG = np.random.default_rng(8)
JOB = """\
name: files
store: {folder}/s.zarr
classes: 3
detectors: [mahalanobis]
sources:
  - {{split: id/train, files: "{folder}/train_*.npz", map: {{feat: features, y: labels}}}}
  - split: id/test
    files: ["{folder}/test_0.npz", "{folder}/test_1.npz"]
    map: {{feat: features}}
    labels: y
    dtype: float16
  - {{split: ood/far/x, files: "features={folder}/far_*.npy", labels: false}}
evaluate: {{far: [ood/far/x]}}
resources: {{cluster: threads, workers: 1, cache: {cache}}}
report: {{directory: {folder}/runs}}
"""


@pytest.fixture
def job(tmp_path, cache):
    for name, rows in (("train", 60), ("test", 30)):
        for i in range(2):
            labels = np.arange(rows) % K
            features = (RNG.standard_normal((rows, D)) + 5 * np.eye(K, D)[labels]).astype("f4")
            np.savez(tmp_path / f"{name}_{i}.npz", feat=features, y=labels)
    np.save(tmp_path / "far_0.npy", (RNG.standard_normal((20, D)) + 30).astype("f4"))
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(folder=tmp_path, cache=cache))
    return path


def test_files_are_imported_once_and_used(cli, job, tmp_path):
    code, out, err = cli("run", job, "--json")
    assert code == 0, err
    assert "import id/train" in err
    (row,) = json.loads(out)["scores"]
    assert row["metrics"]["auroc"]["value"] == 1
    store = Store.open(tmp_path / "s.zarr")
    assert store.split("id/train").schema.rows == 120
    assert store.split("id/test").schema.arrays["features"].dtype == "float16"
    assert set(store.split("ood/far/x").schema.arrays) == {"features"}
    for file in tmp_path.glob("*.np?"):
        file.unlink()
    code, _, err = cli("run", job)
    assert code == 0, err
    assert "import id/train" not in err


def test_damage_is_mended_by_extract_resume(cli, job, tmp_path):
    assert cli("extract", job).code == 0
    chunk = tmp_path / "s.zarr/id/train/features/c/0/0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:50] + b"!" + whole[51:])
    code, out, err = cli("extract", job, "--resume", "--split", "id/train")
    assert code == 0, err
    assert chunk.read_bytes() == whole
    assert "1 written again" in out


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("map: {feat: features, y: labels}", "map: {feet: features}"), 2, "did you mean 'feat'?"),
        (("labels: false}", "model: {import: 'a:b'}}"), 2, "does not go with files"),
        (("labels: false}", "batch: 3}"), 2, "sources[2].batch: does not go with files"),
        (("labels: false}", "data: {import: 'a:b'}}"), 2, "data are given as well"),
        (("labels: false}", "lables: false}"), 2, "did you mean 'labels'?"),
        (("far_*.npy", "fur_*.npy"), 4, "no file matches"),
        (("classes: 3", "classes: 2"), 4, "labels must be below 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(cli, job, change, code, message):
    text = job.read_text()
    assert change[0] in text
    job.write_text(text.replace(*change))
    ended = cli("extract", job)
    assert ended.code == code, ended.err
    assert message in ended.err


def test_another_source_for_a_split_that_is_there(cli, job):
    assert cli("extract", job).code == 0
    job.write_text(job.read_text().replace("    dtype: float16\n", ""))
    code, _, err = cli("extract", job)
    assert code == 2
    assert "split id/test was extracted from" in err
    assert cli("run", job, "--no-store").code == 2
