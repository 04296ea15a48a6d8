"""Passes over streams: rows that come once, in order, and are nowhere when they were folded.

Whoever makes the rows (a model, say) does so in the calling thread, whose device and random state
it knows; where that is asked for, one thread beside it folds them meanwhile. Blocks, grains and the
merge tree are those of stored rows, so the results are the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pipeline import stopping
from pipeline.arrays import HOST, Place
from pipeline.chunk import Block, Chunk, Schema, Split
from pipeline.engine.serial import Execute, merged, run_serial
from pipeline.engine.settings import Finished
from pipeline.errors import StoppedError
from pipeline.fold import Partial, fields_read, fold, step_of
from pipeline.plan import Pass, Work

Pieces = Iterator[Block | Chunk]


@runtime_checkable
class Stream(Protocol):
    """A split whose rows can be had once, in order."""

    def pieces(
        self, fields: frozenset[str], step_rows: int
    ) -> Generator[Block | Chunk, None, None]:
        """Yield every block as it begins, its chunks of ``step_rows`` rows, then the next block.

        A chunk owns its arrays. The last block may have fewer rows than it says.
        """
        ...


@dataclass(frozen=True)
class Streaming:
    """Runs passes over streams, one after the other; other splits are left to ``others``."""

    beside: bool = False
    """Whether a second thread folds while this one makes the rows."""
    shrink: int = 0
    place: Place = HOST
    finished: Finished | None = None
    others: Execute = run_serial

    def __call__(self, pass_: Pass) -> Sequence[Partial]:
        return [self._run(pass_, work) for work in pass_.works]

    def _run(self, pass_: Pass, work: Work) -> Partial:
        if not isinstance(work.split, Stream):
            (root,) = self.others(Pass(pass_.stage, pass_.number, (work,), pass_.asked_by))
            return root
        fields = fields_read(work.split, work.statistics, work.rows)
        step_rows = step_of(work.split, work.statistics, self.shrink)
        with closing(work.split.pieces(fields, step_rows)) as pieces:
            if self.beside:
                return self._folded_beside(pass_, work, _heeding(pieces))
            return self._folded(pass_, work, _heeding(pieces))

    def _folded_beside(self, pass_: Pass, work: Work, pieces: Pieces) -> Partial:
        handing = _Handing()
        with ThreadPoolExecutor(1, thread_name_prefix=pass_.name) as pool:
            try:
                folding = pool.submit(handing.take, lambda taken: self._folded(pass_, work, taken))
                handing.give(pieces)
            finally:
                handing.leave()
            return folding.result()

    def _folded(self, pass_: Pass, work: Work, pieces: Pieces) -> Partial:
        return merged(work, self._folds(pass_, work, _Passing(work.split, pieces)))

    def _folds(self, pass_: Pass, work: Work, passing: _Passing) -> Iterator[Partial]:
        while passing.block is not None:
            block = passing.block
            partial = fold(
                work.statistics, passing, block, work.rows, self.place, shrink=self.shrink
            )
            if self.finished is not None:
                self.finished(pass_, work, Block(block.index, block.start, passing.stop))
            yield partial


def _heeding(pieces: Pieces) -> Pieces:
    """Yield pieces until this process is asked to stop."""
    for piece in pieces:
        if stopping.requested():
            raise StoppedError("stopped as asked; of a stream nothing is kept: start it again")
        yield piece
        del piece  # its rows, before the next are made


class _Passing:
    """The block of a stream that is on its way, as a split that can be read."""

    def __init__(self, split: Split, pieces: Pieces) -> None:
        self.split, self.pieces = split, pieces
        self.stop = 0
        """Row after the last one that was read."""
        self.block: Block | None = None
        """What is to be read next; None at the end."""
        first = next(pieces, None)
        assert first is None or isinstance(first, Block)
        self.block = first

    @property
    def name(self) -> str:
        return self.split.name

    @property
    def schema(self) -> Schema:
        return self.split.schema

    @property
    def is_ood(self) -> bool:
        return self.split.is_ood

    @property
    def blocks(self) -> Sequence[Block]:
        return self.split.blocks

    @property
    def chunk_rows(self) -> int:
        return self.split.chunk_rows

    def only(self, block: Block) -> Split:
        """Return the split itself: it cannot be sent elsewhere."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks up to the next block."""
        self.block = None
        for piece in self.pieces:
            if isinstance(piece, Block):
                self.block = piece
                return
            self.stop = piece.stop
            yield piece
            del piece  # its rows, before the next are made

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return what the split itself says."""
        return self.split.reading_nbytes(fields, step_rows)

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return what the split itself says."""
        return self.split.checksums(block, fields)

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: nothing is stored."""
        return None


class _Handing:
    """One piece at a time from the thread that makes them to the one that folds them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._piece: Block | Chunk | None = None
        self._ended = self._left = self._taken = False

    def give(self, pieces: Pieces) -> None:
        """Hand over all pieces, as long as somebody takes them."""
        for piece in pieces:
            with self._changed:
                self._changed.wait_for(lambda: self._piece is None or self._taken)
                if self._taken:
                    return
                self._piece = piece
                self._changed.notify_all()
            del piece  # its rows, before the next are made
        self._ended = True

    def leave(self) -> None:
        """Have the taker end: with what it was given, if that was all."""
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def take(self, fold_all: Callable[[Pieces], Partial]) -> Partial:
        """Return what ``fold_all`` makes of the pieces."""
        try:
            return fold_all(self._pieces())
        finally:
            with self._changed:
                self._taken, self._piece = True, None
                self._changed.notify_all()

    def _pieces(self) -> Pieces:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._piece is not None or self._left)
                if self._left and not self._ended:
                    raise StoppedError("the stream broke off")  # its own thread says why
                piece, self._piece = self._piece, None
                self._changed.notify_all()
            if piece is None:
                return
            yield piece
            del piece
