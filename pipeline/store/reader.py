"""Reading a split: block by block, chunk by chunk, the requested arrays only.

A stored split pins the blocks and generations it was opened with. What was overwritten since, what
is missing and what does not match its checksum is an error that names split, array and rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from pipeline.chunk import Arena, ArraySpec, Block, Chunk, Schema
from pipeline.errors import CorruptError, DataError, IncompleteError
from pipeline.store import disk, layout, manifest
from pipeline.store.declaration import Declaration

READS: Counter[tuple[str, str, int]] = Counter()
"""How often this process read each stored chunk, by (split, array, chunk index)."""
_COUNTING = Lock()


def reset_reads() -> None:
    """Start counting from zero."""
    READS.clear()


class StoredSplit:
    """Committed rows of a split on disk, as they were when it was opened.

    Pickles as its path, its name and what it pinned; the arrays are opened where it is read.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        declared: Declaration,
        records: tuple[manifest.Record, ...],
    ) -> None:
        self.root = root
        self.name = name
        self.declared = declared
        self.records = records
        self.blocks = tuple(record.block for record in records)
        self.schema = Schema(
            rows=self.blocks[-1].stop,
            classes=declared.classes,
            arrays=dict(declared.arrays),
            split=name,
        )
        self._arrays: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.root), self.name, len(self.records), self.pin)

    def __repr__(self) -> str:
        return f"StoredSplit({str(self.root)!r}, {self.name!r}, rows={self.schema.rows})"

    @property
    def is_ood(self) -> bool:
        """Whether the rows are out-of-distribution."""
        return layout.is_ood(self.name)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What the writer said of the rows: model, weights, tap, transform, versions."""
        return self.declared.attributes

    @property
    def chunk_rows(self) -> int:
        """Most rows of a chunk that :meth:`read` yields."""
        return self.declared.step_rows

    @cached_property
    def pin(self) -> str:
        """Digest of the declaration and of the records: which bytes this split stands for."""
        return hashlib.sha256(repr((self.declared, self.records)).encode()).hexdigest()

    def only(self, block: Block) -> StoredSplit:
        """Return what a worker process is sent: the split itself, which is but a path."""
        return self

    def read(self, block: Block, fields: frozenset[str]) -> Iterator[Chunk]:
        """Yield the chunks of a block in order, with the given arrays; each is read once.

        Raises CorruptError for bytes that are missing or damaged, DataError for a block that was
        overwritten after the split was opened.
        """
        self._check_pinned(block)
        columns = [self._column(name, block) for name in sorted(self.schema.touched(fields))]
        arena = Arena()
        for start, stop in self._steps(block):
            # Yielded without a name: the rows must not outlive the chunk while the next is read.
            yield Chunk(
                self.schema,
                start,
                stop - start,
                {c.name: layout.decode(c.rows(start, stop), c.spec) for c in columns},
                is_ood=self.is_ood,
                arena=arena,
            )
        for column in columns:
            column.check()
        self._check_pinned(block)

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return the checksums that the manifest holds for the rows of a block."""
        stored = self.record(block).arrays
        return {name: stored[name].crc32c for name in self.schema.touched(fields)}

    def verify(self) -> None:
        """Read every array of every block, which compares them with the manifest."""
        for block in self.blocks:
            for _ in self.read(block, frozenset(self.schema.arrays)):
                pass

    def _steps(self, block: Block) -> Iterator[tuple[int, int]]:
        size = self.chunk_rows
        for first in range(block.start - block.start % size, block.stop, size):
            yield max(first, block.start), min(first + size, block.stop)

    def record(self, block: Block) -> manifest.Record:
        if block not in self.blocks[block.index : block.index + 1]:
            raise DataError(f"{self.root}, split {self.name} has no block {block}")
        return self.records[block.index]

    def _check_pinned(self, block: Block) -> None:
        if manifest.read_record(self.root / self.name, block.index) != self.record(block):
            raise DataError(
                f"{self.root}, split {self.name}: block {block.index} (rows {block.start}-"
                f"{block.stop}) was overwritten after the split was opened; open it again"
            )

    def _column(self, name: str, block: Block) -> _Column:
        if name not in self._arrays:
            directory = self.root / self.name / name
            try:
                self._arrays[name] = layout.open_array(directory, "r")
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise CorruptError(
                    f"{self.root}, split {self.name}: array {name} is committed but cannot be "
                    f"opened ({error}); restore {directory} from a copy"
                ) from error
        return _Column(self, name, self._arrays[name], block)


