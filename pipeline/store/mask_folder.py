"""Two folders of PNG masks, predicted and true, matched by name: a row is an image.

A mask holds the number of a class in every pixel: grayscale of 1 to 16 bits, or a palette, whose
colours are not looked at. Where all images have one size, rows are (h, w). Where sizes differ, rows
are flat: the schema declares the pixels of the largest image, and a chunk holds images of one size,
(images, pixels); every pixel counts, and statistics of whole rows look at one image at a time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.chunk import Arena, ArraySpec, Block, Chunk, Schema
from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.store import checksum, layout, reads

SIDES = ("predictions", "labels")
CHUNK_NBYTES = 4 * 2**20
BLOCK_IMAGES = 64
"""Images of a block at least; it holds a whole number of chunks."""
DECODING = 3
"""Arrays as large as an image that are held while it is decoded, beside its chunk."""
SHOWN = 3
PNG_HEAD = struct.Struct(">8s4x4sIIBB")
SIGNATURE, FIRST = b"\x89PNG\r\n\x1a\n", b"IHDR"
GRAY, PALETTE = 0, 3
COLORS = {2: "RGB colours", 4: "gray with transparency", 6: "RGB colours with transparency"}


@dataclass(frozen=True)
class Mask:
    """What the head of a PNG file says."""

    height: int
    width: int
    bits: int
    gray_bits: int
    """Bits of gray that a decoder makes 8 of; 8 for a palette."""

    @property
    def stretched(self) -> int:
        """What a decoder multiplies the numbers of pixels by: gray of 2 and 4 bits ends at 255."""
        return 255 // (2**self.gray_bits - 1) if self.gray_bits in (2, 4) else 1


def holds_masks(given: Any) -> bool:
    """Tell whether something is the path of a folder with PNG files in it."""
    if not isinstance(given, (str, Path)) or not Path(given).is_dir():
        return False
    return next(_png_files(Path(given)), None) is not None


class MaskFolders:
    """The masks of two folders as a split: ``predictions`` and ``labels``, in the order of names.

    Names are paths below the folders. Opening reads the heads of all files, no pixel. Pickles as
    the names and sizes. Raises :class:`MissingInputError` for masks that one side lacks,
    :class:`DataError` for sizes that differ between the two masks of an image and for masks of
    colours, :class:`CorruptError` for files that are no PNG.
    """

    by_element: ClassVar[bool] = True
    """Metrics say which elements of a row count; see :func:`pipeline.fold.by_element`."""

    def __init__(
        self, predictions: Path, labels: Path, *, classes: int, name: str = SIDES[0]
    ) -> None:
        self.folders = {"predictions": predictions.absolute(), "labels": labels.absolute()}
        self.names = _matched(self.folders)
        heads = {
            side: [_head(folder / image) for image in self.names]
            for side, folder in self.folders.items()
        }
        self._check_sizes(heads)
        self.sizes = np.array([(m.height, m.width) for m in heads["labels"]], np.int32)
        self._stretched = {
            side: np.array([mask.stretched for mask in found], np.uint8)
            for side, found in heads.items()
        }
        pixels = self.sizes.prod(axis=1, dtype=np.int64)
        one_size = bool((self.sizes == self.sizes[0]).all())
        shape = tuple(self.sizes[0].tolist()) if one_size else (int(pixels.max()),)
        specs = {
            side: ArraySpec(shape, "uint16" if max(m.bits for m in found) > 8 else "uint8")
            for side, found in heads.items()
        }
        self.schema = Schema(len(self.names), classes, specs, name)
        self.chunk_rows = max(1, CHUNK_NBYTES // max(spec.nbytes for spec in specs.values()))
        size = self.chunk_rows * math.ceil(BLOCK_IMAGES / self.chunk_rows)
        self.blocks: Sequence[Block] = tuple(
            Block(index, start, min(start + size, len(self.names)))
            for index, start in enumerate(range(0, len(self.names), size))
        )

    def __repr__(self) -> str:
        return f"MaskFolders({', '.join(map(str, self.folders.values()))}, {len(self.names)} masks)"

    @property
    def name(self) -> str:
        """Name of the split in errors and reports."""
        return self.schema.split

    @property
    def is_ood(self) -> bool:
        """Whether the rows are out-of-distribution, by the name."""
        return layout.is_ood(self.name)

    def only(self, block: Block) -> MaskFolders:
        """Return itself: names and sizes."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of a block in order: images of one size, at most ``step_rows`` of them.

        Every file is decoded once. Raises :class:`CorruptError` for a file that is damaged,
        :class:`DataError` for one that has another size than when the folder was opened.
        """
        if step_rows is not None and step_rows < 1:
            raise ConfigError(f"step_rows must be at least 1, got {step_rows}")
        sides = sorted(self.schema.touched(fields))
        arena = Arena()
        for start, stop in self._runs(block, step_rows or self.chunk_rows):
            yield Chunk(
                self.schema,
                start,
                stop - start,
                {side: self._rows(side, start, stop) for side in sides},
                is_ood=self.is_ood,
                arena=arena,
            )

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of the images of a chunk, and of one on its way from a file."""
        step = step_rows or self.chunk_rows
        specs = [self.schema.arrays[side] for side in self.schema.touched(fields)]
        return sum((step + DECODING) * spec.nbytes for spec in specs)

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: the files have no manifest."""
        return None

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return checksums of the pixels of a block."""
        found = dict.fromkeys(self.schema.touched(fields), 0)
        for chunk in self.read(block, fields):
            for side, crc32c in found.items():
                found[side] = checksum.crc32c(chunk[side], crc32c)
        return {side: checksum.hexadecimal(crc32c) for side, crc32c in found.items()}

    def _runs(self, block: Block, step: int) -> Iterator[tuple[int, int]]:
        """Yield runs of images of one size."""
        start = block.start
        for row in range(block.start + 1, block.stop + 1):
            ends = row == block.stop or bool((self.sizes[row] != self.sizes[start]).any())
            if ends or row - start == step:
                yield start, row
                start = row

    def _rows(self, side: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        spec = self.schema.arrays[side]
        height, width = self.sizes[start].tolist()
        out = np.empty((stop - start, height, width), spec.memory_dtype)
        for row in range(start, stop):
            reads.count(self.name, side, row)
            path, stretched = self.folders[side] / self.names[row], self._stretched[side][row]
            pixels = decoded(path, int(stretched))
            if pixels.shape != (height, width):
                raise DataError(
                    f"{path} is {_size(pixels.shape)}, and was "
                    f"{_size((height, width))} when the folder was opened; open it again"
                )
            out[row - start] = pixels
        return out if len(spec.shape) == 2 else out.reshape(stop - start, height * width)

    def _check_sizes(self, heads: Mapping[str, Sequence[Mask]]) -> None:
        pairs = zip(self.names, heads["predictions"], heads["labels"], strict=True)
        wrong = [
            f"{name}: {_size((p.height, p.width))} predicted, {_size((y.height, y.width))} true"
            for name, p, y in pairs
            if (p.height, p.width) != (y.height, y.width)
        ]
        if wrong:
            raise DataError(
                f"{self.folders['predictions']}: {len(wrong)} masks have another size than their "
                f"labels ({_some(wrong)}); save predictions in the size of the labels"
            )


def decoded(path: Path, stretched: int = 1) -> np.ndarray[Any, Any]:
    """Return the classes (h, w) of a mask, uint8 or uint16, as the file numbers them.

    ``stretched``: see :attr:`Mask.stretched`.
    """
    from PIL.PngImagePlugin import PngImageFile  # not Image.open, which refuses large images

    try:
        with PngImageFile(path) as image:
            pixels: np.ndarray[Any, Any] = np.asarray(image)
    except FileNotFoundError as error:
        raise MissingInputError(f"{path} is not there any more") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise CorruptError(f"{path} cannot be decoded ({error}); save it again") from error
    if pixels.dtype == np.bool_:
        return np.asarray(pixels.view(np.uint8) != 0, np.uint8)  # its bytes are 0 and 255
    return pixels // np.uint8(stretched) if stretched > 1 else pixels


def _head(path: Path) -> Mask:
    """Read the head of a mask; raises where it is no PNG, or holds colours."""
    try:
        with path.open("rb") as file:
            signature, kind, width, height, bits, color = PNG_HEAD.unpack(file.read(PNG_HEAD.size))
    except struct.error as error:
        raise CorruptError(f"{path} ends within its head; save it again") from error
    if (signature, kind) != (SIGNATURE, FIRST):
        raise CorruptError(f"{path} is no PNG file, whatever its name says; save it again")
    if color not in (GRAY, PALETTE):
        raise DataError(
            f"{path} holds {COLORS.get(color, 'colours')}, not the number of a class in each "
            "pixel; turn its colours into numbers, and save those as a grayscale PNG"
        )
    return Mask(height, width, bits, bits if color == GRAY else 8)


def _png_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() == ".png")


def _matched(folders: Mapping[str, Path]) -> tuple[str, ...]:
    """Return the names, sorted, that both folders have; raises for those that one lacks."""
    names = {
        side: {path.relative_to(folder).as_posix() for path in _png_files(folder)}
        for side, folder in folders.items()
    }
    lacking = [
        f"{folders[side]} lacks {_some(sorted(missing))} of {folders[other]}"
        for side, other in (SIDES, SIDES[::-1])
        if (missing := names[other] - names[side])
    ]
    if lacking:
        raise MissingInputError(
            f"masks are matched by name, and {'; '.join(lacking)}; give both sides the same names"
        )
    return tuple(sorted(names[SIDES[0]]))


def _size(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _some(entries: Sequence[str]) -> str:
    more = f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    return ", ".join(entries[:SHOWN]) + more
