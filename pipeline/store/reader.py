"""Reading a split: block by block, chunk by chunk, the requested arrays only.

A stored split pins the blocks and generations it was opened with. What was overwritten since, what
is missing and what does not match its checksum is an error that names split, array and rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import cached_property, lru_cache
from typing import Any

from pipeline.chunk import Arena, Block, Chunk, Schema
from pipeline.content import digest
from pipeline.errors import ConfigError, CorruptError, DataError, IncompleteError
from pipeline.store import disk, layout, manifest, place, raw
from pipeline.store.coded import CodedChunks
from pipeline.store.column import Chunks, Column, Finding, reading_nbytes
from pipeline.store.declaration import Declaration
from pipeline.store.head import SavedHead, read_head
from pipeline.store.prefetch import SLOTS, prefetched
from pipeline.store.reads import READS as READS
from pipeline.store.reads import reset_reads as reset_reads


class StoredSplit:
    """Committed rows of a split on disk, as they were when it was opened.

    Pickles as its path, its name and what it pinned; the arrays are opened where it is read.
    """

    def __init__(
        self,
        root: place.Place,
        name: str,
        declared: Declaration,
        records: tuple[manifest.Record, ...],
    ) -> None:
        self.root: Any = root
        self.name = name
        self.declared = declared
        self.records = records
        self.blocks = tuple(record.block for record in records)
        self.schema = Schema(
            rows=sum(block.rows for block in self.blocks),
            classes=declared.classes,
            arrays=dict(declared.arrays),
            split=name,
        )
        self._records = {record.index: record for record in records}
        self._arrays: dict[str, Any] = {}
        self._trailers: dict[str, int | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.root), self.name, self.records[-1].index, self.pin)

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
    def head(self) -> SavedHead | None:
        """The head of the model, where the store has one."""
        return read_head(self.root)

    @property
    def chunk_rows(self) -> int:
        """Most rows of a chunk that :meth:`read` yields where it is not told otherwise."""
        return self.declared.step_rows

    @cached_property
    def pin(self) -> str:
        """Digest of the declaration and of the records: which bytes this split stands for."""
        return hashlib.sha256(repr((self.declared, self.records)).encode()).hexdigest()

    def only(self, block: Block) -> StoredSplit:
        """Return what a worker process is sent: the split itself, which is but a path."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of a block in order, with the given arrays; each is read once.

        A helper thread reads ahead. Raises CorruptError for bytes that are missing or damaged,
        DataError for a block that was overwritten or removed after the split was opened.
        """
        self._check_pinned(block)
        step = min(self._step(step_rows), block.rows)
        names = sorted(self.schema.touched(fields))
        columns = {name: self._column(name, block, step) for name in names}
        starts = range(block.start, block.stop, step)
        steps = [(start, min(start + step, block.stop)) for start in starts]

        def fill(slot: int, rows: tuple[int, int]) -> None:
            for column in columns.values():
                column.fill(slot, *rows)

        arena = Arena()
        try:
            with closing(prefetched(steps, fill)) as slots:
                for (start, stop), slot in zip(steps, slots, strict=True):
                    rows = stop - start
                    contents = {name: c.rows(slot, rows) for name, c in columns.items()}
                    yield Chunk(self.schema, start, rows, contents, is_ood=self.is_ood, arena=arena)
        finally:
            for column in columns.values():
                column.chunks.close()
        for column in columns.values():
            column.check()
        self._check_pinned(block)

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the most memory that :meth:`read` holds: slots, and chunks to fetch or decode."""
        names = self.schema.touched(fields)
        largest = max(block.rows for block in self.blocks)
        step = min(self._step(step_rows), largest)
        sizes = self.declared.chunk_rows
        held = [name for name in names if self._is_remote or self._trailer(name) is None]
        coded = {name: min(sizes[name], largest) for name in held}
        specs = {name: self.schema.arrays[name] for name in names}
        return reading_nbytes(specs, coded, step, SLOTS if step < largest else 1)

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return the checksums that the manifest holds for the rows of a block."""
        stored = self.record(block).arrays
        return {name: stored[name].crc32c for name in self.schema.touched(fields)}

    def identity(self, block: Block, fields: frozenset[str]) -> str:
        """Return a digest of what the manifest says of the given arrays of a block."""
        stored = self.record(block).arrays
        bytes_of = {
            name: (stored[name].nbytes, stored[name].crc32c) for name in self.schema.touched(fields)
        }
        return digest((self.name, block.index, block.start, block.stop, bytes_of))

    def verify(self, names: Iterable[str] | None = None) -> list[Finding]:
        """Read every array (or those of ``names``) of every block, and return all damage."""
        return [
            finding
            for block in self.blocks
            for name in sorted(self.schema.arrays if names is None else names)
            for finding in self._verify(name, block)
        ]

    def _verify(self, name: str, block: Block) -> Iterator[Finding]:
        try:
            column = self._column(name, block, min(self.chunk_rows, block.rows))
        except CorruptError as error:
            directory = self.root / self.name / name
            yield Finding(
                self.name, name, block.start, block.stop, block.index,
                str(directory / disk.GROUP_FILE), str(error.__cause__),
            )  # fmt: skip
        else:
            yield from column.verify()

    def _step(self, step_rows: int | None) -> int:
        if step_rows is not None and step_rows < 1:
            raise ConfigError(f"step_rows must be at least 1, got {step_rows}")
        return step_rows or self.chunk_rows

    def record(self, block: Block) -> manifest.Record:
        """Return what the manifest says of a block."""
        found = self._records.get(block.index)
        if found is None or found.block != block:
            raise DataError(f"{self.root}, split {self.name} has no block {block}")
        return found

    def _check_pinned(self, block: Block) -> None:
        now = manifest.read_record(self.root / self.name, block.index)
        if now != self.record(block):
            done = "removed" if now is not None and now.removed else "overwritten"
            raise DataError(
                f"{self.root}, split {self.name}: block {block.index} (rows {block.start}-"
                f"{block.stop}) was {done} after the split was opened; open it again"
            )

    def _column(self, name: str, block: Block, step_rows: int) -> Column:
        spec, rows = self.declared.arrays[name], self.declared.chunk_rows[name]
        expected = self.record(block).arrays[name].crc32c
        chunks = self._chunks(name, block)
        return Column(self.root, self.name, name, spec, chunks, rows, block, expected, step_rows)

    def _chunks(self, name: str, block: Block) -> Chunks:
        directory, trailer = self.root / self.name / name, self._trailer(name)
        spec, rows = self.declared.arrays[name], self.declared.chunk_rows[name]
        if trailer is not None and self._is_remote:
            from pipeline.store.object_array import ObjectChunks

            return ObjectChunks(directory, self.name, spec, rows, trailer, block)
        if trailer is not None:
            return raw.RawChunks(directory, self.name, spec, rows, trailer)
        return CodedChunks(self._array(name), directory, self.name, spec, rows, block.stop)

    @property
    def _is_remote(self) -> bool:
        return not place.is_local(self.root)

    def _trailer(self, name: str) -> int | None:
        """Bytes behind the rows of a raw chunk; None for an array that zarr must decode."""
        if name not in self._trailers:
            directory, spec = self.root / self.name / name, self.declared.arrays[name]
            rows = self.declared.chunk_rows[name]
            self._trailers[name] = raw.checksum_nbytes(directory, spec, rows)
        return self._trailers[name]

    def _array(self, name: str) -> Any:
        if name not in self._arrays:
            directory = self.root / self.name / name
            try:
                self._arrays[name] = layout.open_array(directory, "r")
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise CorruptError(
                    f"{self.root}, split {self.name}: array {name} is committed but cannot be "
                    f"opened ({error}); restore {directory} from a copy"
                ) from error
        return self._arrays[name]


def open_split(root: place.Place, name: str, *, allow_partial: bool = False) -> StoredSplit:
    """Open a split; raises IncompleteError that names the rows which were never committed."""
    declared = Declaration.from_attributes(disk.read_group(root / name), f"{root}, split {name}")
    records = manifest.read_records(root / name)
    blocks = manifest.all_blocks(declared, records)
    missing = [b for b in blocks if b.index not in records or not records[b.index].committed]
    count = blocks.index(missing[0]) if missing else len(blocks)
    if missing and not (allow_partial and count):
        raise IncompleteError(
            f"{root}, split {name} is incomplete: {manifest.describe_rows(missing)} "
            f"({len(missing)} of {len(blocks)} blocks) were never committed; finish writing it"
            + (f", or allow a partial read of rows 0-{missing[0].start}" if count else "")
        )
    if not count:
        raise IncompleteError(f"{root}, split {name} holds no rows yet; append some first")
    if declared.attributes.get(layout.UNFINISHED) and not allow_partial:
        raise IncompleteError(
            f"{root}, split {name} is incomplete: it ends for now at row {blocks[-1].stop}, before "
            f"the end of its source; finish writing it, or allow a partial read of what is there"
        )
    return StoredSplit(root, name, declared, tuple(records[b.index] for b in blocks[:count]))


@lru_cache(maxsize=64)
def _reopen(root: str, name: str, last: int, pin: str) -> StoredSplit:
    """Open a pickled split in another process, once, and make sure that it is still the same."""
    split = open_split(place.at(root), name, allow_partial=True)
    records = tuple(record for record in split.records if record.index <= last)
    if not records or (split := StoredSplit(split.root, name, split.declared, records)).pin != pin:
        raise DataError(
            f"{root}, split {name} was overwritten after it was opened, or lost a block; "
            "open it again"
        )
    return split