_NOTHING: tuple[int, np.ndarray[Any, Any]] = (-1, np.empty(0))


class _Column:
    """One array within one block, read front to back; keeps the stored chunk it read last."""

    def __init__(self, split: StoredSplit, name: str, array: Any, block: Block) -> None:
        self.name = name
        self.spec: ArraySpec = split.declared.arrays[name]
        self._split = split
        self._array = array
        self._block = block
        self._size = split.declared.chunk_rows[name]
        self._held = _NOTHING
        self._crc32c = 0

    def check(self) -> None:
        """Raise CorruptError if the rows of the block, all read by now, are not those committed."""
        expected = self._split.record(self._block).arrays[self.name].crc32c
        if manifest.hexadecimal(self._crc32c) != expected:
            raise CorruptError(
                f"{self._split.root}, split {self._split.name}, array {self.name}, rows "
                f"{self._block.start}-{self._block.stop}: checksum "
                f"{manifest.hexadecimal(self._crc32c)}, the manifest says {expected}; write block "
                f"{self._block.index} again (overwrite), or restore it from a copy"
            )

    def rows(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return rows as stored; ranges must be asked for in order."""
        pieces = []
        while start < stop:
            first, chunk = self._chunk(start // self._size)
            pieces.append(chunk[start - first : stop - first])
            start += len(pieces[-1])
            if start == first + len(chunk):  # read to its end: let go of it before the next
                self._held = _NOTHING
            del chunk
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _chunk(self, index: int) -> tuple[int, np.ndarray[Any, Any]]:
        """Return a stored chunk, cut to the block, with the row it starts at."""
        first = max(index * self._size, self._block.start)
        if self._held[0] != first:
            stop = min((index + 1) * self._size, self._block.stop)
            self._held = (first, self._load(index, first, stop))
        return self._held

    def _load(self, index: int, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Read rows of one stored chunk: the one place where bytes come off the store."""
        split = self._split
        with _COUNTING:
            READS[split.name, self.name, index] += 1
        file = layout.chunk_file(split.root / split.name / self.name, index, self.spec)
        try:
            if not file.exists():  # zarr would answer with fill values
                raise FileNotFoundError("the file is missing")
            rows: np.ndarray[Any, Any] = self._array[start:stop]
            if rows.shape != (stop - start, *self.spec.shape):
                raise ValueError(f"expected {stop - start} rows, got shape {rows.shape}")
            self._crc32c = manifest.crc32c(rows, self._crc32c)
        except (OSError, ValueError, RuntimeError) as error:
            raise CorruptError(
                f"{split.root}, split {split.name}, array {self.name}, rows {start}-{stop}: "
                f"{error}; restore {file} or write block {self._block.index} again (overwrite)"
            ) from error
        return rows


def open_split(root: Path, name: str, *, allow_partial: bool = False) -> StoredSplit:
    """Open a split; raises IncompleteError that names the rows which were never committed."""
    declared = Declaration.from_attributes(disk.read_group(root / name), f"{root}, split {name}")
    records = manifest.read_records(root / name)
    blocks = manifest.all_blocks(declared, records)
    missing = [block for block in blocks if block.index not in records]
    count = missing[0].index if missing else len(blocks)
    if missing and not (allow_partial and count):
        raise IncompleteError(
            f"{root}, split {name} is incomplete: {manifest.describe_rows(missing)} "
            f"({len(missing)} of {len(blocks)} blocks) were never committed; finish writing it"
            + (f", or allow a partial read of rows 0-{missing[0].start}" if count else "")
        )
    if not count:
        raise IncompleteError(f"{root}, split {name} holds no rows yet; append some first")
    return StoredSplit(root, name, declared, tuple(records[index] for index in range(count)))


@lru_cache(maxsize=64)
def _reopen(root: str, name: str, count: int, pin: str) -> StoredSplit:
    """Open a pickled split in another process, once, and make sure that it is still the same."""
    split = open_split(Path(root), name, allow_partial=True)
    split = StoredSplit(split.root, name, split.declared, split.records[:count])
    if split.pin != pin:
        raise DataError(f"{root}, split {name} was overwritten after it was opened; open it again")
    return split
