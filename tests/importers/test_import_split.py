"""Files become a split, bit for bit: compared with what the files' own libraries read."""

import itertools

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
import zarr

import pipeline as ff
from pipeline.errors import ConfigError, DataError, ExistsRefusedError
from pipeline.store import Store

N, T, D, K = 23, 3, 4, 5
RNG = np.random.default_rng(11)
TOKENS = RNG.standard_normal((N, T, D)).astype("f4")
LABELS = RNG.integers(0, K, N)
ROW_NBYTES = T * D * 4 + 8
SIZES = [(1, 1), (1, 7), (7, 7), (N - 1, N - 1), (N, N), (3, 12)]
"""Rows of a chunk, and of a block."""


def stored(path, name="features", split="id/train"):
    """Return an array of a split as plain zarr reads it."""
    return zarr.open_array(str(path / split / name), mode="r")[:]


def saved(folder, suffix, arrays):
    """Save arrays in files of a format; return the sources."""
    if suffix == "npy":
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        return [folder / f"{name}.npy" for name in arrays]
    path = folder / f"all.{suffix}"
    if suffix == "safetensors":
        safetensors.numpy.save_file(arrays, path)
    else:
        (np.savez if suffix == "npz" else np.savez_compressed)(folder / "all.npz", **arrays)
        path = folder / "all.npz"
    return [path]


