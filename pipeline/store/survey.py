"""What a store holds, split by split, told without reading the rows; and all damage in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import CorruptError, MissingInputError
from pipeline.store import disk, layout, manifest
from pipeline.store.catalog import Store
from pipeline.store.column import Finding
from pipeline.store.declaration import Declaration
from pipeline.store.head import GROUP as HEAD
from pipeline.store.head import HeldHead, survey_head
from pipeline.store.place import Place
from pipeline.store.reader import StoredSplit


@dataclass(frozen=True)
class HeldArray:
    """One array of a split: what a row is, and how rows are stored."""

    name: str
    row_shape: tuple[int, ...]
    dtype: str
    chunk_rows: int
    chunk_nbytes: int
    nbytes: int
    """Logical bytes of the committed rows."""
    compression: str
    """``none``, a codec such as ``zstd``, or ``unknown`` where no array was made yet."""


@dataclass(frozen=True)
class HeldSplit:
    """One split: its committed rows, what is missing, and its arrays."""

    name: str
    classes: int
    rows: int
    blocks: int
    missing: str
    """What was never committed, e.g. ``rows 8-16``, or an end of unknown length; else empty."""
    removed: str
    arrays: tuple[HeldArray, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the content as plain values for JSON."""
        return asdict(self)


def survey(store: Store, name: str) -> HeldSplit:
    """Describe one split. Raises CorruptError where its declaration or a record is damaged."""
    declared, records = _known(store, name)
    committed = manifest.committed(records)
    blocks = manifest.all_blocks(declared, records)
    missing = [block for block in blocks if block.index not in committed]
    removed = [record.block for record in records.values() if record.removed]
    return HeldSplit(
        name=name,
        classes=declared.classes,
        rows=sum(record.rows for record in committed.values()),
        blocks=len(committed),
        missing=manifest.describe_rows(missing) if missing else _missing_end(declared),
        removed=manifest.describe_rows(removed) if removed else "",
        arrays=tuple(
            HeldArray(
                name=array,
                row_shape=spec.shape,
                dtype=spec.dtype,
                chunk_rows=declared.chunk_rows[array],
                chunk_nbytes=declared.chunk_rows[array] * spec.nbytes,
                nbytes=sum(record.arrays[array].nbytes for record in committed.values()),
                compression=_compression(store.path / name / array),
            )
            for array, spec in declared.arrays.items()
        ),
    )


def _missing_end(declared: Declaration) -> str:
    return "later rows" if declared.attributes.get(layout.UNFINISHED) else ""


def damage(store: Store, name: str) -> Iterator[Finding]:
    """Read every committed block of a split, those behind a missing one too; yield all damage."""
    declared, records = _known(store, name)
    committed = manifest.committed(records)
    if committed:
        kept = tuple(committed[index] for index in sorted(committed))
        yield from StoredSplit(store.path, name, declared, kept).verify()


def _known(store: Store, name: str) -> tuple[Declaration, dict[int, manifest.Record]]:
    split = store.path / name
    declared = Declaration.from_attributes(disk.read_group(split), f"{store.path}, split {name}")
    return declared, manifest.read_records(split)


def _compression(directory: Place) -> str:
    try:
        found = json.loads((directory / disk.GROUP_FILE).read_text(encoding="utf-8"))
        names = [codec["name"] for codec in found["codecs"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
    return ", ".join(name for name in names if name not in ("bytes", "crc32c")) or "none"


def examine(store: Store, verify: bool) -> Iterator[HeldSplit | HeldHead | Finding]:
    """Yield every split, the head, and, of damage (all of it if ``verify``), the findings."""
    for name in store.splits():
        try:
            yield survey(store, name)
            if verify:
                yield from damage(store, name)
        except (CorruptError, MissingInputError) as error:
            # Metadata: which rows it speaks of is what can no longer be known.
            yield Finding(name, "(metadata)", 0, 0, -1, str(store.path / name), str(error))
    try:
        if (head := survey_head(store.path)) is not None:
            yield head
            if verify:
                store.head()
    except CorruptError as error:
        yield Finding("(all)", HEAD, 0, 0, -1, str(store.path / HEAD), str(error))
