"""The raw reader gives the bytes that zarr gives, and reads no others."""

import threading
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, CorruptError
from pipeline.store import Store, checksum, raw, reader
from pipeline.store.prefetch import SLOTS

N = 61
DTYPES = ("float32", "float16", "int64", "bool", "bfloat16", "uint8", "float64")


def rows_of(dtype, shape=(3, 5)):
    rng = np.random.default_rng(len(dtype))
    bits = rng.integers(0, 256, (N, *shape, 8), dtype=np.uint8)  # as random as no codec likes
    if dtype == "bool":
        return bits[..., 0] > 127
    if dtype == "bfloat16":
        return rng.standard_normal((N, *shape)).astype("f4").view("u4") // 2**16
    size = np.dtype(dtype).itemsize
    if dtype.startswith("float"):
        return rng.standard_normal((N, *shape)).astype(dtype)
    return bits[..., :size].copy().view(dtype)[..., 0]


def stored(path, dtype, chunk_rows, block_chunks=3):
    spec = ArraySpec((3, 5), dtype)
    x = rows_of(dtype).astype("u2") if dtype == "bfloat16" else rows_of(dtype)
    writer = Store.create(path).create_split(
        "id/train", {"x": spec}, classes=0, rows=N,
        chunk_nbytes=chunk_rows * spec.nbytes, block_nbytes=block_chunks * chunk_rows * spec.nbytes,
    )  # fmt: skip
    for block in writer.blocks:
        writer.write(block.index, {"x": x[block.start : block.stop]})
    return Store.open(path).split("id/train")


