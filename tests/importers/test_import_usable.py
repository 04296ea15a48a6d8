"""What fits and scores would refuse is not stored; splits are replaced where that is asked for."""

import os

import numpy as np
import pytest

import pipeline as ff
from pipeline.errors import (
    ConfigError,
    DataError,
    ExistsRefusedError,
    IncompleteError,
    MissingInputError,
)
from pipeline.importing import Silent
from pipeline.store import Store, disk

N, D, K = 12, 3, 4
RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((N, D)).astype("f4")
LABELS = np.arange(N) % K


def npz(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def bring(folder, split="id/train", classes=K, *, progress=None, labels=None, **arrays):
    options = {
        k: arrays.pop(k) for k in ("layouts", "scores", "overwrite", "resume") if k in arrays
    }
    return ff.import_split(
        folder / "s.zarr", split, npz(folder, **arrays), classes=classes, labels=labels,
        progress=progress, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"logits": np.ones((N, K + 1), "f4")}, r"logits .* \(5,\); expected \(4,\).*--classes"),
        ({"logits": np.ones((N, K - 1), "f2")}, r"logits have rows of shape \(3,\)"),
        ({"logits": np.ones((N, 1, K), "i4")}, r"logits have rows of shape \(1, 4\)"),
        ({"labels": np.stack([LABELS] * 2, 1)}, r"labels .* \(2,\); expected one integer a row"),
        ({"labels": np.full(N, -1)}, "all 12 labels are below 0.*--labels none"),
        ({"features": LABELS}, r"features have rows of shape \(\); expected \(d,\) or \(t, d\)"),
        ({"features": np.ones((N, 2, 2, 2), "i2")}, r"features have rows of shape \(2, 2, 2\)"),
    ],
)
def test_what_every_fit_would_refuse(folder, arrays, message):
    with pytest.raises(DataError, match=message):
        bring(folder, **{"features": ROWS, "labels": LABELS, **arrays})
    assert not list(folder.glob("*s.zarr*"))


def test_what_is_stored_is_taken_by_fits(folder):
    """The other side: nothing is refused that a fit takes."""
    for dtype in ("i1", "u2", "i8", "f2", "f8"):
        x = (20 * RNG.standard_normal((60, D))).astype(dtype)
        labels = np.arange(60) % K
        bring(folder, f"id/csid/{dtype}", features=x, labels=labels,
              logits=np.eye(K, dtype=dtype)[labels])  # fmt: skip
        split = Store.open(folder / "s.zarr").split(f"id/csid/{dtype}")
        ff.fit(["mahalanobis", "msp"], split, cluster="threads", workers=1)


def test_splits_of_a_store_are_of_one_shape_and_number_of_classes(folder):
    bring(folder, features=ROWS, labels=LABELS)
    before = sorted(folder.rglob("s.zarr/**/*"))
    with pytest.raises(DataError, match=r"shape \(2,\) D; those of id/train .* \(3,\) D.*another"):
        bring(folder, "ood/far/x", features=ROWS[:, :2])
    with pytest.raises(DataError, match=r"shape \(1, 3\) TD; those of id/train"):
        bring(folder, "ood/far/x", features=ROWS[:, None], layouts={"features": "NTD"})
    with pytest.raises(ConfigError, match=r"ood/far/x: 5 classes, but id/train of the store has 4"):
        bring(folder, "ood/far/x", K + 1, features=ROWS)
    assert sorted(folder.rglob("s.zarr/**/*")) == before
    bring(folder, "ood/far/x", None, features=ROWS.astype("f2"))


@pytest.mark.parametrize("split", ["id/train", "id/test", "id/csid/x", "ood/far/x"])
def test_a_split_without_labels_is_told_what_follows_and_how_to_add_them(folder, split):
    said, told = [], Silent()
    told.say = said.append
    bring(folder, split, features=ROWS, label_list=LABELS, progress=told, labels=False)
    (text,) = said if split != "ood/far/x" else [""]
    for part in ("mahalanobis", "accuracy", "--labels FILE", "--overwrite", "label_list"):
        assert part in text or split == "ood/far/x"
    if split == "ood/far/x":
        assert said == []


def test_a_split_is_replaced_if_that_is_asked_for_and_all_is_well(folder):
    bring(folder, features=ROWS)
    bring(folder, "ood/far/x", features=ROWS)
    store = Store.open(folder / "s.zarr")
    store.write_names("id/train", ["a"] * N)
    with pytest.raises(ExistsRefusedError, match=r"it is complete; .*--overwrite"):
        bring(folder, features=ROWS, labels=LABELS)
    with pytest.raises(ConfigError, match="resume and overwrite"):
        bring(folder, features=ROWS, labels=LABELS, overwrite=True, resume=True)
    with pytest.raises(DataError, match="labels must be below 4"):
        bring(folder, features=ROWS, labels=LABELS + 1, overwrite=True)
    assert set(store.split("id/train", verify=True).schema.arrays) == {"features"}
    done = bring(folder, features=ROWS[:5], labels=LABELS[:5], overwrite=True)
    assert (done.rows, done.written) == (5, 1)
    split = store.split("id/train", verify=True)
    assert (split.schema.rows, set(split.schema.arrays)) == (5, {"features", "labels"})
    assert store.names("id/train") is None
    assert store.split("ood/far/x", verify=True).schema.rows == N
    bring(folder, "id/val", features=ROWS, labels=LABELS, overwrite=True)  # there was none


def test_a_split_whose_removal_was_killed_is_removed_by_the_next(folder, monkeypatch):
    bring(folder, features=ROWS, labels=LABELS)
    own, left = disk.remove_tree, [1]

    def killed(directory, ignore_errors=False):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        own(directory, ignore_errors)

    for steps in range(5):
        with monkeypatch.context() as patch:
            patch.setattr(disk, "remove_tree", killed)
            left[:] = [1] * steps
            with pytest.raises(KeyboardInterrupt):
                bring(folder, features=ROWS[:, :2], labels=LABELS, overwrite=True)
        if steps:  # a part of the rows passes for nothing
            with pytest.raises((IncompleteError, MissingInputError)):
                Store.open(folder / "s.zarr").split("id/train")
    bring(folder, features=ROWS[:, :2], labels=LABELS, overwrite=True)
    split = Store.open(folder / "s.zarr").split("id/train", verify=True)
    assert split.schema.arrays["features"].shape == (2,)


@pytest.mark.parametrize("how", ["same times", "replaced"])
def test_a_file_that_changes_and_is_put_back_meanwhile_is_told(folder, how):
    path = npz(folder, features=ROWS, labels=LABELS)
    whole, stat = path.read_bytes(), path.stat()
    watch = Silent()

    def change(amount):
        if how == "replaced":
            (folder / "other").write_bytes(whole)
            (folder / "other").replace(path)
        else:
            path.write_bytes(whole[::-1])
            path.write_bytes(whole)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    watch.advance = change
    store = folder / "s.zarr"
    with pytest.raises(DataError, match=r"changed while they were imported .*a\.npz.*--overwrite"):
        ff.import_split(store, "id/train", path, classes=K, progress=watch)
    with pytest.raises(DataError, match=r"may be of both; replace it with --overwrite"):
        ff.import_split(store, "id/train", path, classes=K, resume=True)
    ff.import_split(store, "id/train", path, classes=K, overwrite=True)
    assert Store.open(store).split("id/train", verify=True).schema.rows == N
