"""The manifest: one record per block, written after the block's bytes have reached the disk.

A chunk counts only if a record says so: zarr itself reads a missing chunk as fill values. Records
are tiny zarr groups, so that any zarr reader opens the store without a warning.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from pipeline.chunk import Block
from pipeline.errors import CorruptError, ExistsRefusedError, MissingInputError
from pipeline.store import disk, layout
from pipeline.store.declaration import Declaration
from pipeline.store.place import ObjectPlace, Place, each, is_local

_BLOCK = "block-"


@dataclass(frozen=True)
class Stored:
    """Bytes and checksum of the rows of one block in one array."""

    nbytes: int
    crc32c: str


@dataclass(frozen=True)
class Record:
    """What is known of a block on disk; without arrays it is being written again, or removed."""

    index: int
    start: int
    rows: int
    generation: int
    written: str
    writer: str
    arrays: Mapping[str, Stored]
    removed: bool = False
    """Whether the block was taken out for good; its index and rows stay taken."""

    @classmethod
    def of(
        cls,
        block: Block,
        generation: int,
        arrays: Mapping[str, Stored],
        *,
        removed: bool = False,
    ) -> Record:
        """Make the record of a block written now, by this process."""
        return cls(
            index=block.index,
            start=block.start,
            rows=block.rows,
            generation=generation,
            written=datetime.now(UTC).isoformat(timespec="seconds"),
            writer=f"{socket.gethostname()}:{os.getpid()}",
            arrays=arrays,
            removed=removed,
        )

    @property
    def block(self) -> Block:
        """The rows the record speaks of."""
        return Block(self.index, self.start, self.start + self.rows)

    @property
    def committed(self) -> bool:
        """Whether the bytes are there."""
        return bool(self.arrays)


def write_record(split: Place, record: Record, *, new: bool = False) -> None:
    """Write or replace the record of a block: the moment at which the block counts.

    In an object store the record of a block that had none is ``new``: of two writers of one block
    the first is kept, and the other is refused unless it wrote the same rows.
    """
    try:
        disk.write_group(record_place(split, record.index), asdict(record), new=new)
    except ExistsRefusedError:
        other = read_record(split, record.index)
        if other is not None and other.arrays == record.arrays:
            return
        who = "somebody else" if other is None else other.writer
        raise ExistsRefusedError(
            f"{split}: block {record.index} (rows {record.start}-{record.start + record.rows}) was "
            f"written with other rows by {who} meanwhile; a block has one writer at a time: write "
            "it again with overwrite=True"
        ) from None


def read_record(split: Place, index: int) -> Record | None:
    """Return the record of a block, or None if it was never written."""
    directory = record_place(split, index)
    if is_local(directory):
        if not disk.is_group(directory):
            return None
        found = disk.read_group(directory)
    else:
        try:
            found = disk.read_attributes(directory)
        except MissingInputError:
            return None
    try:
        stored = {name: Stored(**entry) for name, entry in found.pop("arrays").items()}
        return Record(**found, arrays=stored)
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{directory}: the record is damaged ({error})") from error


def indexes(split: Place) -> list[int]:
    """Return the indexes of all blocks with a record, in order."""
    directory = split / layout.MANIFEST
    if isinstance(directory, ObjectPlace):
        names = [name for name in directory.children() if name.startswith(_BLOCK)]
    else:
        assert is_local(directory)
        names = [file.parent.name for file in directory.glob(f"{_BLOCK}*/{disk.GROUP_FILE}")]
    return sorted(int(name.removeprefix(_BLOCK)) for name in names)


def read_records(split: Place) -> dict[int, Record]:
    """Return the records of all blocks that were ever committed, by index."""
    if isinstance(split, ObjectPlace) and split.is_read_only:
        return _probed(split)
    records = each(lambda index: read_record(split, index), indexes(split), split)
    return {record.index: record for record in records if record is not None}


def _probed(split: ObjectPlace) -> dict[int, Record]:
    """Return the records of a split that a web server offers, which lists nothing.

    Blocks are numbered from 0 without gaps but for those not written yet of a split with allotted
    blocks, so the records are asked for until one beyond these is not there.
    """
    declared = Declaration.from_attributes(disk.read_attributes(split), str(split))
    allotted = list(range(len(declared.allotted)))
    found = each(lambda index: read_record(split, index), allotted, split)
    records = {record.index: record for record in found if record is not None}
    index = len(allotted)
    while (record := read_record(split, index)) is not None:
        records[index] = record
        index += 1
    return records


def committed(records: Mapping[int, Record]) -> dict[int, Record]:
    """Return the records of the blocks that are completely on disk."""
    return {index: record for index, record in records.items() if record.committed}


def all_blocks(declared: Declaration, records: Mapping[int, Record]) -> tuple[Block, ...]:
    """Return the blocks of a split: allotted at creation or appended, without removed ones."""
    blocks = {block.index: block for block in declared.allotted}
    blocks |= {index: record.block for index, record in records.items()}
    gone = {index for index, record in records.items() if record.removed}
    return tuple(blocks[index] for index in sorted(blocks) if index not in gone)


def describe_rows(blocks: Iterable[Block]) -> str:
    """Say which rows blocks cover, e.g. ``rows 0-40, 80-100``; the end is not included."""
    spans: list[list[int]] = []
    for block in blocks:
        if spans and spans[-1][1] == block.start:
            spans[-1][1] = block.stop
        else:
            spans.append([block.start, block.stop])
    shown = ", ".join(f"{start}-{stop}" for start, stop in spans[:8])
    return f"rows {shown}" + (f" and {len(spans) - 8} more ranges" if len(spans) > 8 else "")


def record_place(split: Place, index: int) -> Place:
    """Return where the record of a block lies."""
    return split / layout.MANIFEST / f"{_BLOCK}{index:05d}"
