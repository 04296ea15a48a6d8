"""Rows in memory and what is known of them beforehand: schemas, chunks, and the split protocol.

Shape letters: n rows, t tokens, d features, k classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.content import value
from pipeline.errors import DataError, MissingInputError

IS_OOD = "is_ood"
"""Name of the virtual array that says whether a split holds out-of-distribution rows."""
REHEARSING: ContextVar[bool] = ContextVar("rehearsing", default=False)
"""Whether procedures run over made-up rows: numbers that depend on the data mean nothing then."""


@value
class ArraySpec:
    """What one row of a stored array looks like."""

    shape: tuple[int, ...]
    """Shape of one row: () labels, (d,) features, (t, d) tokens."""
    dtype: str
    """Logical dtype, a numpy name or ``bfloat16`` (stored as uint16)."""
    layout: str = ""
    """Meaning of the axes after the rows, e.g. ``TD``; empty when it does not matter."""

    @property
    def nbytes(self) -> int:
        """Bytes of one row as stored."""
        return int(np.prod(self.shape, dtype=np.int64)) * _itemsize(self.dtype)

    @property
    def memory_dtype(self) -> np.dtype[Any]:
        """The dtype of the rows once decoded: bfloat16 becomes float32."""
        return np.dtype(np.float32 if self.dtype == "bfloat16" else self.dtype)


def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


@value
class Schema:
    """What a split promises before anything is read."""

    rows: int
    classes: int
    """Number of classes k; labels run from 0 to k-1, below 0 is void."""
    arrays: Mapping[str, ArraySpec]
    split: str = ""

    def spec(self, name: str) -> ArraySpec:
        """Return the spec of an array, or raise an error that lists what there is."""
        if name not in self.arrays:
            raise MissingInputError(
                f"split {self.split or '(in memory)'} has no array {name!r}; "
                f"it has {', '.join(sorted(self.arrays))}"
            )
        return self.arrays[name]

    def touched(self, fields: Iterable[str]) -> frozenset[str]:
        """Return the stored arrays behind ``fields``.

        Where the split has a ``mask``, tokens are read with it, and so are labels: a row without
        one valid token is void for every statistic, whatever else it looks at.
        """
        names = frozenset(fields) - {IS_OOD}
        for name in names:
            self.spec(name)
        masked = any(name == "labels" or len(self.arrays[name].shape) == 2 for name in names)
        return names | ({"mask"} if masked and "mask" in self.arrays else set())

    def row_nbytes(self, fields: Iterable[str]) -> int:
        """Bytes of one row of the given arrays as stored."""
        return sum(self.arrays[name].nbytes for name in self.touched(fields))

    def key(self, fields: Iterable[str]) -> tuple[Any, ...]:
        """Return what a cached result depends on apart from the rows themselves."""
        return (self.classes, {name: self.arrays[name] for name in self.touched(fields)})


class Arena:
    """Scratch buffers by name, kept from chunk to chunk and grown when a chunk has more rows."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, tuple[int, ...], str], Array] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: Any, like: Array) -> Array:
        """Return an uninitialised buffer of ``shape``, of the library and device of ``like``."""
        key = (name, shape[1:], str(dtype))
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape[0] < shape[0]:
            xp = arrays.namespace(like)
            buffer = xp.empty(shape, dtype=dtype, device=arrays.device_of(like))
            self._buffers[key] = buffer
        return buffer[: shape[0], ...]


