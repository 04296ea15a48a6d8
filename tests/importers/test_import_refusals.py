"""What does not fit is refused by name, before anything is written."""

import re
import zipfile

import numpy as np
import pytest

import pipeline as ff
from pipeline.errors import (
    ConfigError,
    CorruptError,
    DataError,
    ExistsRefusedError,
    MissingInputError,
)
from pipeline.store import Store

N, D, K = 12, 3, 4
ROWS = np.random.default_rng(5).standard_normal((N, D)).astype("f4")
LABELS = np.arange(N) % K


@pytest.fixture
def refused(folder):
    """Import and expect an error; nothing may be there afterwards."""

    def check(kind, message, files, split="id/train", **options):
        options.setdefault("classes", K)
        with pytest.raises(kind, match=message):
            ff.import_split(folder / "s.zarr", split, files, **options)
        assert not list(folder.glob("*s.zarr*"))

    return check


def npz(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


@pytest.mark.parametrize(
    ("labels", "split", "message"),
    [
        (np.append(LABELS[:-1], K), "id/train", r"labels must be below 4 .* row 11: 4"),
        (np.full(N, 2**62), "id/train", r"row 0: 4611686018427387904"),
        (LABELS.astype("f4"), "id/train", r"labels are float32; .*: save .*astype\('int64'\)"),
        (np.append(LABELS[:-1], -1), "id/test", r"id/test: labels below 0 .* row 11: -1"),
        (np.append(LABELS[:-1], -1), "id/val", "out-of-distribution rows"),
        (np.append(np.full(N - 1, -1), 0), "ood/far/x", r"below 0, got row 11: 0; .*labels none"),
        (LABELS[:-1], "id/train", "same number of rows, got features: 12, labels: 11"),
        (LABELS[:0], "id/train", "got features: 12, labels: 0"),
    ],
)
def test_labels(folder, refused, labels, split, message):
    refused(DataError, message, npz(folder, features=ROWS, labels=labels), split)
    refused(DataError, message, npz(folder, features=ROWS), split, labels=labels)


@pytest.mark.parametrize("first", [0, 2**20 - 1, 2**20])
def test_a_wrong_label_is_found_wherever_it_is(folder, refused, first):
    labels = np.zeros(2**20 + 1, "i2")
    labels[first] = K
    refused(DataError, f"row {first}: {K}", npz(folder, features=labels, labels=labels))


def test_labels_below_0_are_ood(folder):
    labels = np.where(LABELS == 1, -1, LABELS)
    ff.import_split(
        folder / "s.zarr", "id/train", npz(folder, features=ROWS), labels=labels, classes=K
    )
    split = Store.open(folder / "s.zarr").split("id/train")
    (chunk,) = split.read(split.blocks[0], frozenset({"labels"}))
    np.testing.assert_array_equal(chunk["labels"], labels)
    for name, given in (("a", None), ("b", False), ("c", -np.ones(N, int))):
        ff.import_split(
            folder / "s.zarr", f"ood/near/{name}", npz(folder, features=ROWS), labels=given
        )
        assert (
            "labels" in Store.open(folder / "s.zarr").split(f"ood/near/{name}").schema.arrays
        ) == (name == "c")


def test_arrays(folder, refused):
    rows = {"features": ROWS, "labels": LABELS}
    refused(
        ConfigError, r"'feat': did you mean 'features'\?", npz(folder, **rows), arrays={"x": "feat"}
    )
    refused(ConfigError, "no array 'logits'", npz(folder, **rows), layouts={"logits": "ND"})
    refused(ConfigError, "dtype 'int8' for float32", npz(folder, **rows), dtype="int8")
    refused(
        ConfigError,
        "labels: dtype 'float16' for int64",
        npz(folder, **rows),
        dtype={"labels": "float16"},
    )
    refused(ConfigError, "scores are one of", npz(folder, conf=ROWS[:, 0]), scores={"conf": "up"})
    refused(
        ConfigError,
        "are no scores; name one float a row",
        npz(folder, **rows),
        scores={"features": "higher-is-id"},
    )
    refused(
        ConfigError,
        r"rows have shape \(1, 3\); .*features=NTD or NDT",
        npz(folder, features=ROWS[:, None]),
    )
    refused(
        ConfigError,
        "NCHW or NHWC.*got 'NTD'",
        npz(folder, features=ROWS[:, None, None]),
        layouts={"features": "NTD"},
    )
    refused(
        DataError,
        "which hold nothing",
        npz(folder, features=ROWS[:, :0]),
        arrays={"features": "features"},
    )
    refused(DataError, "there is no array to import: .*text", npz(folder, names=np.array(["a"])))
    refused(
        DataError,
        "there are no rows; write the files again, or name others",
        npz(folder, features=ROWS[:0]),
    )
    refused(ConfigError, "say how many classes", npz(folder, **rows), classes=None)
    refused(ConfigError, "classes", npz(folder, **rows), classes=-1)
    refused(ConfigError, "not the name of a split", npz(folder, **rows), "train")
    refused(
        ConfigError,
        "cannot be the name of an array",
        npz(folder, **rows),
        arrays={"a/b": "features"},
    )


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([{}, {}]), "Python objects"),
        (np.zeros(3, [("a", "f4"), ("b", "i4")]), "records of a, b"),
        (np.asfortranarray(ROWS), "rows lie apart; save np.ascontiguousarray"),
        (np.array(["a", "b"]), "text; expected numbers"),
        (np.array(["2020-01-01"], "M8[D]"), "expected one of"),
        (np.zeros(2, "c8"), "complex64; expected one of"),
        (np.array(3.0), "one number; expected rows"),
    ],
)
def test_what_is_no_rows_of_numbers(folder, refused, array, message):
    np.save(folder / "features.npy", array, allow_pickle=True)
    refused(DataError, message, folder / "features.npy")
    path = npz(folder, features=array, labels=LABELS)
    refused(DataError, message, path, arrays={"features": "features"})
    done = ff.import_split(folder / "only.zarr", "id/train", path, classes=K)
    assert message.split(";")[0].split(" ")[0] in done.left_out["features"]


