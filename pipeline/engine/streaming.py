"""Passes over streams: rows that come once, in order, and are nowhere when they were folded.

Whoever makes the rows (a model, say) does so in the calling thread, whose device and random state
it knows; other threads fold them meanwhile, each a block. Blocks, grains and the merge tree are
those of stored rows, so the results are the same bits, however many threads there are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

from pipeline import arrays, stopping
from pipeline.arrays import HOST, Place
from pipeline.chunk import Block, Chunk, Schema, Split
from pipeline.engine.halving import Halving
from pipeline.engine.serial import Execute, merged, run_serial
from pipeline.engine.settings import Finished, Say, Settings, log
from pipeline.errors import StoppedError
from pipeline.fold import Partial, fields_read, step_of
from pipeline.plan import Pass, Work

Pieces = Iterator[Block | Chunk]
MORE_ROWS = 2**16
"""Rows that nobody thinks too few, where a first batch is all that is known of how many come."""


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

    folders: int = 0
    """Threads that fold, each a block, while this one makes the rows; 0: this one does both."""
    ahead_nbytes: int = 0
    """Bytes of chunks that may wait, beside one for each thread: what more than one thread needs,
    as the rows of the second block come after all of the first."""
    shrink: int = 0
    place: Place = HOST
    finished: Finished | None = None
    others: Execute = run_serial
    say: Say = log

    def __call__(self, pass_: Pass) -> Sequence[Partial]:
        halving = Halving(self.place, Settings(self.shrink), self.say)
        return [self._run(halving, pass_, work) for work in pass_.works]

    def _run(self, halving: Halving, pass_: Pass, work: Work) -> Partial:
        if not isinstance(work.split, Stream):
            (root,) = self.others(Pass(pass_.stage, pass_.number, (work,), pass_.asked_by))
            return root
        fields = fields_read(work.split, work.statistics, work.rows)
        step_rows = step_of(work.split, work.statistics, self.shrink)
        with closing(work.split.pieces(fields, step_rows)) as pieces:
            if not self.folders:
                return merged(work, self._in_turn(halving, pass_, work, _heeding(pieces)))
            with ThreadPoolExecutor(self.folders, thread_name_prefix=pass_.name) as pool:
                waiting = _Waiting(self.ahead_nbytes)
                try:
                    folds = self._beside(halving, pass_, work, _heeding(pieces), pool, waiting)
                    return merged(work, folds)
                finally:
                    waiting.leave()

    def _in_turn(
        self, halving: Halving, pass_: Pass, work: Work, pieces: Pieces
    ) -> Iterator[Partial]:
        block = next(pieces, None)
        while isinstance(block, Block):
            passing = _Passing(work.split, pieces, self.place.on_device)
            yield self._folded(halving, pass_, work, block, passing)
            block = passing.following

    def _beside(
        self,
        halving: Halving,
        pass_: Pass,
        work: Work,
        pieces: Pieces,
        pool: ThreadPoolExecutor,
        waiting: _Waiting,
    ) -> Iterator[Partial]:
        """Yield the partials of the blocks in order, which so many threads fold."""
        flying: deque[Future[Partial]] = deque()
        channel: _Channel | None = None

        def fold_block(block: Block, taken: _Channel) -> Partial:
            with closing(taken):
                passing = _Passing(work.split, taken.chunks(), self.place.on_device)
                return self._folded(halving, pass_, work, block, passing)

        for piece in pieces:
            for failed in (each for each in flying if each.done() and each.exception()):
                failed.result()
            if isinstance(piece, Chunk):
                assert channel is not None
                channel.put(piece)
                del piece  # its rows, before the next are made
                continue
            if channel is not None:
                channel.end()
            if len(flying) == self.folders:
                yield flying.popleft().result()
            channel = _Channel(waiting)
            flying.append(pool.submit(fold_block, piece, channel))
        if channel is not None:
            channel.end()
        while flying:
            yield flying.popleft().result()

    def _folded(
        self, halving: Halving, pass_: Pass, work: Work, block: Block, passing: _Passing
    ) -> Partial:
        partial = halving.fold(work.statistics, passing, block, work.rows)
        if self.finished is not None:
            self.finished(pass_, work, Block(block.index, block.start, block.start + partial.rows))
        return partial


def _heeding(pieces: Pieces) -> Pieces:
    """Yield pieces until this process is asked to stop."""
    for piece in pieces:
        if stopping.requested():
            raise StoppedError("stopped as asked; of a stream nothing is kept: start it again")
        yield piece
        del piece  # its rows, before the next are made


class _Passing:
    """A block of a stream that is on its way, as a split that can be read.

    Where it ``keeps`` its rows, which the host then holds until it is folded, it can be read again.
    """

    in_turn = True
    """Whether rows must be read by the thread that folds them: a model may make them there."""

    def __init__(self, split: Split, pieces: Pieces, keeps: bool = False) -> None:
        self.split, self.pieces, self.keeps = split, pieces, keeps
        self.kept: list[Chunk] = []
        self.following: Block | None = None
        """The block that came after this one."""

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
        """Yield the chunks up to the next block, from the first that was kept."""
        step = step_rows or self.chunk_rows
        for piece in chain(tuple(self.kept), self._coming()):
            if self.keeps:  # what is kept stays on the host
                yield from (_cut(piece, start, step) for start in range(0, piece.rows, step))
            else:
                yield piece
            del piece  # its rows, before the next are made

    def _coming(self) -> Iterator[Chunk]:
        for piece in self.pieces if self.following is None else ():
            if isinstance(piece, Block):
                self.following = piece
                return
            if self.keeps:
                self.kept.append(piece)
            yield piece
            del piece

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return what the split itself says."""
        return self.split.reading_nbytes(fields, step_rows)

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return what the split itself says."""
        return self.split.checksums(block, fields)

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: nothing is stored."""
        return None


