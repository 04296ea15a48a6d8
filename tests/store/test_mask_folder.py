"""Folders of PNG masks, matched by name: what the files number, whatever their depth or size."""

from __future__ import annotations

import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.chunk import Split
from pipeline.engine import Dask, Job, Trace, run_jobs, run_serial
from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.procedure import TRAIN, Rows
from pipeline.statistics import ConfusionMatrix, Marginals
from pipeline.store import MaskFolders, open_predictions, reads
from pipeline.views import Every, Stored, Truth

K, VOID = 5, 255
FIELDS = frozenset({"predictions", "labels"})
Masks = dict[str, dict[str, Any]]


def raw_png(path: Path, pixels: Any, bits: int, color: int) -> None:
    """Write a PNG of 1 to 16 bits a pixel by its specification: gray (0) or palette (3)."""
    height, width = pixels.shape
    if bits == 16:
        rows = [row.astype(">u2").tobytes() for row in pixels]
    else:
        spread = (pixels[..., None] >> np.arange(bits - 1, -1, -1)) & 1
        rows = [np.packbits(row.reshape(-1)).tobytes() for row in spread.astype(np.uint8)]

    def part(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    palette = part(b"PLTE", bytes(range(3 * min(2**bits, 80)))) if color == 3 else b""
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", head)
        + palette
        + part(b"IDAT", data)
        + part(b"IEND", b"")
    )


def save(folder: Path, masks: Masks) -> tuple[Path, Path]:
    """Write predictions as palettes, labels in gray."""
    for side, images in masks.items():
        for name, pixels in images.items():
            path = folder / side / name
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(pixels)
            if side == "predictions":
                image.putpalette(np.random.default_rng(0).bytes(768))
            image.save(path)
    return folder / "predictions", folder / "labels"


def made(sizes: list[tuple[int, int]]) -> Masks:
    random = np.random.default_rng(0)
    masks: Masks = {"predictions": {}, "labels": {}}
    for number, size in enumerate(sizes):
        name = f"town{number % 2}/{number:03d}.png"
        labels = random.integers(0, K, size).astype(np.uint8)
        labels[random.random(size) < 0.2] = VOID
        masks["labels"][name] = labels
        masks["predictions"][name] = random.integers(0, K, size).astype(np.uint8)
    return masks


class Counts:
    def passes(self, schema: Any) -> Any:
        of, by = Stored("predictions"), Truth()
        pairs = ConfusionMatrix(of, by, Every(), (VOID,))
        margins = Marginals(of, by, Every(), (VOID,))
        results = yield {"pairs": pairs, "margins": margins}
        return results


def counted(split: Split, execute: Any = run_serial) -> Any:
    jobs = {"counts": Job(Counts(), {TRAIN: (split,)})}
    return run_jobs(jobs, execute, trace=Trace())["counts"]


def expected(masks: Masks) -> Any:
    total = np.zeros((K, K + 1), np.int64)  # nothing is predicted as void
    for name, labels in masks["labels"].items():
        kept = labels != VOID
        np.add.at(total, (labels[kept], masks["predictions"][name][kept]), 1)
    return total


ONE_SIZE = [(8, 6)] * 9
SIZES = [(8, 6), (8, 6), (6, 8), (3, 16), (1, 1), (20, 30), (8, 6), (2, 2), (2, 2), (2, 2)]


@pytest.mark.parametrize("sizes", [ONE_SIZE, SIZES, [(1, 1)], [(5, 3), (3, 5)]])
@pytest.mark.parametrize("step", [None, 1, 2, 100])
def test_every_pixel_counts(tmp_path: Path, sizes: Any, step: int | None) -> None:
    masks = made(sizes)
    split = open_predictions(*save(tmp_path, masks), classes=K)
    assert isinstance(split, MaskFolders)
    assert split.names == tuple(sorted(masks["labels"]))
    same = len(set(sizes)) == 1
    largest = max(h * w for h, w in sizes)
    assert split.schema.arrays["labels"].shape == (sizes[0] if same else (largest,))
    reads.reset_reads()
    row = 0
    for block in split.blocks:
        for chunk in split.read(block, FIELDS, step):
            assert chunk.start == row
            for side in masks:
                for own, name in zip(chunk[side], split.names[row : row + chunk.rows], strict=True):
                    pixels = masks[side][name]
                    np.testing.assert_array_equal(own.reshape(pixels.shape), pixels, strict=True)
            row += chunk.rows
    assert row == len(sizes)
    assert set(reads.READS.values()) == {1}
    results = counted(split)
    np.testing.assert_array_equal(results["pairs"], expected(masks))
    np.testing.assert_array_equal(results["margins"].truth, expected(masks).sum(1))


