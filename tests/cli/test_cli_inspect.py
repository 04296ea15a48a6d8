"""``featfold inspect``: what a store holds, and all of the damage in it."""

import json

import numpy as np
import pytest

from pipeline.chunk import ArraySpec
from pipeline.store import Store

SPECS = {"features": ArraySpec((64,), "float32", "D"), "labels": ArraySpec((), "int64")}


@pytest.fixture
def store(tmp_path):
    made = Store.create(tmp_path / "feats.zarr")
    rng = np.random.default_rng(0)
    for name in ("id/train", "ood/near/a"):
        writer = made.create_split(
            name, SPECS, classes=3, rows=50, chunk_nbytes=10 * 256, block_nbytes=20 * 264
        )
        for block in writer.blocks:
            scale = float(name.startswith("id"))  # zeros are worth compressing
            features = (scale * rng.standard_normal((block.rows, 64))).astype("f4")
            writer.write(block.index, {"features": features, "labels": np.arange(block.rows) % 3})
    return made


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def test_it_shows_splits_arrays_and_what_is_complete(cli, store):
    code, out, err = cli("inspect", store.path)
    assert (code, err) == (0, "")
    for words in ("id/train", "ood/near/a", "features", "labels", "float32", "2.5 KiB", "12.5 KiB"):
        assert words in out
    assert "id/train: 50 rows in 3 blocks, 3 classes, complete" in out
    assert "every byte" not in out
    assert not [line for line in out.splitlines() if len(line) > 110]


def test_json_says_the_same(cli, store):
    code, out, err = cli("inspect", store.path, "--verify", "--json")
    told = json.loads(out)
    assert code == 0
    assert "every byte is as it was written" in err
    assert (told["verified"], told["complete"], told["findings"]) == (True, True, [])
    first = told["splits"][0]
    assert (first["name"], first["rows"], first["blocks"], first["missing"]) == (
        "id/train", 50, 3, ""
    )  # fmt: skip
    features, labels = first["arrays"]
    assert features["row_shape"] == [64]
    assert (features["chunk_rows"], features["chunk_nbytes"], features["nbytes"]) == (
        10, 2560, 50 * 256
    )  # fmt: skip
    assert (features["compression"], labels["dtype"]) == ("none", "int64")
    assert told["splits"][1]["arrays"][0]["compression"] == "zstd"


def test_missing_rows_are_no_damage_and_rows_behind_them_are_verified(cli, store):
    (store.path / "id/train/manifest/block-00000/zarr.json").unlink()
    code, out, _ = cli("inspect", store.path, "--verify")
    assert code == 0
    assert "30 rows in 2 blocks, 3 classes; rows 0-20 missing" in out
    flip(store.path / "id/train/features/c/4/0")
    code, out, _ = cli("inspect", store.path, "--verify")
    assert code == 4
    assert "id/train, features, rows 40-50: checksum" in out


def test_all_damage_is_found_at_once_and_named_with_a_remedy(cli, store):
    root = store.path
    flip(root / "id/train/features/c/0/0")
    flip(root / "id/train/features/c/1/0")
    (root / "id/train/features/c/4/0").write_bytes(b"torn")
    (root / "id/train/labels/c/1").unlink()
    flip(root / "ood/near/a/labels/c/0")
    (root / "ood/near/a/features/zarr.json").write_text("{")
    code, out, _ = cli("inspect", root, "--verify", "--json")
    told = json.loads(out)
    assert code == 4
    found = [(f["split"], f["array"], f["start"], f["stop"]) for f in told["findings"]]
    assert found == [
        ("id/train", "features", 0, 10),
        ("id/train", "features", 10, 20),
        ("id/train", "labels", 20, 40),
        ("id/train", "features", 40, 50),
        ("ood/near/a", "features", 0, 20),
        ("ood/near/a", "labels", 0, 20),
        ("ood/near/a", "features", 20, 40),
        ("ood/near/a", "features", 40, 50),
    ]
    assert {f["remedy"].split()[0] for f in told["findings"]} == {"restore"}
    assert told["findings"][0]["file"] == str(root / "id/train/features/c/0/0")
    code, out, _ = cli("inspect", root, "--verify")
    assert code == 4
    assert "damaged id/train, features, rows 40-50: the file has 4 bytes, expected 2564" in out
    assert "or write block 2 again (overwrite)" in out
    assert cli("inspect", root)[0] == 0  # nothing is read without --verify


def test_damaged_metadata_is_a_finding_and_the_other_splits_are_shown(cli, store):
    (store.path / "id/train/manifest/block-00001/zarr.json").write_text("{")
    code, out, _ = cli("inspect", store.path)
    assert code == 4
    assert "damaged id/train, (metadata), all rows" in out
    assert "block-00001" in out
    assert "ood/near/a: 50 rows" in out


def test_a_removed_block_and_an_empty_store(cli, store, tmp_path):
    store.remove_block("id/train", 1)
    code, out, _ = cli("inspect", store.path, "--verify")
    assert code == 0
    assert "id/train: 30 rows in 2 blocks, 3 classes, complete; rows 20-40 removed" in out
    empty = Store.create(tmp_path / "empty.zarr")
    code, out, _ = cli("inspect", empty.path)
    assert code == 0
    assert "holds no splits yet" in out


def test_what_is_not_a_store_ends_with_4(cli, tmp_path):
    code, out, err = cli("inspect", tmp_path / "none.zarr")
    assert (code, out) == (4, "")
    assert "is not there" in err


def test_the_head_is_shown_and_its_damage_found(cli, store):
    assert json.loads(cli("inspect", store.path, "--json").out)["head"] is None
    store.write_head(
        np.ones((3, 64), "f4"), np.zeros(3, "f4"),
        {"how": "cls", "field": "cls", "model": "vit", "weights_sha256": "12ab"},
    )  # fmt: skip
    code, out, _ = cli("inspect", store.path)
    said = "head: weight 3 x 64, bias 3, float32; reads cls of cls, model vit, weights_sha256 12ab"
    assert code == 0
    assert said in " ".join(out.split())
    head = json.loads(cli("inspect", store.path, "--json").out)["head"]
    assert (head["weight_shape"], head["attributes"]["model"]) == ([3, 64], "vit")
    flip(next(path for path in (store.path / "head/weight/c").rglob("*") if path.is_file()))
    assert cli("inspect", store.path).code == 0  # it is not read
    code, out, _ = cli("inspect", store.path, "--verify")
    assert code == 4
    assert "damaged (all), head" in out