class Chunk:
    """Consecutive rows ``start`` to ``stop`` of a split: its arrays on one device, and their views.

    A chunk is only ever read. What views compute from it is remembered, so that statistics which
    ask for equal views share the work.
    """

    def __init__(
        self,
        schema: Schema,
        start: int,
        rows: int,
        contents: Mapping[str, Array],
        *,
        is_ood: bool = False,
        arena: Arena | None = None,
        views: Mapping[Any, Array] | None = None,
    ) -> None:
        self.schema = schema
        self.start = start
        self.rows = rows
        self.arrays = dict(contents)
        self.is_ood = is_ood
        self._arena = arena if arena is not None else Arena()
        self._memo: dict[Any, Array] = dict(views or {})

    @property
    def split(self) -> str:
        """Name of the split the rows belong to."""
        return self.schema.split

    @property
    def stop(self) -> int:
        """Row after the last one."""
        return self.start + self.rows

    def __getitem__(self, name: str) -> Array:
        if name not in self.arrays:
            raise MissingInputError(
                f"split {self.split or '(in memory)'} has no array {name!r} here; "
                f"it has {', '.join(sorted(self.arrays))}"
            )
        return self.arrays[name]

    def memo(self, key: Any, compute: Callable[[], Array]) -> Array:
        """Return what ``compute`` gave for an equal key before, or compute it now."""
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]

    def move(self, contents: Mapping[str, Array], arena: Arena) -> None:
        """Take the arrays as they are where a worker computes, with its scratch buffers."""
        self.arrays = dict(contents)
        self._arena = arena

    def scratch(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialised buffer that lives until the next call with the same name."""
        return self._arena.take(name, shape, dtype, self.any_array)

    @property
    def any_array(self) -> Array:
        """One of the arrays or views: names the library and the device of the chunk."""
        for array in (*self.arrays.values(), *self._memo.values()):
            return array
        raise DataError(f"rows {self.start}-{self.stop} of {self.split} hold no array")


@dataclass(frozen=True)
class Block:
    """A run of rows of a split: the unit of work, of checkpoint and of retry."""

    index: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


class Split(Protocol):
    """Rows that can be read block by block: a stored split, or arrays in memory.

    Splits are sent to worker processes: they pickle small, and open what they need there.
    """

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def is_ood(self) -> bool: ...
    @property
    def blocks(self) -> Sequence[Block]: ...
    @property
    def chunk_rows(self) -> int:
        """Most rows of a chunk that :meth:`read` yields where it is not told otherwise."""
        ...

    def only(self, block: Block) -> Split:
        """Return what a worker must be sent to read ``block``: itself, or just those rows."""
        ...

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of a block, in order, with the given arrays only; each is read once.

        Chunks have ``step_rows`` rows (default ``chunk_rows``), counted from the start of the
        block; the last may have fewer. The arrays of a chunk are valid only until the next chunk is
        asked for: their memory is used again. Copy what must live longer.
        """
        ...

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the most host memory that :meth:`read` holds at once."""
        ...

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return a checksum of the rows of a block for each of the given arrays."""
        ...

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return a digest that names the bytes of the given arrays in a block.

        It does not depend on where they are stored; None where they must be read to be known.
        """
        ...


def concatenated(splits: Sequence[Split]) -> Schema:
    """Return the schema of several splits read one after the other.

    Arrays are those that all splits have; rows of a split without labels have label -1. Raises
    :class:`DataError` where classes, row shapes or layouts differ.
    """
    first = splits[0].schema
    if len(splits) == 1:
        return first
    for other in (split.schema for split in splits[1:]):
        if other.classes != first.classes:
            raise DataError(
                f"{first.split} declares {first.classes} classes, {other.split} "
                f"{other.classes}; splits that are evaluated together must agree"
            )
        for name in first.arrays.keys() & other.arrays.keys():
            ours, theirs = first.arrays[name], other.arrays[name]
            if (ours.shape, ours.layout) != (theirs.shape, theirs.layout):
                raise DataError(
                    f"{name} has rows {ours.shape} {ours.layout} in {first.split}, but "
                    f"{theirs.shape} {theirs.layout} in {other.split}"
                )
    common = set(first.arrays).intersection(*(split.schema.arrays for split in splits))
    labels = {"labels"} if any("labels" in split.schema.arrays for split in splits) else set()
    return Schema(
        sum(split.schema.rows for split in splits),
        first.classes,
        {
            name: next(s.schema.arrays[name] for s in splits if name in s.schema.arrays)
            for name in common | labels
        },
        " + ".join(split.name for split in splits),
    )
