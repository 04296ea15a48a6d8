"""Made-up rows of a given schema: what plans rehearse on instead of data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.chunk import Block, Chunk, Schema, Split

ROWS = 64
"""Rows that are made up at a time."""
CLASSES = 8
"""Classes of the first rows: few, so that several rows vary about the mean of one."""
CLASSES_LIMIT = 4096
"""Classes that have a row: what is fitted of each is then as large as it will be."""
SEPARATION = 5.0


@dataclass(frozen=True)
class SyntheticSplit:
    """A few random rows whose features and logits favour their labels."""

    schema: Schema
    is_ood: bool = False
    seed: int = 0
    """Another seed makes other values, that favour their labels less."""

    @classmethod
    def of(cls, split: Split, *, every_class: bool = False) -> SyntheticSplit:
        """Return made-up rows that look like those of ``split``; at wish, some of every class."""
        schema = split.schema
        absent = every_class and schema.classes > CLASSES
        further = min(schema.classes, CLASSES_LIMIT) if absent else 0
        rows = ROWS * (1 + -(-further // ROWS))
        return cls(Schema(rows, schema.classes, schema.arrays, schema.split), split.is_ood)

    @property
    def name(self) -> str:
        return self.schema.split

    @property
    def blocks(self) -> Sequence[Block]:
        return (Block(0, 0, self.schema.rows),)

    @property
    def chunk_rows(self) -> int:
        return ROWS

    def only(self, block: Block) -> SyntheticSplit:
        """Return what a worker needs to read ``block``."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the rows; further ones are the first ones again, with other labels."""
        step = min(step_rows or ROWS, ROWS)
        contents = {name: self._array(name) for name in sorted(fields)}
        for start in range(0, self.schema.rows, ROWS):
            if start and "labels" in contents and not self._unlabelled:
                further = (start - ROWS + np.arange(ROWS)) % self.schema.classes
                contents["labels"] = self._classes("labels", further)
            for first in range(0, ROWS, step):
                cut = {name: array[first : first + step] for name, array in contents.items()}
                rows = min(step, ROWS - first)
                yield Chunk(self.schema, start + first, rows, cut, is_ood=self.is_ood)

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of the rows of a chunk, and of the random values they are made of."""
        specs = [self.schema.arrays[name] for name in self.schema.touched(fields)]
        values = sum(math.prod(spec.shape) for spec in specs)
        return 2 * 8 * ROWS * values

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: nothing is stored."""
        return None

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Made-up rows have the checksum of their schema: none."""
        return dict.fromkeys(fields, "synthetic")

    def _classes(self, name: str, each: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return classes for every element of rows; 0 or 1 where an axis of classes has its own."""
        shape = self.schema.arrays[name].shape
        if shape[:1] == (self.schema.classes,):
            each = each % 2
        filled = np.broadcast_to(each.reshape(-1, *(1,) * len(shape)), (len(each), *shape))
        return np.ascontiguousarray(filled)

    @property
    def _unlabelled(self) -> bool:
        return self.is_ood or self.schema.classes < 1

    def _array(self, name: str) -> np.ndarray[Any, Any]:
        """Return the first rows of an array."""
        spec = self.schema.arrays[name]
        labels = np.arange(ROWS) % max(1, min(CLASSES, self.schema.classes))
        if name in ("labels", "predictions") and spec.memory_dtype.kind != "f":
            return self._classes(name, np.full(ROWS, -1) if self._unlabelled else labels)
        random = np.random.default_rng(len(name) + 1000 * self.seed)
        if name == "mask" or not (spec.shape or spec.memory_dtype.kind == "f"):
            return np.ones((ROWS, *spec.shape), spec.memory_dtype)
        values = random.standard_normal((ROWS, *spec.shape))
        if spec.memory_dtype.kind == "b":
            return values > 0
        if not spec.shape:
            values = np.abs(values)  # scores may have any sign, weights of rows may not
        if spec.shape:
            values[np.arange(ROWS), ..., labels % spec.shape[-1]] += SEPARATION / (1 + self.seed)
        if spec.memory_dtype.kind != "f":  # integer features vary as well, within any dtype
            values = np.clip(np.rint(8 * values + 40), 0, 127)
        return values.astype(spec.memory_dtype)
