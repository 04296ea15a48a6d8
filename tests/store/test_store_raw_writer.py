"""Chunks that are written straight to files have the bytes that zarr's own codecs give."""

import threading

import numpy as np
import pytest
import zarr

from pipeline.chunk import ArraySpec
from pipeline.store import layout
from pipeline.store.raw_writer import RawWriter, is_raw, is_whole

DTYPES = ["float32", "float16", "float64", "int64", "int8", "uint8", "bool", "bfloat16", "uint32"]
RNG = np.random.default_rng(4)


def pieces_of(rows, size):
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(10, 4), (12, 4), (1, 4), (9, 1)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_files_are_those_of_zarr(path, dtype, rows, size, shape):
    spec = ArraySpec(shape, dtype)
    numbers = RNG.integers(0, 100, (rows, *shape)).astype(layout.stored_dtype(spec))
    found = {}
    for name in ("zarr", "raw"):
        directory = path / name
        directory.mkdir(parents=True)
        layout._create(str(directory), name, spec, rows, size, compress=False)
        assert is_raw(directory, spec, size)
        array = layout.open_array(directory, "r+")
        pieces = pieces_of(rows, size)
        assert all(is_whole(piece, size, rows) for piece in pieces)
        if name == "zarr":
            for piece in pieces:
                array[piece] = numbers[piece]
        else:
            RawWriter(directory, spec, size, array.fill_value).write(pieces, numbers.__getitem__)
        files = (file for file in (directory / "c").rglob("*") if file.is_file())
        found[name] = {file.relative_to(directory): file.read_bytes() for file in files}
    assert len(found["zarr"]) == len(pieces)
    assert found["raw"] == found["zarr"]
    np.testing.assert_array_equal(zarr.open_array(str(path / "raw"), mode="r")[:], numbers)


def test_rows_are_asked_for_in_order_and_by_one_thread_at_a_time(path):
    spec, rows = ArraySpec((5,), "float32"), 400
    directory = path / "x"
    directory.mkdir(parents=True)
    layout._create(str(directory), "x", spec, rows, 3, compress=False)
    asked, busy, held = [], threading.Lock(), threading.local()

    def rows_of(piece):
        assert busy.acquire(blocking=False)
        asked.append(piece.start)
        if not hasattr(held, "rows"):
            held.rows = np.empty((3, 5), "f4")
        held.rows[:] = piece.start
        busy.release()
        return held.rows[: piece.stop - piece.start]

    pieces = pieces_of(rows, 3)
    RawWriter(directory, spec, 3, np.nan).write(pieces, rows_of)
    assert asked == list(range(0, rows, 3))
    assert len({file.name for file in directory.rglob("*.partial")}) == 0
    written = zarr.open_array(str(directory), mode="r")[:]
    np.testing.assert_array_equal(written[:, 0], np.arange(rows) // 3 * 3)


def test_an_error_of_one_chunk_ends_the_others(path):
    spec = ArraySpec((), "int64")
    directory = path / "x"
    directory.mkdir(parents=True)
    asked = []

    def rows_of(piece):
        asked.append(piece.start)
        if piece.start == 20:
            raise OSError(28, "No space left on device")
        return np.zeros(2, "i8")

    with pytest.raises(OSError, match="No space left"):
        RawWriter(directory, spec, 2, -1).write(pieces_of(2000, 2), rows_of)
    assert len(asked) < 100
    assert not list(directory.rglob("*.partial"))