def test_files(folder, refused):
    np.save(folder / "x.npy", ROWS)
    whole = (folder / "x.npy").read_bytes()
    for nbytes in (0, 5, 40, len(whole) - 1):
        (folder / "x.npy").write_bytes(whole[:nbytes])
        refused(DataError, r"x\.npy .*; save it again", folder / "x.npy")
    (folder / "x.npy").write_bytes(b"")
    refused(DataError, r"x\.npy cannot be read \(it is empty, 0 bytes\)", folder / "x.npy")
    (folder / "x.npz").write_bytes(b"PK no zip")
    refused(CorruptError, r"x\.npz cannot be read", folder / "x.npz")
    for content in (b"", b"\x05\0\0\0\0\0\0\0[1,2]", b"\xff" * 20, b"\x02\0\0\0\0\0\0\0{}x"[:9]):
        (folder / "x.safetensors").write_bytes(content)
        refused(DataError, r"x\.safetensors", folder / "x.safetensors")
    refused(MissingInputError, "no file matches", folder / "none_*.npy")
    refused(MissingInputError, r"none\.npy is not there; mend .* has .*\.np", folder / "none.npy")
    refused(MissingInputError, r"its folder has x\.npy", folder / "x2.npy")
    refused(MissingInputError, "nor is its folder; mend the path", folder / "no" / "x.npy")
    (folder / "notes.txt").write_text("no features")
    refused(DataError, "of no format that is known here: .*npy", folder / "notes.txt")
    refused(DataError, r"a folder of no format .*\*\.npy or .*\*\.npz", folder)
    refused(ConfigError, "no sources", [])
    npz(folder, a=ROWS, b=ROWS)
    refused(ConfigError, "names one array, but there are 2: a, b", f"x={folder}/a.npz")


def test_shards_that_do_not_fit_together(folder, refused):
    np.save(folder / "f_0.npy", ROWS)
    np.save(folder / "f_1.npy", ROWS[:, :2])
    refused(DataError, r"f: rows of .*f_1\.npy are \(2,\) float32, .* \(3,\)", f"{folder}/f_*.npy")
    np.save(folder / "f_1.npy", ROWS.astype("f8"))
    refused(DataError, r"f_1\.npy are \(3,\) float64", f"{folder}/f_*.npy")
    np.save(folder / "f_1.npy", ROWS[:5])
    np.save(folder / "labels_0.npy", LABELS[:5])
    np.save(folder / "labels_1.npy", LABELS)
    refused(
        DataError,
        r"f of .*f_0\.npy has 12 rows, labels of .*labels_0\.npy has 5",
        [f"{folder}/f_*.npy", f"{folder}/labels_*.npy"],
    )
    refused(
        ConfigError,
        "named twice, as 'a' and as 'b'",
        [f"a={folder}/f_0.npy", f"b={folder}/f_0.npy"],
    )


def test_labels_of_another_file(folder, refused):
    np.save(folder / "x.npy", ROWS)
    np.savez(folder / "y.npz", y=LABELS, z=LABELS[:-1])
    refused(
        MissingInputError,
        r"none\.npy is not there.* no array of the files .* name either: x",
        folder / "x.npy",
        labels=str(folder / "none.npy"),
    )
    refused(ConfigError, r"y\.npz holds 2 arrays: y, z", folder / "x.npy", labels=folder / "y.npz")
    refused(DataError, "x: 12, labels: 11", folder / "x.npy", labels=folder / "y.npz/z")
    ff.import_split(
        folder / "t.zarr", "id/train", folder / "x.npy", classes=K, labels=folder / "y.npz/y"
    )


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("at", [200, 3000, 200_000, -200])
def test_rows_of_npz_that_are_damaged(folder, save, at):
    rows = np.random.default_rng(0).random((4000, 8))
    save(folder / "a.npz", features=rows)
    with zipfile.ZipFile(folder / "a.npz") as file:
        info = file.infolist()[0]
    content = bytearray((folder / "a.npz").read_bytes())
    content[info.header_offset + (at if at > 0 else info.compress_size)] ^= 255
    (folder / "a.npz").write_bytes(bytes(content))
    sizes = {"chunk_nbytes": 64 * 300, "block_nbytes": 64 * 900}
    with pytest.raises(DataError, match=re.escape(str(folder / "a.npz"))):
        ff.import_split(folder / "s.zarr", "id/train", folder / "a.npz", classes=0, **sizes)
    with pytest.raises(DataError, match=re.escape(str(folder / "a.npz"))):
        ff.import_split(
            folder / "s.zarr", "id/train", folder / "a.npz", classes=0, resume=True, **sizes
        )


def test_a_split_that_was_not_imported_is_not_gone_on_with(folder, refused):
    from pipeline.chunk import ArraySpec

    store = Store.create(folder / "t.zarr")
    store.create_split("id/train", {"features": ArraySpec((D,), "float32", "D")}, classes=K, rows=N)
    np.save(folder / "features.npy", ROWS)
    with pytest.raises(ExistsRefusedError, match="1 of its blocks are missing"):
        ff.import_split(store, "id/train", folder / "features.npy")
    with pytest.raises(ExistsRefusedError, match="was not imported from files"):
        ff.import_split(store, "id/train", folder / "features.npy", resume=True)
