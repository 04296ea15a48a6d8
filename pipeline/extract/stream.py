"""Rows of a model as a split that is read once: from batches of any length into chunks of blocks.

Nothing of it is written anywhere. Blocks are those that the same rows would have in files, whatever
the batches, so what is folded from it is the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.chunk import ArraySpec, Block, Chunk, Schema
from pipeline.errors import FeatfoldError
from pipeline.store import SavedHead, layout

Contents = Mapping[str, NDArray[Any]]
UNKNOWN_ROWS = 2**40
"""What plans are made for where nobody knows how many rows will come."""
UNKNOWN_BLOCKS = 512
"""Blocks that plans count with then: what waits in the merge tree grows with their logarithm."""
CHUNKS = 3
"""Chunks that are held at once: made, handed over, and folded."""
BATCHES = 2
"""Batches that are held at once: one as the model gave it, and its copy on the host."""


@dataclass(frozen=True)
class Shape:
    """How the rows of a stream lie: what they are, and where chunks and blocks end."""

    name: str
    arrays: Mapping[str, ArraySpec]
    classes: int
    chunk_rows: int
    block_rows: int
    batch_rows: int
    """About how many rows come at a time."""
    rows: int | None = None
    """How many rows will come, where that is known for sure."""


class StreamedSplit:
    """Rows that come batch by batch, once, and are nowhere afterwards.

    ``batches`` yields mappings from name to the rows (n, ...) of every array, as they are stored:
    bfloat16 as its bits in uint16. It runs in the thread that reads, with as many threads of torch
    as there are when this is made.
    """

    def __init__(
        self,
        shape: Shape,
        batches: Iterator[Contents],
        attributes: Mapping[str, Any] | None = None,
        checksums: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self._checksums = {} if checksums is None else checksums  # filled as rows go by
        self.shape, self.attributes = shape, dict(attributes or {})
        self.head: SavedHead | None = None
        """The final layer of the model, where it carries one."""
        self.rows: int | None = None
        """Rows that came; None before the end."""
        self._batches: Iterator[Contents] | None = batches
        self._torch_threads = torch.get_num_threads()

    def __repr__(self) -> str:
        return f"StreamedSplit({self.name!r}, {', '.join(self.shape.arrays)})"

    @property
    def name(self) -> str:
        return self.shape.name

    @property
    def is_ood(self) -> bool:
        """Whether the rows are out-of-distribution."""
        return layout.is_ood(self.name)

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk where nobody asks for others."""
        return self.shape.chunk_rows

    @property
    def schema(self) -> Schema:
        """The schema: with the rows that are expected, and after the end with those that came."""
        shape = self.shape
        return Schema(self._count, shape.classes, shape.arrays, shape.name)

    @property
    def _count(self) -> int:
        known = self.shape.rows if self.rows is None else self.rows
        return UNKNOWN_ROWS if known is None else known

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that are expected, whole; after the end those that came."""
        size, count = self.shape.block_rows, self._count
        if self.rows is None:
            number = min(UNKNOWN_BLOCKS, -(-count // size)) if count == UNKNOWN_ROWS else 0
            number = number or max(1, -(-count // size))
            return tuple(Block(i, i * size, (i + 1) * size) for i in range(number))
        starts = range(0, count, size)
        return tuple(Block(i, a, min(a + size, count)) for i, a in enumerate(starts))

    def like(self, name: str, rows: int | None) -> StreamedSplit:
        """Return a split of another name that looks like this one, for plans: it has no rows."""
        made = StreamedSplit(replace(self.shape, name=name, rows=rows), iter(()), self.attributes)
        made.head = self.head
        return made

    def only(self, block: Block) -> StreamedSplit:
        """Return the split itself: it cannot be sent elsewhere."""
        return self

    def leave(self) -> None:
        """Have a stream that nobody asked for count as read: its rows are those that are known."""
        if self.rows is None:
            self.rows = self.shape.rows or self.shape.batch_rows

    def pieces(
        self, fields: frozenset[str], step_rows: int
    ) -> Generator[Block | Chunk, None, None]:
        """Yield every block as it begins, then its chunks of ``step_rows`` rows: once.

        Raises :class:`FeatfoldError` for a second time: the rows are gone.
        """
        if self._batches is None:
            raise FeatfoldError(
                f"{self.name} is a stream, which was read, and is asked for again; its rows are "
                "gone: give stream=False, or store the features"
            )
        batches, self._batches = self._batches, None
        names = sorted(self.schema.touched(fields))
        cutting = _Cutting(batches)
        start = index = 0
        with _threads_of_torch(self._torch_threads):
            while cutting.more():
                stop = start + self.shape.block_rows
                yield Block(index, start, stop)
                while start < stop and cutting.more():
                    taken = cutting.take(names, min(step_rows, stop - start))
                    contents = {name: self._decoded(name, rows) for name, rows in taken.items()}
                    del taken
                    rows = cutting.taken
                    yield Chunk(self.schema, start, rows, contents, is_ood=self.is_ood)
                    del contents
                    start += rows
                index += 1
        self.rows = start

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Refuse: a stream is read by its pieces."""
        raise FeatfoldError(f"{self.name} is a stream: no block of it can be read by itself")

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of the chunks on their way, and of the batches they are made from.

        What the model needs for itself is not in it.
        """
        specs = {name: self.shape.arrays[name] for name in self.schema.touched(fields)}
        each = sum(math.prod(s.shape) * s.memory_dtype.itemsize for s in specs.values())
        whole = sum(
            math.prod(s.shape) * s.memory_dtype.itemsize for s in self.shape.arrays.values()
        )
        step = min(step_rows or self.chunk_rows, self.shape.block_rows)
        return CHUNKS * step * each + BATCHES * self.shape.batch_rows * whole

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return those of the rows that went by, where they were taken."""
        taken = self._checksums.get(block.index, {})
        return {name: taken.get(name, "streamed") for name in self.schema.touched(fields)}

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: nothing is stored."""
        return None

    def _decoded(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        spec = self.shape.arrays[name]
        if spec.dtype != layout.BFLOAT16 or rows.dtype != np.uint16:
            return np.ascontiguousarray(rows, spec.memory_dtype)
        wide = np.empty(rows.shape, np.float32)
        layout.widen_into(wide, rows)
        return wide


class _Cutting:
    """Batches cut where chunks end."""

    def __init__(self, batches: Iterator[Contents]) -> None:
        self._batches = batches
        self._batch: Contents = {}
        self._left: int = 0
        self.taken = 0
        """Rows of the last chunk."""

    def more(self) -> bool:
        """Tell whether there are further rows; has the next batch made where none is at hand."""
        while not self._left:
            self._batch = {}  # not to be held while the next is made
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._batch, self._left = batch, len(next(iter(batch.values())))
        return True

    def take(self, names: list[str], most: int) -> dict[str, NDArray[Any]]:
        """Return up to ``most`` rows of arrays, fewer at the end only: copies, of nobody else."""
        made: dict[str, NDArray[Any]] = {}
        self.taken = 0
        while self.taken < most and self.more():
            count = min(self._left, most - self.taken)
            first = len(next(iter(self._batch.values()))) - self._left
            for name in names:
                rows = self._batch[name][first : first + count]
                if name not in made:
                    made[name] = np.empty((most, *rows.shape[1:]), rows.dtype)
                made[name][self.taken : self.taken + count] = rows
            self.taken += count
            self._left -= count
        return {name: rows[: self.taken] for name, rows in made.items()}


@contextmanager
def _threads_of_torch(count: int) -> Generator[None]:
    """Have torch compute on ``count`` threads, as it did before the engine took all but one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
