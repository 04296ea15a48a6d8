"""Made-up rows of a given schema: what plans rehearse on instead of data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.chunk import Block, Chunk, Schema, Split

ROWS = 64
CLASSES = 8
"""Labels in use: few, so that every class in use has several rows."""
SEPARATION = 5.0


@dataclass(frozen=True)
class SyntheticSplit:
    """A few random rows whose features and logits favour their labels."""

    schema: Schema
    is_ood: bool = False

    @classmethod
    def of(cls, split: Split) -> SyntheticSplit:
        """Return made-up rows that look like those of ``split``."""
        schema = split.schema
        return cls(Schema(ROWS, schema.classes, schema.arrays, schema.split), split.is_ood)

    @property
    def name(self) -> str:
        return self.schema.split

    @property
    def blocks(self) -> Sequence[Block]:
        return (Block(0, 0, self.schema.rows),)

    @property
    def chunk_rows(self) -> int:
        return self.schema.rows

    def only(self, block: Block) -> SyntheticSplit:
        """Return what a worker needs to read ``block``."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the rows, made up once, as one chunk or step by step."""
        contents = {name: self._array(name) for name in sorted(fields)}
        for start in range(0, self.schema.rows, step_rows or self.schema.rows):
            part = slice(start, start + (step_rows or self.schema.rows))
            cut = {name: array[part] for name, array in contents.items()}
            rows = min(part.stop, self.schema.rows) - start
            yield Chunk(self.schema, start, rows, cut, is_ood=self.is_ood)

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of all rows, and of the random values they are made of."""
        specs = [self.schema.arrays[name] for name in self.schema.touched(fields)]
        values = sum(math.prod(spec.shape) for spec in specs)
        return 2 * 8 * self.schema.rows * values

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: nothing is stored."""
        return None

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Made-up rows have the checksum of their schema: none."""
        return dict.fromkeys(fields, "synthetic")

    def _array(self, name: str) -> np.ndarray[Any, Any]:
        spec = self.schema.arrays[name]
        rows = self.schema.rows
        labels = np.arange(rows) % max(1, min(CLASSES, self.schema.classes))
        if name == "labels":
            unlabelled = self.is_ood or self.schema.classes < 1
            return np.full(rows, -1) if unlabelled else labels
        random = np.random.default_rng(len(name))
        if name == "mask" or not (spec.shape or spec.memory_dtype.kind == "f"):
            return np.ones((rows, *spec.shape), spec.memory_dtype)
        values = random.standard_normal((rows, *spec.shape))
        if spec.memory_dtype.kind == "b":
            return values > 0
        if spec.shape:
            values[np.arange(rows), ..., labels % spec.shape[-1]] += SEPARATION
        if spec.memory_dtype.kind != "f":  # integer features vary as well, within any dtype
            values = np.clip(np.rint(8 * values + 40), 0, 127)
        return values.astype(spec.memory_dtype)
