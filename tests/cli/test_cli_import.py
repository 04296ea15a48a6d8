"""``featfold import``: what it shows, writes and refuses, and a job over what it wrote."""

import json

import numpy as np
import pytest

from pipeline.store import Store

K, T, D = 4, 3, 8
RNG = np.random.default_rng(2)


def dump(folder, name, rows, shift):
    """Save features of K clusters in two files, named as OpenOOD does."""
    labels = np.arange(rows) % K
    features = RNG.standard_normal((rows, T, D)) + shift + 6 * np.eye(K, D)[labels][:, None]
    folder.mkdir(exist_ok=True)
    for i, part in enumerate((slice(0, rows // 3), slice(rows // 3, rows))):
        np.savez(
            folder / f"{name}_{i}.npz", feat_list=features[part].astype("f4"),
            label_list=labels[part], conf=RNG.random(len(labels[part])).astype("f4"),
            image_name=np.array(["a.png"] * len(labels[part])),
        )  # fmt: skip


@pytest.fixture
def dumped(tmp_path):
    for name, rows, shift in (("train", 90, 0), ("test", 40, 0), ("near", 30, 3), ("far", 20, 30)):
        dump(tmp_path / "dump", name, rows, shift)
    return tmp_path / "dump"


MAPPED = ("--map", "feat_list=features", "--layout", "features=NTD")


def test_a_peek_shows_what_is_there_and_writes_nothing(cli, dumped, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    code, out, err = cli("import", dumped / "train_*.npz", "--peek")
    assert code == 2, err
    shown = " ".join(out.split())
    assert "feat_list 2 90 x 3 x 8 float32 8.4 KiB feat_list" in shown
    assert "label_list 2 90 int64 720 B label_list number int64" in shown
    assert "image_name 1 30 str160 0 B (left out)" in shown
    assert "say which axis is which with the layout feat_list=NTD or NDT" in shown
    code, out, err = cli(
        "import", dumped / "train_*.npz", "--peek", "--json", *MAPPED, "--labels", "label_list",
        "--dtype", "float16",
    )  # fmt: skip
    assert code == 0
    assert "not checked without --store and --split" in err
    found = json.loads(out)
    assert found["problem"] == ""
    features = next(one for one in found["arrays"] if one["found"] == "feat_list")
    assert features == {
        "found": "feat_list", "files": 2, "shape": [90, T, D], "dtype": "float32",
        "nbytes": 90 * T * D * 4, "stored": "features", "row_shape": [T, D],
        "stored_dtype": "float16", "layout": "TD", "note": "float32 to float16",
    }  # fmt: skip
    stored = {one["found"]: one["stored"] for one in found["arrays"]}
    assert stored == {"feat_list": "features", "label_list": "labels", "conf": "", "image_name": ""}
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 0, ""),
        (["--store", "new.zarr", "--split", "id/test"], 0, ""),
        (["--classes", "3"], 4, "labels must be below 3"),
        (["--split", "id/train", "--classes", "3"], 4, "labels must be below 3"),
        (["--split", "id/train"], 2, "say how many classes"),
        (["--split", "train"], 2, "'train' is not the name of a split"),
        (["--store", "new.zarr", "--split", "ood/far/x"], 4, "are below 0, got row 0: 0, row 1: 1"),
        (["--store", "s.zarr", "--split", "id/train"], 2, "already, and it is complete"),
        (["--store", "s.zarr", "--split", "id/train", "--resume"], 2, "begun with other files"),
        (["--store", "s.zarr", "--split", "id/train", "--overwrite"], 0, ""),
        (["--store", "s.zarr", "--split", "id/test", "--classes", "5"], 2, "id/train of the store"),
        (["--store", "dump", "--split", "id/test"], 2, "exists and is not a featfold store"),
        (["--store", "http://localhost/s", "--split", "id/test"], 2, "can only be read"),
        (["--scores", "conf=up"], 2, "scores are one of"),
        (["--split", "id/train", "--classes", "4", "--overwrite", "--resume"], 2, "give one"),
        (["--labels", "none.npy"], 4, "is not there"),
    ],
)  # fmt: skip
def test_a_peek_says_all_that_an_import_refuses(
    cli, dumped, tmp_path, monkeypatch, options, code, message
):
    monkeypatch.chdir(tmp_path)
    given = ("import", dumped / "test_*.npz", *MAPPED, "--labels", "label_list")
    other = ("--store", "s.zarr", "--split", "id/train", "--classes", K)
    assert cli("import", dumped / "train_*.npz", *MAPPED, *given[-2:], *other).code == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    classes = [] if "--classes" in options or "id/train" in options else ["--classes", K]
    peeked = cli(*given, *options, *classes, "--peek", "--json")
    assert peeked.code == code, peeked.err
    assert message in json.loads(peeked.out)["problem"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    if code and "--store" in options:
        assert cli(*given, *options, *classes).code == code


def test_a_job_over_imported_splits(cli, dumped, tmp_path, cache):
    store = ("--store", tmp_path / "s.zarr", *MAPPED)
    for split, name in (("id/train", "train"), ("id/test", "test")):
        code, out, err = cli(
            "import", dumped / f"{name}_*.npz", "--split", split, *store,
            "--labels", "label_list", "--classes", K, "--scores", "conf=higher-is-id", "--json",
        )  # fmt: skip
        assert code == 0, err
        done = json.loads(out)
        assert (done["written"], done["kept"], done["classes"]) == (1, 0, K)
        assert list(done["left_out"]) == ["image_name"]
    for split, name in (("ood/near/a", "near"), ("ood/far/b", "far")):
        code, out, err = cli(
            "import", f"{dumped}/{name}_0.npz", f"{dumped}/{name}_1.npz", "--split", split, *store,
            "--scores", "conf=higher-is-id",
        )  # fmt: skip
        assert code == 0, err
        assert f"{split}: " in out
        assert "1 blocks written" in out
    job = tmp_path / "job.yaml"
    job.write_text(
        f"name: small\nstore: {tmp_path}/s.zarr\ndetectors: [mahalanobis]\n"
        "evaluate: {near: [ood/near/a], far: [ood/far/b], baselines: [conf]}\n"
        f"resources: {{cluster: threads, workers: 1, cache: {cache}}}\n"
        f"report: {{directory: {tmp_path}/runs}}\n"
    )
    code, out, err = cli("run", job, "--json")
    assert code == 0, err
    scores = json.loads(out)["scores"]
    assert {row["detector"] for row in scores} == {"mahalanobis", "conf"}


def test_again_is_refused_and_resume_has_nothing_to_do(cli, dumped, tmp_path):
    given = (
        "import", dumped / "train_*.npz", "--store", tmp_path / "s.zarr", "--split", "id/train",
        *MAPPED, "--labels", "label_list", "--classes", K,
    )  # fmt: skip
    assert cli(*given).code == 0
    code, _, err = cli(*given)
    assert code == 2
    assert "has a split id/train already, and it is complete; go on with --resume" in err
    code, out, _ = cli(*given, "--resume")
    assert code == 0
    assert "it was complete already" in out
    chunk = tmp_path / "s.zarr/id/train/features/c/0/0/0"
    content = bytearray(chunk.read_bytes())
    content[100] ^= 1
    chunk.write_bytes(bytes(content))
    code, out, err = cli(*given, "--resume")
    assert code == 0
    assert "array features, rows 0-90: checksum" in err
    assert "1 blocks written, 1 of them had been damaged" in out
    assert not Store.open(tmp_path / "s.zarr").split("id/train").verify()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "needs --store STORE and --split NAME; or --peek"),
        (["--split", "id/train"], 2, "needs --store STORE"),
        (["--store", "s.zarr", "--split", "train"], 2, "'train' is not the name of a split"),
        (["--store", "s.zarr", "--split", "id/train", "--map", "feat_list"], 2, "FOUND=NAME"),
        (["--store", "s.zarr", "--split", "id/train", "--map", "feats=features"], 2,
         "did you mean 'feat_list'?"),
        (["--store", "s.zarr", "--split", "id/train", *MAPPED], 2, "--classes"),
        (["--store", "s.zarr", "--split", "id/train", *MAPPED, "--classes", "3",
          "--labels", "label_list"], 4, "labels must be below 3"),
        (["--store", "s.zarr", "--split", "id/train", *MAPPED, "--classes", "4",
          "--labels", "none.npy"], 4, "is not there"),
        (["--store", "s.zarr", "--split", "id/train", *MAPPED, "--block", "much"], 2,
         "--block: 'much'; expected a size"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_nothing(cli, dumped, tmp_path, monkeypatch, options, code, message):
    monkeypatch.chdir(tmp_path)
    ended = cli("import", dumped / "train_*.npz", *options)
    assert ended.code == code
    assert message in ended.err
    assert not list(tmp_path.glob("*s.zarr*"))


def test_the_help_says_what_labels_are(cli):
    shown = " ".join(cli("import", "--help").out.split())
    for part in ("0 to K-1", "FILE.npz/NAME", "TABLE.csv/COLUMN", "(-1)", "ood/...", "--overwrite"):
        assert part in shown


def test_other_files_and_none(cli, tmp_path):
    code, _, err = cli("import", tmp_path / "no_*.npy", "--peek")
    assert code == 4
    assert "no file matches" in err
    assert cli("import").code == 2
