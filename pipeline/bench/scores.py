"""Made-up scores: a split whose rows are drawn when they are read, so that no file holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.chunk import ArraySpec, Block, Chunk, Schema

PIECE_ROWS = 2**18
"""Rows that one seed makes."""
BLOCK_ROWS = 2**24

Floats = np.ndarray[Any, np.dtype[np.float32]]


def _energy(normal: Floats, is_ood: bool) -> Floats:
    return normal * np.float32(3) + np.float32(10 if is_ood else 8)


def _msp(normal: Floats, is_ood: bool) -> Floats:
    """Return the larger of two probabilities; those near 1 are few float32 numbers."""
    logit = normal * np.float32(2) + np.float32(9 if is_ood else 7)
    probability: Floats = 1 / (1 + np.exp(-logit))
    return probability


def _rounded(normal: Floats, is_ood: bool) -> Floats:
    return np.round(_energy(normal, is_ood), 3)


KINDS: Mapping[str, Callable[[Floats, bool], Floats]] = {
    "energy": _energy, "msp": _msp, "rounded": _rounded,
}  # fmt: skip
"""N(8, 3) and N(10, 3); sigmoids of N(7, 2) and N(9, 2); the first to three digits."""


@dataclass(frozen=True)
class MadeUpScores:
    """Float32 ``scores`` of a kind, the same whatever is read of them and in whatever order."""

    kind: str
    rows: int
    is_ood: bool
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the split."""
        return "ood/made-up" if self.is_ood else "id/test"

    @property
    def schema(self) -> Schema:
        """One float32 number a row."""
        return Schema(self.rows, 0, {"scores": ArraySpec((), "float32")}, self.name)

    @property
    def blocks(self) -> Sequence[Block]:
        """Blocks of 2^24 rows."""
        starts = range(0, self.rows, BLOCK_ROWS)
        return [Block(i, s, min(s + BLOCK_ROWS, self.rows)) for i, s in enumerate(starts)]

    @property
    def chunk_rows(self) -> int:
        """Rows that are made at a time."""
        return PIECE_ROWS

    def only(self, block: Block) -> MadeUpScores:
        """Return the split itself: it is a few numbers."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the scores of a block, drawn anew."""
        step = min(step_rows or PIECE_ROWS, PIECE_ROWS)
        for start in range(block.start, block.stop, PIECE_ROWS):
            scores = self.drawn(start // PIECE_ROWS)[: block.stop - start]
            for first in range(0, len(scores), step):
                part = scores[first : first + step]
                contents = {"scores": part}
                yield Chunk(self.schema, start + first, len(part), contents, is_ood=self.is_ood)

    def drawn(self, piece: int) -> Floats:
        """Return all scores of one seed."""
        random = np.random.default_rng((self.seed, self.is_ood, piece))
        return KINDS[self.kind](random.standard_normal(PIECE_ROWS, np.float32), self.is_ood)

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of the scores of one seed, and of what they are made from."""
        return 4 * 4 * PIECE_ROWS

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return what the scores of a block are made of."""
        return f"{self.kind} {self.is_ood} {self.seed} {block.start}-{block.stop}"

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return what the scores of a block are made of, for each array."""
        return dict.fromkeys(fields, str(self.identity(block, fields)))


def halves(kind: str, rows: int) -> tuple[MadeUpScores, MadeUpScores]:
    """Return the negatives and the positives of so many rows in all."""
    return MadeUpScores(kind, rows - rows // 2, False), MadeUpScores(kind, rows // 2, True)
