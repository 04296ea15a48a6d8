"""The pooled copy: a vector for the tokens of a row, kept by the first pass that computes them.

A copy is a table of rows among the partials, float64 as the view gives it, so a later pass that
needs no more than the means, say, reads 8 bytes for every 49 x 4 of the tokens, and finds
the same bits. Like any partial it is named by the checksums of what it was made from.

A split may hold the means already, in an array ``pooled`` that was written with the tokens, block
by block, and so has a checksum in the same record; its attributes say what it is made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np

from pipeline.chunk import ArraySpec, Block, Chunk, Schema, Split
from pipeline.content import replaced
from pipeline.fold import closure
from pipeline.partials import Partials, key_of
from pipeline.procedure import Rows
from pipeline.views import Finite, Pooled, View
from pipeline.views.pooling import REDUCTIONS

STORED = "pooled"
"""The array of a split that holds the means of its tokens, and the attribute that says of which."""
Copies = Mapping[str, tuple[Rows, str]]
"""Token array -> the table that holds its pooled rows, and the key of its partials."""


def said_of_copy(field: str, masked: bool) -> dict[str, str]:
    """Return what the attributes of a split say of an array ``pooled`` of the tokens ``field``."""
    return {STORED: f"mean of {'the valid tokens' if masked else 'the tokens'} of {field}"}


def stored_means(split: Split) -> str:
    """Return the token array whose means a split stores; empty where it stores none."""
    said = getattr(split, "attributes", {}).get(STORED)
    schema, masked = split.schema, "mask" in split.schema.arrays
    if said is None or STORED not in schema.arrays:
        return ""
    for field, spec in schema.arrays.items():
        means = ArraySpec(spec.shape[-1:], "float64", "D")
        if len(spec.shape) == 2 and {STORED: said} == said_of_copy(field, masked):
            return field if schema.arrays[STORED] == means else ""
    return ""


def copies_of(views: Iterable[View], split: Split) -> Copies:
    """Return the copies that could stand for the token arrays behind ``views``.

    An array that any view looks at in another way than pooled, or that is pooled in several ways,
    is left out. Scores of masked tokens are read with their mask, which a copy does not hold: a row
    without a valid token has none, and is not one whose features are not finite.
    """
    seen = list(closure(views))
    if "mask" in split.schema.arrays and any(hasattr(view, "scorer") for view in seen):
        return {}
    hows = {view for view in seen if _pools_tokens(view, split.schema)}
    whole = {field for view in seen for field in _whole(view, split.schema)}
    several = Counter(view.field for view in hows)
    return {
        view.field: copy
        for view, copy in _tables(hows, split).items()
        if view.field not in whole and several[view.field] == 1
    }


def pools(views: Iterable[View], split: Split) -> Sequence[tuple[Rows, str]]:
    """Return the copies that a pass over ``views`` computes anyway and may keep."""
    hows = {view for view in closure(views) if _pools_tokens(view, split.schema)}
    return list(_tables(hows - {Pooled("mean", stored_means(split))}, split).values())


def _tables(hows: Iterable[Pooled], split: Split) -> Mapping[Pooled, tuple[Rows, str]]:
    tables = {view: Rows(view, strict=False) for view in sorted(hows, key=_field_and_how)}
    return {view: (table, key_of(table, split)) for view, table in tables.items()}


def _field_and_how(view: Pooled) -> tuple[str, str]:
    return view.field, view.how


def _pools_tokens(view: View, schema: Schema) -> TypeGuard[Pooled]:
    """Tell whether a view makes one vector of tokens, which is finite where all of them are."""
    reduces = isinstance(view, Pooled) and (view.how == "mean" or view.how in REDUCTIONS)
    return reduces and len(schema.spec(view.field).shape) == 2  # type: ignore[attr-defined]


def _whole(view: View, schema: Schema) -> frozenset[str]:
    """Return the arrays that a view itself reads otherwise than pooled."""
    if _pools_tokens(view, schema):
        return frozenset()
    if isinstance(view, Finite) and "mask" not in schema.arrays:
        return frozenset()  # a pooled vector is finite where all of its tokens are
    if any(hasattr(part, "nbytes") and callable(part) for part in vars(view).values()):
        return frozenset()  # made of other views, which are looked at themselves
    return frozenset() if hasattr(view, "scorer") else view.fields


@dataclass(frozen=True)
class PooledSplit:
    """A stored split whose token arrays are read from their pooled copies."""

    split: Split
    partials: Partials
    keys: Mapping[str, str]
    """Token array -> key of its copy; empty for the means that the split stores itself."""

    @property
    def name(self) -> str:
        return self.split.name

    @cached_property
    def schema(self) -> Schema:
        """The schema of the split, with vectors for tokens."""
        schema = self.split.schema
        vectors = {
            field: ArraySpec(schema.spec(field).shape[-1:], "float64", "D") for field in self.keys
        }
        return replaced(schema, arrays={**schema.arrays, **vectors})

    @property
    def is_ood(self) -> bool:
        return self.split.is_ood

    @property
    def blocks(self) -> Sequence[Block]:
        return self.split.blocks

    @property
    def chunk_rows(self) -> int:
        return self.split.chunk_rows

    def only(self, block: Block) -> PooledSplit:
        """Return the split itself: it is stored."""
        return self

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Name the bytes that the copies were made from."""
        return self.split.identity(block, fields)

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return the checksums of what the copies were made from."""
        return self.split.checksums(block, fields)

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Bytes that reading holds: the copy of a block, and what is read beside it."""
        rows = max(block.rows for block in self.blocks)
        held = {field for field, key in self.keys.items() if key}
        copies = sum(self.schema.spec(field).nbytes for field in fields & held)
        rest = frozenset(fields - self.keys.keys())
        rest |= {STORED} if fields & (self.keys.keys() - held) else set()
        return rows * copies + (self.split.reading_nbytes(rest, step_rows) if rest else 0)

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of a block, with vectors in place of tokens."""
        names = self.schema.touched(fields)
        stored = {field for field in names if self.keys.get(field) == ""}
        copies = {f: self._copy(f, block) for f in (names & self.keys.keys()) - stored}
        rest = frozenset(names - copies.keys() - stored) | ({STORED} if stored else set())
        if rest:
            for chunk in self.split.read(block, rest, step_rows):
                means = dict.fromkeys(stored, chunk.arrays.get(STORED))
                others = {name: rows for name, rows in chunk.arrays.items() if name in names}
                yield self._chunk(block, chunk.start, chunk.rows, copies, {**others, **means})
        else:
            step = step_rows or self.chunk_rows
            for start in range(block.start, block.stop, step):
                rows = min(step, block.stop - start)
                yield self._chunk(block, start, rows, copies, {})

    def _copy(self, field: str, block: Block) -> np.ndarray[Any, Any]:
        names = self.split.schema.touched({field})
        leaf = self.split.identity(block, names)
        assert leaf is not None  # only stored splits have copies
        rows: np.ndarray[Any, Any] = self.partials.get(self.keys[field], leaf).state
        return rows

    def _chunk(
        self,
        block: Block,
        start: int,
        rows: int,
        copies: Mapping[str, np.ndarray[Any, Any]],
        others: Mapping[str, Any],
    ) -> Chunk:
        first = start - block.start
        vectors = {field: copy[first : first + rows] for field, copy in copies.items()}
        return Chunk(self.schema, start, rows, {**others, **vectors}, is_ood=self.is_ood)