@pytest.mark.parametrize("suffix", ["npy", "npz", "deflated", "safetensors"])
@pytest.mark.parametrize(("chunk_rows", "block_rows"), SIZES)
def test_rows_are_those_of_the_files(folder, suffix, chunk_rows, block_rows):
    sources = saved(folder, suffix, {"features": TOKENS, "labels": LABELS})
    done = ff.import_split(
        folder / "s.zarr", "id/train", sources, classes=K, layouts={"features": "NTD"},
        chunk_nbytes=chunk_rows * T * D * 4, block_nbytes=block_rows * ROW_NBYTES,
    )  # fmt: skip
    assert (done.rows, done.written, done.kept) == (N, -(-N // block_rows), 0)
    np.testing.assert_array_equal(stored(folder / "s.zarr"), TOKENS)
    np.testing.assert_array_equal(stored(folder / "s.zarr", "labels"), LABELS)
    split = Store.open(folder / "s.zarr").split("id/train", verify=True)
    assert split.schema.arrays["features"].layout == "TD"
    assert split.schema.classes == K


@pytest.mark.parametrize("suffix", ["npy", "npz", "deflated", "safetensors"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", "u2", "u8", "?"])
def test_numbers_keep_their_dtype_and_bits(folder, suffix, dtype):
    numbers = (RNG.standard_normal((N, D)) * 50).astype(dtype)
    if dtype[0] == "f":
        numbers[3, 1], numbers[4] = np.nan, [np.inf, -np.inf, -0.0, 0.0]
    sources = saved(folder, suffix, {"features": numbers})
    ff.import_split(folder / "s.zarr", "id/val", sources, classes=0)
    found = stored(folder / "s.zarr", split="id/val")
    assert found.dtype == numbers.dtype
    assert found.tobytes() == numbers.tobytes()


def test_bfloat16_is_stored_as_its_bits(folder):
    rows = torch.randn(N, D, dtype=torch.bfloat16)
    safetensors.torch.save_file({"features": rows}, folder / "f.safetensors")
    ff.import_split(folder / "s.zarr", "id/train", folder / "f.safetensors", classes=0)
    bits = stored(folder / "s.zarr")
    assert bits.dtype == np.uint16
    np.testing.assert_array_equal(bits, rows.view(torch.uint16).numpy())
    split = Store.open(folder / "s.zarr").split("id/train")
    (chunk,) = split.read(split.blocks[0], frozenset({"features"}))
    np.testing.assert_array_equal(chunk["features"], rows.float().numpy())


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("shape", [(N,), (N, 2), (N, 1, 2), (N, 2, 1, 3)])
def test_npy_of_every_version_byte_order_and_rank(folder, version, shape):
    numbers = RNG.integers(-9, 9, shape).astype(">i4")
    with (folder / "flags.npy").open("wb") as file:
        np.lib.format.write_array(file, numbers, version)
    ff.import_split(folder / "s.zarr", "id/train", folder / "flags.npy", classes=0)
    found = stored(folder / "s.zarr", "flags")
    assert found.dtype == np.dtype("<i4")
    np.testing.assert_array_equal(found, numbers)


def test_shards_go_in_natural_order_whatever_they_hold(folder):
    rows = [5, 1, 0, 7, 3, 2, 0, 1, 1, 1, 2]
    starts = np.cumsum([0, *rows])
    for i, (start, stop) in enumerate(itertools.pairwise(starts)):
        np.savez(folder / f"train_{i}.npz", feat_list=TOKENS[start:stop], y=LABELS[start:stop])
    expected = [folder / f"train_{i}.npz" for i in sorted(range(11), key=str)]
    for number, sources in enumerate([folder / "train_*.npz", expected]):
        store = folder / f"{number}.zarr"
        ff.import_split(
            store, "id/train", sources, arrays={"features": "feat_list"}, labels="y", classes=K,
            layouts={"features": "NTD"}, chunk_nbytes=4 * T * D * 4, block_nbytes=8 * ROW_NBYTES,
        )  # fmt: skip
        np.testing.assert_array_equal(stored(store), TOKENS)
        np.testing.assert_array_equal(stored(store, "labels"), LABELS)
    for i in range(11):
        np.save(folder / f"img_emb_{i}.npy", np.full((1, 2), i, "f4"))
    source = f"features={folder}/img_emb_*.npy"
    ff.import_split(folder / "n.zarr", "id/train", source, classes=0)
    np.testing.assert_array_equal(stored(folder / "n.zarr")[:, 0], np.arange(11))


@pytest.mark.parametrize(
    ("layout", "axes"),
    [("NTD", (0, 1, 2)), ("NDT", (0, 2, 1)), ("NCHW", (0, 2, 3, 1)), ("NHWC", (0, 1, 2, 3))],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_layouts_become_tokens(folder, layout, axes, dtype):
    shape = {"NTD": (N, 6, 4), "NDT": (N, 4, 6), "NCHW": (N, 4, 2, 3), "NHWC": (N, 2, 3, 4)}
    maps = torch.randn(shape[layout]).to(getattr(torch, dtype))
    safetensors.torch.save_file({"maps": maps}, folder / "m.safetensors")
    ff.import_split(
        folder / "s.zarr", "id/train", folder / "m.safetensors", classes=0,
        arrays={"features": "maps"}, layouts={"features": layout}, chunk_nbytes=500,
        block_nbytes=1000,
    )  # fmt: skip
    expected = maps.permute(*axes).reshape(N, 6, 4)
    found = stored(folder / "s.zarr")
    assert found.tobytes() == expected.contiguous().view(torch.uint8).numpy().tobytes()
    spec = Store.open(folder / "s.zarr").split("id/train").schema.arrays["features"]
    assert (spec.shape, spec.layout, spec.dtype) == ((6, 4), "TD", dtype)


@pytest.mark.parametrize("wanted", ["float16", "bfloat16", "float64"])
def test_another_dtype_only_when_asked(folder, wanted):
    rows = np.concatenate([RNG.standard_normal((N, D)), [[np.nan, np.inf, -np.inf, -0.0]]])
    np.save(folder / "features.npy", rows.astype("f4"))
    np.save(folder / "labels.npy", np.arange(N + 1).astype("u1") % K)
    sources = [folder / "features.npy", folder / "labels.npy"]
    ff.import_split(folder / "s.zarr", "id/train", sources, classes=K, dtype=wanted)
    found = torch.from_numpy(stored(folder / "s.zarr").view("i2" if "16" in wanted else "i8"))
    expected = torch.from_numpy(rows.astype("f4")).to(getattr(torch, wanted))
    torch.testing.assert_close(found.view(expected.dtype), expected, rtol=0, atol=0, equal_nan=True)
    assert stored(folder / "s.zarr", "labels").dtype == np.int64


@pytest.mark.parametrize("wanted", ["float16", "bfloat16", "float32"])
def test_numbers_too_large_for_the_dtype_are_refused(folder, wanted):
    rows = np.zeros((N, D))
    rows[8, 2] = {"float16": 65520.0, "bfloat16": 3.4e38, "float32": 1e39}[wanted]
    np.save(folder / "features.npy", rows)
    with pytest.raises(DataError, match=rf"features: rows 0-23 hold .* large for {wanted}"):
        ff.import_split(
            folder / "s.zarr", "id/train", folder / "features.npy", classes=0, dtype=wanted
        )
    assert Store.open(folder / "s.zarr").writer("id/train").committed == frozenset()


@pytest.mark.parametrize("sign", ["higher-is-ood", "higher-is-id", "not-scores"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
def test_scores_are_stored_so_that_higher_is_ood(folder, sign, dtype):
    conf = torch.randn(N).to(dtype)
    safetensors.torch.save_file({"conf": conf}, folder / "s.safetensors")
    source, store = folder / "s.safetensors", folder / "s.zarr"
    with pytest.raises(ConfigError, match="conf=higher-is-ood or conf=higher-is-id"):
        ff.import_split(store, "id/test", source, classes=K)
    assert not store.exists()
    ff.import_split(store, "id/test", source, classes=K, scores={"conf": sign})
    split = Store.open(store).split("id/test")
    (chunk,) = split.read(split.blocks[0], frozenset({"conf"}))
    expected = -conf if sign == "higher-is-id" else conf
    np.testing.assert_array_equal(chunk["conf"], expected.float().numpy())
    told = {"conf": {"higher_is": "ood", "imported_as": sign}}
    assert split.attributes.get("scores", {}) == ({} if sign == "not-scores" else told)


def test_scores_in_a_column_are_asked_for_their_sign(folder):
    np.savez(folder / "a.npz", conf=np.ones((N, 1), "f4"), logits=np.ones((N, 1), "f4"))
    with pytest.raises(ConfigError, match="conf=higher-is-ood or conf=higher-is-id"):
        ff.import_split(folder / "s.zarr", "id/test", folder / "a.npz", classes=1)
    ff.import_split(
        folder / "s.zarr", "id/test", folder / "a.npz", classes=1, scores={"conf": "higher-is-id"}
    )
    assert stored(folder / "s.zarr", "conf", "id/test").tolist() == [[-1.0]] * N


@pytest.mark.parametrize("dtype", ["u8", "i4", "i8"])
def test_labels_in_a_column_become_one_integer_a_row(folder, dtype):
    np.savez(folder / "a.npz", features=TOKENS[:, 0], labels=LABELS[:, None].astype(dtype))
    ff.import_split(folder / "s.zarr", "id/train", folder / "a.npz", classes=K)
    found = stored(folder / "s.zarr", "labels")
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, LABELS)
    told = Store.open(folder / "s.zarr").attributes("id/train")["imported_from"]["arrays"]
    assert told["labels"]["shape"] == "(n, 1) to (n,)"


def test_labels_that_int64_does_not_hold_are_refused(folder):
    labels = LABELS.astype("u8")
    labels[3] = 2**64 - 1
    np.savez(folder / "a.npz", features=TOKENS[:, 0], labels=labels)
    with pytest.raises(DataError, match="labels: row 3: 18446744073709551615"):
        ff.import_split(folder / "s.zarr", "id/train", folder / "a.npz", classes=K)
    assert not (folder / "s.zarr").exists()


def test_two_files_of_one_number_are_refused(folder):
    (folder / "clip/img_emb").mkdir(parents=True)
    for number in ("0", "1", "01"):
        np.save(folder / f"clip/img_emb/img_emb_{number}.npy", TOKENS[:, 0])
    with pytest.raises(DataError, match=r"img_emb_0?1\.npy and .*img_emb_0?1\.npy"):
        ff.import_split(folder / "s.zarr", "id/train", folder / "clip", classes=0)


def test_clip_retrieval(folder):
    import pyarrow as pa
    import pyarrow.parquet as pq

    clip, expected = folder / "clip", {"img_emb": [], "text_emb": []}
    for kind in ("img_emb", "text_emb", "metadata"):
        (clip / kind).mkdir(parents=True)
    widths = []
    for i, rows in enumerate([4, 3, *[1] * 9]):
        for kind, parts in expected.items():
            parts.append(RNG.standard_normal((rows, D)).astype("f2"))
            np.save(clip / kind / f"{kind}_{i}.npy", parts[-1])
        widths += list(range(10 * i, 10 * i + rows))
        columns = {"width": widths[-rows:], "caption": ["a dog"] * rows}
        pq.write_table(pa.table(columns), clip / "metadata" / f"metadata_{i}.parquet")
    done = ff.import_split(folder / "s.zarr", "id/train", clip, classes=0)
    for kind, parts in expected.items():
        np.testing.assert_array_equal(stored(folder / "s.zarr", kind), np.concatenate(parts))
    assert set(done.left_out) == {"metadata/width", "metadata/caption"}
    names = {"features": "img_emb", "width": "metadata/width"}
    ff.import_split(folder / "s.zarr", "id/val", clip, arrays=names)
    np.testing.assert_array_equal(stored(folder / "s.zarr", "width", "id/val"), widths)
    (clip / "metadata" / "metadata_3.parquet").unlink()
    with pytest.raises(DataError, match=r"lacks metadata/metadata_3\.parquet"):
        ff.import_split(folder / "s.zarr", "id/test", clip)


def test_files_of_a_split_are_imported_once(folder):
    (source,) = saved(folder, "npz", {"features": TOKENS[:, 0], "labels": LABELS})
    ff.import_split(folder / "s.zarr", "id/train", source, classes=K)
    with pytest.raises(ExistsRefusedError, match=r"already, and it is complete; .*--resume"):
        ff.import_split(folder / "s.zarr", "id/train", source, classes=K)
    again = ff.import_split(folder / "s.zarr", "id/train", source, resume=True)
    assert (again.written, again.kept, again.mended) == (0, 1, 0)