def _cut(chunk: Chunk, start: int, rows: int) -> Chunk:
    """Return some rows of a chunk, which are in the same memory."""
    rows = min(rows, chunk.rows - start)
    part = {name: x[start : start + rows, ...] for name, x in chunk.arrays.items()}
    return Chunk(chunk.schema, chunk.start + start, rows, part, is_ood=chunk.is_ood)


class _Waiting:
    """How much waits to be folded, in all blocks together."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes, self.nbytes = limit_nbytes, 0
        self.changed = threading.Condition()
        self.left = False
        """Whether nothing more will come: the thread that makes the rows has ended."""

    def leave(self) -> None:
        """Have those who fold end, should they wait for more."""
        with self.changed:
            self.left = True
            self.changed.notify_all()


class _Channel:
    """The chunks of one block, from the thread that makes them to the one that folds them."""

    def __init__(self, waiting: _Waiting) -> None:
        self._waiting, self._changed = waiting, waiting.changed
        self._chunks: deque[Chunk] = deque()
        self._ended = self._taken = False

    def put(self, chunk: Chunk) -> None:
        """Have a chunk wait, as soon as there is room; it is dropped where nobody takes any."""
        nbytes = arrays.nbytes(chunk.arrays)
        total = self._waiting
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._taken or not self._chunks or total.nbytes + nbytes <= total.limit_nbytes
                )
            )
            if not self._taken:
                self._chunks.append(chunk)
                total.nbytes += nbytes
                self._changed.notify_all()

    def end(self) -> None:
        """Say that the block is complete."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Say that nobody takes any more, so that nobody waits for it."""
        with self._changed:
            self._taken = True
            self._waiting.nbytes -= sum(arrays.nbytes(chunk.arrays) for chunk in self._chunks)
            self._chunks.clear()
            self._changed.notify_all()

    def chunks(self) -> Iterator[Chunk]:
        """Yield all chunks, each as soon as it is there."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._chunks or self._ended or self._waiting.left)
                if self._waiting.left:
                    raise StoppedError("the stream broke off")  # its own thread says why
                if not self._chunks:
                    return
                chunk = self._chunks.popleft()
                self._waiting.nbytes -= arrays.nbytes(chunk.arrays)
                self._changed.notify_all()
            yield chunk
            del chunk
