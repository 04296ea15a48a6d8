"""One array within one block: read front to back into memory that is used again, and checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.chunk import ArraySpec, Block
from pipeline.errors import CorruptError
from pipeline.store import checksum, layout
from pipeline.store.coded import CODEC_FACTOR
from pipeline.store.place import Place
from pipeline.store.prefetch import SLOTS

FAULTS = (OSError, ValueError, RuntimeError)
"""What readers raise for stored bytes that are missing or damaged."""


@dataclass(frozen=True)
class Finding:
    """Damage of stored rows."""

    split: str
    array: str
    start: int
    stop: int
    block: int
    file: str
    what: str

    @property
    def remedy(self) -> str:
        """How to mend it."""
        if self.block < 0:
            return f"restore {self.file} from a copy"
        return f"restore {self.file} or write block {self.block} again (overwrite)"

    def __str__(self) -> str:
        rows = f"rows {self.start}-{self.stop}"
        return f"split {self.split}, array {self.array}, {rows}: {self.what}; {self.remedy}"


class Chunks(Protocol):
    """The one reader interface: raw files, or whatever zarr decodes."""

    def read(self, out: np.ndarray[Any, Any], start: int, stop: int) -> int: ...
    def check(self, index: int) -> None: ...
    def close(self) -> None: ...


class Column:
    """Rows of one array of a block, in slots that are filled in turn."""

    def __init__(
        self, root: Place, split: str, name: str, spec: ArraySpec, chunks: Chunks,
        chunk_rows: int, block: Block, expected: str, step_rows: int,
    ) -> None:  # fmt: skip
        self.root, self.split, self.name, self.spec = root, split, name, spec
        self.chunks, self.chunk_rows = chunks, chunk_rows
        self.block, self.expected = block, expected
        shape = (step_rows, *spec.shape)
        slots = SLOTS if step_rows < block.rows else 1
        self._slots = [np.empty(shape, spec.memory_dtype) for _ in range(slots)]
        self._is_wide = spec.dtype == layout.BFLOAT16
        self._narrow = np.empty(shape if self._is_wide else 0, layout.stored_dtype(spec))
        self._crc32c = 0

    def fill(self, slot: int, start: int, stop: int) -> None:
        """Read rows into a slot; ranges must be asked for in order. Raises CorruptError."""
        stored = self._narrow if self._is_wide else self._slots[slot]
        for first, last in cut(start, stop, self.chunk_rows):
            part = stored[first - start : last - start]
            try:
                crc32c = self.chunks.read(part, first, last)
            except FAULTS as error:
                index = first // self.chunk_rows
                raise CorruptError(f"{self.root}, {self._finding(index, str(error))}") from error
            self._crc32c = checksum.joined(self._crc32c, crc32c, part.nbytes)
        if self._is_wide:
            layout.widen_into(self._slots[slot][: stop - start], stored[: stop - start])

    def rows(self, slot: int, rows: int) -> np.ndarray[Any, Any]:
        """Return the first rows of a slot, decoded; valid until the slot is filled again."""
        return self._slots[slot][:rows]

    def check(self) -> None:
        """Raise CorruptError if the rows of the block, all read by now, are not those committed."""
        if checksum.hexadecimal(self._crc32c) != self.expected:
            found = list(self.damaged()) or [self._mismatch()]
            raise CorruptError(f"{self.root}, " + "; ".join(str(one) for one in found[:5]))

    def verify(self) -> Iterator[Finding]:
        """Read every chunk, whatever is found, and yield the damage."""
        found = list(self.damaged())
        yield from found
        if found:
            return
        try:
            for start, stop in cut(self.block.start, self.block.stop, len(self._slots[0])):
                self.fill(0, start, stop)
        finally:
            self.chunks.close()
        if checksum.hexadecimal(self._crc32c) != self.expected:
            yield self._mismatch()

    def damaged(self) -> Iterator[Finding]:
        """Yield the chunks that are missing or do not match their own checksum."""
        first, last = self.block.start // self.chunk_rows, -(-self.block.stop // self.chunk_rows)
        for index in range(first, last):
            try:
                self.chunks.check(index)
            except FAULTS as error:
                yield self._finding(index, str(error))

    def _finding(self, index: int, what: str) -> Finding:
        start = max(index * self.chunk_rows, self.block.start)
        stop = min((index + 1) * self.chunk_rows, self.block.stop)
        directory = self.root / self.split / self.name
        file = layout.chunk_file(directory, index, self.spec)
        return Finding(
            self.split, self.name, start, stop, self.block.index, str(file), " ".join(what.split())
        )

    def _mismatch(self) -> Finding:
        found = checksum.hexadecimal(self._crc32c)
        return Finding(
            self.split, self.name, self.block.start, self.block.stop, self.block.index,
            str(self.root / self.split / self.name),
            f"checksum {found}, the manifest says {self.expected}",
        )  # fmt: skip


def cut(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut rows at the multiples of ``size``."""
    while start < stop:
        end = min(start - start % size + size, stop)
        yield start, end
        start = end


def reading_nbytes(
    specs: Mapping[str, ArraySpec], coded_rows: Mapping[str, int], step_rows: int, slots: int
) -> int:
    """Return the memory of reading arrays, with the chunk rows of those that zarr decodes."""
    total = 0
    for spec in specs.values():
        row = math.prod(spec.shape)
        total += slots * step_rows * row * spec.memory_dtype.itemsize
        total += step_rows * spec.nbytes * (spec.dtype == layout.BFLOAT16)
    held = [rows * specs[name].nbytes for name, rows in coded_rows.items()]
    return total + sum(held) + math.ceil((CODEC_FACTOR - 1) * max(held, default=0))
