"""What a split was declared to be: its arrays, classes, chunk rows, block rows and attributes.

Chunks split along rows only. A block is a run of chunks, and the chunk rows of every array divide
the rows of a block, so two blocks never share a file and can be written at the same time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.chunk import IS_OOD, ArraySpec, Block
from pipeline.content import whole_number
from pipeline.errors import ConfigError, CorruptError, DataError
from pipeline.store import disk, layout


@dataclass(frozen=True)
class Declaration:
    """What a split was declared to be when it was created; it never changes."""

    classes: int
    rows: int | None
    """Rows allotted in advance, or None if the split only grows by appending."""
    arrays: Mapping[str, ArraySpec]
    block_rows: int
    chunk_rows: Mapping[str, int]
    attributes: Mapping[str, Any]

    @property
    def allotted(self) -> tuple[Block, ...]:
        """The blocks whose rows were fixed at creation."""
        starts = range(0, self.rows or 0, self.block_rows)
        stops = [min(start + self.block_rows, self.rows or 0) for start in starts]
        return tuple(Block(i, a, b) for i, (a, b) in enumerate(zip(starts, stops, strict=True)))

    @property
    def step_rows(self) -> int:
        """Rows of the chunks that readers step through: those of the array with the widest rows."""
        return self.chunk_rows[widest(self.arrays)]

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the split's group."""
        specs = {
            name: {
                "shape": list(spec.shape),
                "dtype": spec.dtype,
                "layout": spec.layout,
                "chunk_rows": self.chunk_rows[name],
            }
            for name, spec in self.arrays.items()
        }
        own = {
            "schema_version": layout.SCHEMA_VERSION,
            "classes": self.classes,
            "rows": self.rows,
            "block_rows": self.block_rows,
            "arrays": specs,
        }
        return {**self.attributes, layout.DECLARATION: own}

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any], where: str) -> Declaration:
        """Read back :meth:`to_attributes`; ``where`` names the split in errors."""
        own = check_version(attributes, where)
        try:
            return cls(
                classes=own["classes"],
                rows=own["rows"],
                arrays={
                    name: ArraySpec(tuple(spec["shape"]), spec["dtype"], spec["layout"])
                    for name, spec in own["arrays"].items()
                },
                block_rows=own["block_rows"],
                chunk_rows={name: spec["chunk_rows"] for name, spec in own["arrays"].items()},
                attributes={
                    key: attributes[key] for key in attributes if key != layout.DECLARATION
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"{where}: the declaration is damaged, no {error}") from error

    def differences(self, other: Declaration) -> list[str]:
        """Say in words where two declarations differ."""
        mine, theirs = self.to_attributes(), other.to_attributes()
        pairs = [
            *_pairs(mine.pop(layout.DECLARATION), theirs.pop(layout.DECLARATION)),
            *_pairs(mine, theirs),
        ]
        return [f"{key}: stored {a!r}, asked for {b!r}" for key, a, b in pairs if a != b]


def _pairs(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(key, mine.get(key), theirs.get(key)) for key in sorted({*mine, *theirs})]


def check_version(attributes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return this package's own attribute, if it is there and of a version known here."""
    own = attributes.get(layout.DECLARATION)
    if not isinstance(own, dict):
        raise ConfigError(f"{where} is a zarr group, but was not written by featfold; import it")
    if own.get("schema_version") != layout.SCHEMA_VERSION:
        raise ConfigError(
            f"{where} has schema version {own.get('schema_version')}, this featfold reads "
            f"{layout.SCHEMA_VERSION}; use the version that wrote it"
        )
    return own


def declare(
    specs: Mapping[str, ArraySpec],
    *,
    classes: int,
    rows: int | None,
    block_nbytes: int,
    chunk_nbytes: int,
    attributes: Mapping[str, Any],
) -> Declaration:
    """Choose chunk and block rows for arrays of the given row shapes; check the declaration.

    A block is a whole number of chunks, so these are no larger than a block is to be.
    """
    classes = whole_number(classes, "classes", 0)
    for what, nbytes in (("block_nbytes", block_nbytes), ("chunk_nbytes", chunk_nbytes)):
        whole_number(nbytes, what)
    rows = None if rows is None else whole_number(rows, "rows", 0)
    if rows == 0:
        raise DataError("a split needs at least one row, got rows=0")
    if not specs:
        raise ConfigError("a split needs at least one array")
    if layout.DECLARATION in attributes:
        raise ConfigError(f"the attribute {layout.DECLARATION!r} is reserved")
    for name, spec in specs.items():
        _check_spec(name, spec)
    layout.check_mask(specs, "a split")
    limits = {
        name: max(1, min(chunk_nbytes, block_nbytes) // spec.nbytes) for name, spec in specs.items()
    }
    step = min(limits[widest(specs)], rows or limits[widest(specs)])
    row_nbytes = sum(spec.nbytes for spec in specs.values())
    block_rows = step * max(1, block_nbytes // (row_nbytes * step))
    if rows is not None:
        block_rows = min(block_rows, step * math.ceil(rows / step))
    chunk_rows = {name: _largest_divisor(block_rows, limit) for name, limit in limits.items()}
    chunk_rows[widest(specs)] = step
    for name, spec in specs.items():
        _check_chunk(name, spec, chunk_rows[name])
    plain = json.loads(disk.to_json(dict(attributes)))  # equal to what will be read back
    return Declaration(classes, rows, dict(specs), block_rows, chunk_rows, plain)


def _check_spec(name: str, spec: ArraySpec) -> None:
    if not re.fullmatch(layout.NAME, name) or name in (layout.MANIFEST, IS_OOD):
        raise ConfigError(f"{name!r} cannot be the name of an array")
    if spec.dtype not in layout.DTYPES:
        raise ConfigError(
            f"{name}: dtype {spec.dtype!r}; choose one of {', '.join(sorted(layout.DTYPES))}"
        )
    if any(length < 1 for length in spec.shape):
        raise ConfigError(f"{name}: every axis of a row needs a length >= 1, got {spec.shape}")
    if spec.layout and (
        len(set(spec.layout)) != len(spec.layout) or len(spec.layout) != len(spec.shape)
    ):
        raise ConfigError(
            f"{name}: layout {spec.layout!r} must name the axes of {spec.shape} once each"
        )
    if name == "labels" and "int" not in spec.dtype:
        raise ConfigError(f"labels must be integers, got {spec.dtype}")


def _check_chunk(name: str, spec: ArraySpec, rows: int) -> None:
    if rows * spec.nbytes > layout.LARGEST_CHUNK_NBYTES:
        fitting = max(1, layout.CHUNK_NBYTES // spec.nbytes)
        remedy = (
            f"use chunks of {fitting} rows ({fitting * spec.nbytes / 1e6:.1f} MB)"
            if spec.nbytes <= layout.LARGEST_CHUNK_NBYTES
            else "store narrower rows, e.g. pooled tokens or float16"
        )
        raise ConfigError(
            f"{name}: a chunk of {rows} rows of {spec.shape} {spec.dtype} takes "
            f"{rows * spec.nbytes / 1e9:.2f} GB; the codecs' limit is 2.15 GB; {remedy}"
        )


def widest(specs: Mapping[str, ArraySpec]) -> str:
    """Return the array whose rows take most bytes: its chunks are what readers step through."""
    return max(specs, key=lambda name: (specs[name].nbytes, name == "features", name))


def _largest_divisor(number: int, limit: int) -> int:
    small = [i for i in range(1, math.isqrt(number) + 1) if number % i == 0]
    return max(d for i in small for d in (i, number // i) if d <= limit)
