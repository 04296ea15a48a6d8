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
from pathlib import Path

from pipeline.chunk import Block
from pipeline.errors import CorruptError
from pipeline.store import disk, layout
from pipeline.store.declaration import Declaration


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


def write_record(split: Path, record: Record) -> None:
    """Write or replace the record of a block: the moment at which the block counts."""
    disk.write_group(_directory(split, record.index), asdict(record))


def read_record(split: Path, index: int) -> Record | None:
    """Return the record of a block, or None if it was never written."""
    directory = _directory(split, index)
    if not (directory / disk.GROUP_FILE).exists():
        return None
    found = disk.read_group(directory)
    try:
        stored = {name: Stored(**entry) for name, entry in found.pop("arrays").items()}
        return Record(**found, arrays=stored)
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{directory}: the record is damaged ({error})") from error


def indexes(split: Path) -> list[int]:
    """Return the indexes of all blocks with a record, in order."""
    files = (split / layout.MANIFEST).glob(f"block-*/{disk.GROUP_FILE}")
    return sorted(int(file.parent.name.partition("-")[2]) for file in files)


def read_records(split: Path) -> dict[int, Record]:
    """Return the records of all blocks that were ever committed, by index."""
    records = (read_record(split, index) for index in indexes(split))
    return {record.index: record for record in records if record is not None}


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


def _directory(split: Path, index: int) -> Path:
    return split / layout.MANIFEST / f"block-{index:05d}"
