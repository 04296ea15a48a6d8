"""Gathering: chunks of any number of rows become grains, runs of a fixed number of rows.

Floats are accumulated grain by grain, counted from the start of the block, so the size of the
chunks does not change the order of any sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Arena, Block, Chunk, Schema
from pipeline.views import View


class Taker(Protocol):
    """What is handed grain after grain of its views."""

    @property
    def grain(self) -> int:
        """Rows of a grain."""
        ...

    @property
    def views(self) -> tuple[View, ...]:
        """Views that a grain must hold."""
        ...

    def absorb(self, chunk: Chunk) -> None:
        """Take a grain; its arrays are valid only during the call."""
        ...


class Gather:
    """Cuts the views of chunks into grains for those whose grains have the same rows.

    A grain that lies within one chunk is handed on as it is; the last one of a block may be
    shorter, and so is one before rows of another shape, such as masks of images of several sizes.
    Rows that wait for the next chunk are copied, as the memory of a chunk is valid only until then.
    """

    def __init__(
        self, grain: int, takers: Sequence[Taker], schema: Schema, arena: Arena, end: int
    ) -> None:
        self.grain, self.takers, self.schema, self.arena = grain, takers, schema, arena
        self.end = end
        self.views = tuple(dict.fromkeys(view for taker in takers for view in taker.views))
        self.buffers: dict[View, Array] = {}
        self.held = self.start = 0
        self.is_ood = False

    def push(self, chunk: Chunk) -> None:
        """Take the views of a chunk, cut where a grain ends."""
        views = {view: view(chunk) for view in self.views}
        self.is_ood = chunk.is_ood
        if self.held and any(self.buffers[v].shape[1:] != x.shape[1:] for v, x in views.items()):
            self.flush()
        taken = 0
        while taken < chunk.rows:
            if not self.held:
                self.start = chunk.start + taken
            stop = min(chunk.rows, taken + self.grain - self.held)
            pieces = {view: array[taken:stop, ...] for view, array in views.items()}
            ends = stop - taken == self.grain or chunk.start + stop == self.end
            if ends and not self.held:
                self._hand_on(pieces, stop - taken)
            else:
                self._hold(pieces, stop - taken)
            taken = stop

    def flush(self) -> None:
        """Hand on the rows that are held."""
        if self.held:
            rows, self.held = self.held, 0
            self._hand_on({view: buffer[:rows, ...] for view, buffer in self.buffers.items()}, rows)

    def _hold(self, pieces: dict[View, Array], rows: int) -> None:
        for view, piece in pieces.items():
            if view not in self.buffers or self.buffers[view].shape[1:] != piece.shape[1:]:
                self.buffers[view] = arrays.namespace(piece).empty(
                    (self.grain, *piece.shape[1:]),
                    dtype=piece.dtype,
                    device=arrays.device_of(piece),
                )
            self.buffers[view][self.held : self.held + rows, ...] = piece
        self.held += rows
        if self.held == self.grain:
            self.flush()

    def _hand_on(self, views: dict[View, Array], rows: int) -> None:
        grain = Chunk(
            self.schema, self.start, rows, {}, is_ood=self.is_ood, arena=self.arena, views=views
        )
        for taker in self.takers:
            taker.absorb(grain)


def gathers(takers: Sequence[Taker], schema: Schema, arena: Arena, block: Block) -> list[Gather]:
    """Return a gather for each length of grain, none longer than the block."""
    by_grain: dict[int, list[Taker]] = {}
    for taker in takers:
        by_grain.setdefault(min(taker.grain, max(block.rows, 1)), []).append(taker)
    return [
        Gather(grain, members, schema, arena, block.stop) for grain, members in by_grain.items()
    ]
