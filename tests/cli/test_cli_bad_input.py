"""Bad input ends with one clear error and its exit code; no traceback, nothing lost."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.chunk import ArraySpec
from pipeline.store import Store

CLASSES, T = 4, 3  # as in the job of conftest.py
SPECS = {
    "features": ArraySpec((T, 8), "float32", "TD"),
    "labels": ArraySpec((), "int64"),
    "plain": ArraySpec((), "float64"),
}


def contents(root: Path) -> str:
    """Return a digest of every file below a directory."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return hashlib.sha256(
        b"".join(str(path).encode() + path.read_bytes() for path in files)
    ).hexdigest()


def add(store: Store, name: str, change) -> None:
    """Add a split like those of the job, changed."""
    rows = 24
    labels = np.arange(rows) % CLASSES if name.startswith("id") else np.full(rows, -1)
    arrays = {
        "features": np.random.default_rng(0).standard_normal((rows, T, 8)).astype("f4"),
        "labels": labels,
        "plain": np.zeros(rows),
    }
    specs = dict(SPECS)
    change(arrays, specs)
    writer = store.create_split(name, specs, classes=CLASSES, rows=rows)
    writer.write(0, arrays)


def not_finite(arrays, specs):
    arrays["features"][7, 1, 5] = np.nan


def void(arrays, specs):
    arrays["labels"] = np.full_like(arrays["labels"], -1)


def other_tokens(arrays, specs):
    arrays["features"] = arrays["features"][:, :2]
    specs["features"] = ArraySpec((2, 8), "float32", "TD")


def not_finite_baseline(arrays, specs):
    arrays["plain"][3] = np.inf


def same(arrays, specs):
    pass


@pytest.mark.parametrize(
    ("name", "change", "setting", "code", "words"),
    [
        ("id/val", not_finite, "fit.split=id/val", 4,
         ["id/val", "features", "row 7", "columns [5]", "nonfinite: skip"]),
        ("id/val", void, "fit.split=id/val", 4,
         ["id/val", "no usable row", "24 rows", "labels >= 0"]),
        ("ood/far/c", other_tokens, "evaluate.far=[ood/far/c]", 4,
         ["msp was fitted on features", "(3, 8)", "ood/far/c", "(2, 8)"]),
        ("ood/far/c", not_finite, "evaluate.far=[ood/far/c]", 4, ["ood/far/c", "row 7"]),
        ("ood/far/c", not_finite_baseline, "evaluate.far=[ood/far/c]", 4,
         ["ood/far/c", "plain", "row 3"]),
        ("id/val", same, "fit.split=id/vel", 2, ["id/vel", "expected"]),
        ("id/val", same, "detectors=[mahalanobiss]", 2, ["did you mean 'mahalanobis'"]),
        ("id/val", same, "resources.memory=1MiB", 3, ["--memory", "worst statistic"]),
        ("id/val", same, "evaluate.baselines=[brightness]", 4, ["brightness", "plain"]),
    ],
)  # fmt: skip
def test_one_error_with_its_code(job, cli, tmp_path, name, change, setting, code, words):
    store = Store.open(tmp_path / "feats.zarr")
    add(store, name, change)
    before = contents(store.path)
    ended = cli("run", job, "--set", setting)
    assert ended.code == code, ended.err
    for word in words:
        assert word in ended.err
    assert "Traceback" not in ended.err
    assert contents(store.path) == before


def test_rows_that_are_not_finite_may_be_skipped(job, cli, tmp_path):
    add(Store.open(tmp_path / "feats.zarr"), "id/val", not_finite)
    assert cli("run", job, "--set", "fit.split=id/val", "--set", "nonfinite=skip").code == 0


def test_they_are_skipped_in_the_evaluation_too(job, cli, tmp_path):
    add(Store.open(tmp_path / "feats.zarr"), "ood/far/c", not_finite)
    changes = ("--set", "evaluate.far=[ood/far/c]", "--set", "nonfinite=skip")
    ended = cli("run", job, "--json", *changes)
    assert ended.code == 0, ended.err
    kept = {
        row["detector"]: row["n_ood"]
        for row in json.loads(ended.out)["scores"]
        if row["ood"] == "ood/far/c"
    }
    assert kept == {"msp": 23, "mahalanobis(covariance=pinvh)": 23, "plain": 24}


def test_an_unfinished_split_names_its_rows(job, cli, tmp_path):
    store = Store.open(tmp_path / "feats.zarr")
    store.create_split("id/val", SPECS, classes=CLASSES, rows=24)
    ended = cli("run", job, "--set", "fit.split=id/val")
    assert ended.code == 4
    assert "rows 0-23" in ended.err or "rows 0-24" in ended.err
    assert "Traceback" not in ended.err


def test_an_unfinished_split_that_nobody_asked_for_is_in_nobodys_way(job, cli, tmp_path):
    store = Store.open(tmp_path / "feats.zarr")
    store.create_split("id/val", SPECS, classes=CLASSES, rows=24)
    assert cli("run", job).code == 0


def test_a_damaged_chunk_is_named(job, cli, tmp_path):
    (file,) = (tmp_path / "feats.zarr/id/train/features").rglob("c/0/0/0")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    ended = cli("run", job, "--cache", tmp_path / "unread")  # what was read before is not read now
    assert ended.code == 4
    assert "id/train" in ended.err
    assert "features" in ended.err
    assert "Traceback" not in ended.err


def test_a_damaged_results_file_is_named(job, cli, tmp_path):
    (tmp_path / "results.json").write_text('{"schema": 1')
    ended = cli("report", tmp_path)
    assert ended.code == 4
    assert "results.json" in ended.err


def test_an_empty_split_is_refused_when_it_is_declared(tmp_path):
    store = Store.create(tmp_path / "empty.zarr")
    with pytest.raises(ValueError, match="row"):
        store.create_split("id/train", SPECS, classes=CLASSES, rows=0)