def test_two_processes_read_every_file_once(
    tmp_path: Path, dask_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.store.mask_folder.BLOCK_IMAGES", 3)
    monkeypatch.setattr("pipeline.store.mask_folder.CHUNK_NBYTES", 600)
    masks = made(SIZES * 4)
    split = open_predictions(*save(tmp_path, masks), classes=K)
    assert len(split.blocks) > 8
    assert len(pickle.dumps(split)) < 10_000
    dask_client.run(reads.reset_reads)
    found = counted(split, Dask(dask_client, tmp_path / "cache"))
    np.testing.assert_array_equal(found["pairs"], expected(masks))
    read = [key for each in dask_client.run(lambda: dict(reads.READS)).values() for key in each]
    assert sorted(read) == sorted(
        (split.name, side, row) for side in masks for row in range(len(SIZES) * 4)
    )


def test_a_row_of_a_table_is_an_image(tmp_path: Path) -> None:
    """Images of any size have one row each in a table."""

    class Largest:
        fields = frozenset({"labels"})

        def __call__(self, chunk: Any) -> Any:
            return chunk["labels"].reshape(chunk.rows, -1).max(axis=1)

    masks = made(SIZES)
    split = open_predictions(*save(tmp_path, masks), classes=K)
    from pipeline.fold import fold

    parts = [fold((), split, b, (Rows(Largest()),)).outputs[0][0] for b in split.blocks]
    rows = [masks["labels"][name].max() for name in split.names]
    assert np.concatenate(parts).tolist() == rows


@pytest.mark.parametrize(
    ("bits", "color"), [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (1, 3), (2, 3), (4, 3), (8, 3)]
)
def test_the_numbers_are_those_of_the_file(tmp_path: Path, bits: int, color: int) -> None:
    """Decoders stretch gray of 2 and 4 bits to 0 to 255: class 1 would become 85 or 17."""
    classes = min(2**bits, 80 if color == 3 else 700)
    pixels = np.arange(7 * 101).reshape(7, 101) % classes
    for side in ("p", "y"):
        (tmp_path / side).mkdir()
        raw_png(tmp_path / side / "a.PNG", pixels, bits, color)
    split = MaskFolders(tmp_path / "p", tmp_path / "y", classes=classes)
    assert split.schema.arrays["labels"].dtype == ("uint16" if bits == 16 else "uint8")
    (chunk,) = split.read(split.blocks[0], FIELDS)
    np.testing.assert_array_equal(chunk["labels"][0], pixels)


def test_depths_may_differ_between_images(tmp_path: Path) -> None:
    for side in ("p", "y"):
        (tmp_path / side).mkdir()
        raw_png(tmp_path / side / "0.png", np.array([[300, 2]]), 16, 0)
        raw_png(tmp_path / side / "1.png", np.array([[1, 2]]), 2, 0)
        raw_png(tmp_path / side / "2.png", np.array([[9, 4]]), 4, 3)
    split = MaskFolders(tmp_path / "p", tmp_path / "y", classes=301)
    (chunk,) = split.read(split.blocks[0], FIELDS)
    assert chunk["labels"].tolist() == [[[300, 2]], [[1, 2]], [[9, 4]]]


def test_masks_of_colours_are_refused(tmp_path: Path) -> None:
    paths = save(tmp_path, made([(4, 4)] * 3))
    for mode, word in (("RGB", "RGB colours"), ("RGBA", "transparency"), ("LA", "transparency")):
        Image.new(mode, (4, 4)).save(paths[0] / "town0" / "002.png")
        with pytest.raises(DataError, match=rf"002\.png holds .*{word}.*into numbers"):
            open_predictions(*paths, classes=K)


def test_names_that_one_side_lacks_are_named(tmp_path: Path) -> None:
    masks = made([(4, 4)] * 9)
    paths = save(tmp_path, masks)
    for number in (1, 3, 5, 7):
        (paths[0] / "town1" / f"00{number}.png").unlink()
    (paths[1] / "town0" / "000.png").unlink()
    with pytest.raises(MissingInputError) as error:
        open_predictions(*paths, classes=K)
    text = str(error.value)
    assert f"{paths[0]} lacks town1/001.png, town1/003.png, town1/005.png and 1 more of" in text
    assert f"{paths[1]} lacks town0/000.png of {paths[0]}" in text


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    masks = made([(4, 4), (6, 2)])
    paths = save(tmp_path, masks)
    Image.new("L", (5, 6)).save(paths[0] / "town1" / "001.png")
    with pytest.raises(DataError, match=r"1 masks .*001\.png: 6 x 5 predicted, 6 x 2 true"):
        open_predictions(*paths, classes=K)
    with pytest.raises(DataError, match="rows go by name"):
        open_predictions(np.zeros((2, 4, 4), int), paths[1], classes=K)
    with pytest.raises(ConfigError, match="weights"):
        open_predictions(*paths, classes=K, weights=np.ones(2))
    for content, message in ((b"\x89PNG", "within its head"), (b"GIF89a" * 9, "is no PNG")):
        (paths[0] / "town1" / "001.png").write_bytes(content)
        with pytest.raises(CorruptError, match=message):
            open_predictions(*paths, classes=K)


def test_files_that_changed_since_are_named(tmp_path: Path) -> None:
    masks = made([(40, 40), (60, 20)])
    split = open_predictions(*save(tmp_path, masks), classes=K)
    path = tmp_path / "labels" / "town1" / "001.png"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptError, match=r"001\.png cannot be decoded"):
        counted(split)
    Image.new("L", (3, 3)).save(path)
    with pytest.raises(DataError, match=r"001\.png is 3 x 3, and was 60 x 20"):
        counted(split)
    path.unlink()
    with pytest.raises(MissingInputError, match=r"001\.png is not there any more"):
        counted(split)