def read(split, step_rows=None):
    return np.concatenate(
        [
            chunk["x"].copy()
            for block in split.blocks
            for chunk in split.read(block, frozenset({"x"}), step_rows)
        ]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_rows", [1, 7, N - 1, N])
def test_it_equals_zarr_byte_for_byte(path, dtype, chunk_rows):
    split = stored(path, dtype, chunk_rows)
    plain = zarr.open_array(path / "id/train/x", mode="r")[:]
    if dtype == "bfloat16":
        plain = (plain.astype("u4") << 16).view("f4")
    is_raw = split._trailer("x") is not None
    assert is_raw or dtype == "bool"  # booleans are bytes of one bit: worth compressing
    for step_rows in (None, 1, 3, chunk_rows):
        given_rows = read(split, step_rows)
        assert given_rows.dtype == plain.dtype
        assert given_rows.tobytes() == plain.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_that_zarr_decodes_come_out_the_same(path, dtype, monkeypatch):
    split = stored(path, dtype, 7)
    expected = read(split)
    monkeypatch.setattr(raw, "checksum_nbytes", lambda *_: None)
    coded = Store.open(path).split("id/train")
    for step_rows in (None, 1, 3, 5):
        reader.reset_reads()
        assert read(coded, step_rows).tobytes() == expected.tobytes()
        assert set(reader.READS.values()) == {1}
    assert coded.verify() == []
    assert coded.reading_nbytes(frozenset({"x"})) > split.reading_nbytes(frozenset({"x"}))


@pytest.mark.parametrize(
    "codecs",
    [
        {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
        {"compressors": None, "serializer": zarr.codecs.BytesCodec(endian="big")},
        {"compressors": None, "shards": (14, 3, 5)},
        {"compressors": None, "filters": [zarr.codecs.TransposeCodec(order=(0, 2, 1))]},
    ],
)
def test_whatever_is_not_raw_is_left_to_zarr(tmp_path, codecs):
    x = rows_of("float32")
    zarr.create_array(tmp_path / "x", data=x, chunks=(7, 3, 5), **codecs)
    assert raw.checksum_nbytes(tmp_path / "x", ArraySpec((3, 5), "float32"), 7) is None


def test_raw_with_and_without_a_checksum(tmp_path):
    spec = ArraySpec((3, 5), "float32")
    for name, codecs in (("bare", None), ("summed", [zarr.codecs.Crc32cCodec()])):
        zarr.create_array(
            tmp_path / name, data=rows_of("float32"), chunks=(7, 3, 5), compressors=codecs
        )
    assert raw.checksum_nbytes(tmp_path / "bare", spec, 7) == 0
    assert raw.checksum_nbytes(tmp_path / "summed", spec, 7) == 4
    assert raw.checksum_nbytes(tmp_path / "summed", spec, 8) is None
    assert raw.checksum_nbytes(tmp_path / "summed", ArraySpec((3, 5), "int32"), 7) is None
    assert raw.checksum_nbytes(tmp_path / "none", spec, 7) is None


def test_chunks_are_counted_once_in_several_steps_and_steps_count_from_the_block(path):
    split = stored(path, "float32", 7)
    for step_rows, lengths in ((3, [3] * 7), (5, [5, 5, 5, 5, 1]), (8, [8, 8, 5]), (100, [21])):
        reader.reset_reads()
        block = split.blocks[1]
        chunks = [(c.start, c.rows) for c in split.read(block, frozenset({"x"}), step_rows)]
        assert [rows for _, rows in chunks] == lengths
        assert chunks[0][0] == block.start == 21
        assert set(reader.READS.values()) == {1}
        assert len(reader.READS) == 3


def test_only_the_rows_that_are_asked_for_come_off_the_file(path):
    split = stored(path, "float32", N)
    before = _bytes_read()
    chunks = split.read(split.blocks[0], frozenset({"x"}), 1)
    next(chunks)
    chunks.close()
    if before is not None:
        assert _bytes_read() - before < 3 * 60 + 8000  # steps of 60 bytes, and one record


def _bytes_read():
    io = Path("/proc/self/io")
    if not io.exists():
        return None
    return int(dict(line.split(": ") for line in io.read_text().splitlines())["rchar"])


def test_a_chunk_that_holds_fill_values_alone_is_read_and_a_missing_one_is_named(path):
    spec = {"x": ArraySpec((2,), "float32")}
    writer = Store.create(path).create_split(
        "id/train", spec, classes=0, rows=6, chunk_nbytes=16, block_nbytes=48
    )
    writer.write(0, {"x": np.full((6, 2), np.nan, "f4")})
    split = Store.open(path).split("id/train", verify=True)
    assert np.isnan(read(split)).all()
    (path / "id/train/x/c/1/0").unlink()
    with pytest.raises(CorruptError, match=r"rows 2-4: the file is missing; restore .*x/c/1/0"):
        read(split)


@pytest.mark.parametrize("step_rows", [None, 2, 5])
def test_a_damaged_chunk_is_named_before_its_last_rows_are_handed_out(path, step_rows):
    split = stored(path, "float32", 7)
    file = path / "id/train/x/c/1/0/0"
    content = bytearray(file.read_bytes())
    content[-30] ^= 64
    file.write_bytes(content)
    chunks = split.read(split.blocks[0], frozenset({"x"}), step_rows)
    for _ in range(13 // (step_rows or 7)):  # those that end before row 14
        assert next(chunks).stop < 14
    with pytest.raises(CorruptError, match="array x, rows 7-14: checksum"):
        next(chunks)


def test_damage_in_the_last_padded_chunk_is_named(path):
    split = stored(path, "float32", 7)  # 61 rows: the last chunk holds 5 of 7
    file = path / "id/train/x/c/8/0/0"
    content = bytearray(file.read_bytes())
    content[4] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptError, match="array x, rows 56-61: checksum"):
        read(split)


def test_the_memory_of_a_chunk_is_used_again_and_that_is_all_there_is(path):
    split = stored(path, "float32", 7, block_chunks=9)
    places = {c["x"].__array_interface__["data"][0] for c in split.read(split.blocks[0], {"x"})}
    assert len(places) == SLOTS
    assert split.reading_nbytes(frozenset({"x"})) == SLOTS * 7 * 60
    assert split.reading_nbytes(frozenset({"x"}), 2) == SLOTS * 2 * 60


def test_no_thread_survives_a_reader_that_is_left_or_fails(path):
    split = stored(path, "float32", 7, block_chunks=9)
    chunks = split.read(split.blocks[0], frozenset({"x"}))
    next(chunks)
    chunks.close()
    (path / "id/train/x/c/3/0/0").unlink()
    with pytest.raises(CorruptError, match="rows 21-28"):
        read(split)
    assert not [t for t in threading.enumerate() if t.name.startswith("featfold-read")]


def test_a_step_without_rows_is_refused(path):
    split = stored(path, "float32", 7)
    with pytest.raises(ConfigError, match="step_rows must be at least 1, got 0"):
        next(split.read(split.blocks[0], frozenset({"x"}), 0))


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_joined_checksums_are_those_of_the_joined_bytes(first, second):
    sums = [int(google_crc32c.value(part)) for part in (first, second)]
    assert checksum.joined(*sums, len(second)) == google_crc32c.value(first + second)
