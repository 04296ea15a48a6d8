"""Writing a split: whole blocks in any order and from many processes, or rows appended at the end.

Order of every write: each chunk file is flushed and then renamed, the directories are flushed, then
the record of the block is written. A writer killed at any instant leaves a block that does not
count.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import ArraySpec, Block
from pipeline.errors import (
    ConfigError,
    CorruptError,
    DataError,
    ExistsRefusedError,
)
from pipeline.store import checksum, disk, layout, manifest
from pipeline.store.declaration import Declaration
from pipeline.store.place import Place, each, is_local
from pipeline.store.raw_writer import RawWriter, is_raw, is_whole

UPLOADS = 4
"""Chunks that are on their way to an object store at the same time."""
REPLACES = "replaces"
REPLACED = r"\.[^/\\]+\.replaced-[0-9a-f]{8}"
"""Names of stores that were moved aside."""


class SplitWriter:
    """Writes the blocks of one split; two writers of different blocks never touch one file.

    A block has one writer at a time. Blocks may be written in any order, by threads, processes or
    machines that share the file system.
    """

    def __init__(self, root: Place, name: str, declared: Declaration) -> None:
        self.root: Any = root
        self.name = name
        self.declared = declared
        self._split: Any = root / name

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks fixed at creation, then those appended since."""
        return manifest.all_blocks(self.declared, self._records())

    @property
    def committed(self) -> frozenset[int]:
        """Indexes of the blocks that are completely on disk."""
        return frozenset(manifest.committed(self._records()))

    def missing(self) -> list[Block]:
        """Return the blocks that must still be written, in order: what a resumed run does."""
        records, allotted = self._records(), len(self.declared.allotted)
        return [
            block
            for block in manifest.all_blocks(self.declared, records)
            if block.index < allotted
            and not (block.index in records and records[block.index].committed)
        ]

    def write(
        self, block_index: int, arrays: Mapping[str, Array], *, overwrite: bool = False
    ) -> None:
        """Write a whole block and commit it; everything is checked before the first byte.

        ``arrays`` maps every declared array to its (n, ...) rows of the block, in the declared
        dtype. Raises DataError where they contradict the declaration, ExistsRefusedError for a
        block that is committed already; ``overwrite`` replaces it and bumps its generation.
        """
        contents = _as_arrays(arrays)
        known = manifest.read_record(self._split, block_index)
        block = self._block(block_index, known)
        if known is not None and (known.committed or known.removed) and not overwrite:
            done = "was removed" if known.removed else "is committed already"
            raise ExistsRefusedError(
                f"{self._where}: block {block_index} (rows {block.start}-{block.stop}) {done}; "
                "resume with missing(), or pass overwrite=True"
            )
        self._check(contents, block.rows, block.start)
        generation = 0 if known is None else known.generation + int(known.committed)
        generation += int(known is not None and known.removed)
        with self._told(block):
            self._create_arrays(contents)
            with self._guard(block) as held:
                if known is not None and known.committed:
                    manifest.write_record(self._split, manifest.Record.of(block, generation, {}))
                self._put(block, contents, generation, new=known is None, held=held)

    def remove(self, block_index: int) -> Block:
        """Take a block out for good, and return it; the other blocks keep their index and rows.

        The record goes first, so a killed removal leaves the old or the new state; called again, it
        removes what is left of the files. ``write`` with ``overwrite`` brings the rows back.
        Raises ConfigError for a block that was never committed.
        """
        with (
            disk.told(f"{self.name}, the removal of block {block_index}", self.root),
            disk.locked(self.root, self.name) as held,
        ):
            record = manifest.read_record(self._split, block_index)
            if record is None:
                raise ConfigError(
                    f"{self._where} has no block {block_index} to remove; it has blocks "
                    f"{', '.join(map(str, sorted(self.committed))) or 'none'}"
                )
            if not record.removed:
                gone = manifest.Record.of(record.block, record.generation, {}, removed=True)
                held.check()
                manifest.write_record(self._split, gone)
            files = list(self._own_files(record.block))
            held.check()
            for file in files:
                file.unlink(missing_ok=True)
        return record.block

    def _own_files(self, block: Block) -> Iterator[Place]:
        """Yield the chunk files that hold rows of no other block."""
        others = [other for other in self.blocks if other != block]
        for name, spec in self.declared.arrays.items():
            size = self.declared.chunk_rows[name]
            for piece in _pieces(block.start, block.stop, size):
                first = piece.start - piece.start % size
                if not any(o.start < first + size and first < o.stop for o in others):
                    yield layout.chunk_file(self._split / name, first // size, spec)

    def append(self, arrays: Mapping[str, Array]) -> Block:
        """Add rows after the current end as one new block, and return it.

        One append is one commit, whatever its size; about ``declared.block_rows`` rows at a time
        keep the unit of work small. Appends from many threads and processes follow one another.
        """
        contents = _as_arrays(arrays)
        rows = _length(contents, self._where)
        self._check(contents, rows, 0)
        with self._told(Block(0, 0, rows), f"{rows} rows to append"):
            self._create_arrays(contents)
            with disk.locked(self.root, self.name) as held:
                block = self._next_block(rows)
                for name in self.declared.arrays:
                    self._resize(name, block.stop)
                self._put(block, contents, 0, new=True, held=held)
        return block

    def _told(self, block: Block, what: str = "") -> AbstractContextManager[None]:
        """Make one clear error of a disk that is full."""
        what = what or f"block {block.index} (rows {block.start}-{block.stop})"
        nbytes = block.rows * sum(spec.nbytes for spec in self.declared.arrays.values())
        return disk.told(f"{self.name}, {what}", self.root, nbytes)

    @property
    def _where(self) -> str:
        return f"{self.root}, split {self.name}"

    def _records(self) -> dict[int, manifest.Record]:
        return manifest.read_records(self._split)

    def _block(self, index: int, known: manifest.Record | None) -> Block:
        if known is not None:
            return known.block
        rows, size = self.declared.rows or 0, self.declared.block_rows
        if not 0 <= index * size < rows:
            count = len(self.declared.allotted)
            raise ConfigError(
                f"{self._where} has no block {index}; it was created with {count} blocks"
                + ("" if count else ", use append")
            )
        return Block(index, index * size, min((index + 1) * size, rows))

    def _next_block(self, rows: int) -> Block:
        index, end = len(self.declared.allotted), self.declared.rows or 0
        for last in reversed(manifest.indexes(self._split)):
            record = manifest.read_record(self._split, last)
            if record is not None and last >= index:
                return Block(last + 1, record.block.stop, record.block.stop + rows)
        return Block(index, end, end + rows)

    def _check(self, contents: Mapping[str, Array], rows: int, start: int) -> None:
        """Compare arrays with the declaration: names, shapes, dtypes, then values of labels."""
        declared = self.declared.arrays
        if set(contents) != set(declared):
            raise DataError(
                f"{self._where}: expected arrays {', '.join(sorted(declared))}, "
                f"got {', '.join(sorted(contents))}"
            )
        for name, spec in declared.items():
            self._check_shape(name, spec, contents[name], rows)
        for name, spec in declared.items():
            pieces = _pieces(0, rows, self.declared.chunk_rows[name])
            if name == "labels":
                for piece in pieces:
                    labels = arrays.to_host(contents[name][piece])
                    first = start + piece.start
                    layout.check_labels(labels, self.declared.classes, self.name, first)
            elif spec.dtype == layout.BFLOAT16 and layout.dtype_name(contents[name]) != "uint16":
                for piece in pieces:
                    layout.encode(contents[name][piece], spec)

    def _check_shape(self, name: str, spec: ArraySpec, given: Array, rows: int) -> None:
        if tuple(given.shape) != (rows, *spec.shape):
            raise DataError(
                f"{self._where}: {name} must have shape {(rows, *spec.shape)}, "
                f"got {tuple(given.shape)}"
            )
        dtype = layout.dtype_name(given)
        fitting = {spec.dtype}
        if spec.dtype == layout.BFLOAT16:
            fitting |= {"uint16", "float32"}
        if dtype not in fitting:
            raise DataError(f"{self._where}: {name} must be {spec.dtype}, got {dtype}; convert it")

    def _create_arrays(self, contents: Mapping[str, Array]) -> None:
        """Create the arrays at the first write, when a first chunk can be tried for compression."""
        names = list(self.declared.arrays)
        if all(each(lambda name: disk.is_group(self._split / name), names, self._split)):
            return
        with disk.locked(self.root, self.name):
            for name, spec in self.declared.arrays.items():
                if not disk.is_group(self._split / name):
                    self._create_array(name, spec, contents[name])

    def _create_array(self, name: str, spec: ArraySpec, given: Array) -> None:
        directory = self._split / name
        chunk_rows = self.declared.chunk_rows[name]
        if committed := self.committed:
            raise CorruptError(  # created anew, the array would lose its chunks
                f"{self._where}: {directory / disk.GROUP_FILE} is lost, and {len(committed)} "
                "blocks are committed; restore it from a copy"
            )
        if (links := getattr(given, "links", None)) is not None:
            links.create(directory, name)
        else:
            sample = layout.encode(given[:chunk_rows], spec)
            layout.create_array(directory, spec, self.declared.rows or 0, chunk_rows, sample)
        disk.make(directory / "c")
        disk.sync(directory / disk.GROUP_FILE)
        disk.sync_names([directory / disk.GROUP_FILE], top=self._split)

    def _resize(self, name: str, rows: int) -> None:
        disk.sweep(self._split / name, Path(disk.GROUP_FILE).stem)
        array = layout.open_array(self._split / name, "r+")
        if array.shape[0] != rows:
            array.resize((rows, *array.shape[1:]))
            disk.sync(self._split / name)

    def _guard(self, block: Block) -> AbstractContextManager[object]:
        """Return the lock of the split for a block that shares a file with appended rows."""
        sizes = self.declared.chunk_rows.values()
        if all(block.start % size == 0 and block.stop % size == 0 for size in sizes):
            return nullcontext()
        return disk.locked(self.root, self.name)

    def _put(
        self,
        block: Block,
        contents: Mapping[str, Array],
        generation: int,
        *,
        new: bool,
        held: Any,
    ) -> None:
        """Write the chunks of a block, flush them, and commit, while a lock is held, if any."""
        if held is not None:
            held.check()
        stored = {
            name: self._put_array(block, name, spec, contents[name])
            for name, spec in self.declared.arrays.items()
        }
        if held is not None:
            held.check()
        record = manifest.Record.of(block, generation, stored)
        manifest.write_record(self._split, record, new=new)
        forget_replaced(self.root)

    def _put_array(self, block: Block, name: str, spec: ArraySpec, given: Array) -> manifest.Stored:
        directory, size = self._split / name, self.declared.chunk_rows[name]
        array = layout.open_array(directory, "r+")
        if array.shape[0] < block.stop:
            raise CorruptError(
                f"{self._where}: {name} has {array.shape[0]} rows, fewer than {block.stop}; "
                f"restore {directory / disk.GROUP_FILE} from a copy"
            )
        pieces = list(_pieces(block.start, block.stop, size))
        files = [layout.chunk_file(directory, piece.start // size, spec) for piece in pieces]
        for file in files:
            disk.sweep(file.parent, file.name)

        def rows_of(piece: slice) -> np.ndarray[Any, Any]:
            return layout.encode(given[piece.start - block.start : piece.stop - block.start], spec)

        if (links := getattr(given, "links", None)) is not None:
            found = zip(files, pieces, strict=True)
            checksums = [links.put(file, p.start // size, rows_of(p)) for file, p in found]
        elif is_local(directory) and _is_raw(directory, spec, size, pieces, array.shape[0]):
            raw = RawWriter(directory, spec, size, array.fill_value)
            checksums = raw.write(pieces, rows_of)
        else:
            checksums = _put_pieces(array, pieces, rows_of, directory)
        disk.sync_names(files, top=directory / "c")
        crc32c = 0
        for piece, own in zip(pieces, checksums, strict=True):
            crc32c = checksum.joined(crc32c, own, (piece.stop - piece.start) * spec.nbytes)
        return manifest.Stored(block.rows * spec.nbytes, checksum.hexadecimal(crc32c))


def _is_raw(
    directory: Path, spec: ArraySpec, chunk_rows: int, pieces: Sequence[slice], rows: int
) -> bool:
    whole = all(is_whole(piece, chunk_rows, rows) for piece in pieces)
    return whole and is_raw(directory, spec, chunk_rows)


def _put_pieces(
    array: Any, pieces: Sequence[slice], rows_of: Callable[[slice], Any], directory: Place
) -> list[int]:
    """Write pieces, several at the same time to an object store; return the crc32c of each.

    The rows are asked for in order, never by two threads at once, as compressed files and those
    with a checksum of all rows must be read; each thread keeps its own until they are sent.
    """
    left, turn = iter(enumerate(pieces)), threading.Lock()

    def put(_: slice) -> tuple[int, int]:
        with turn:
            number, piece = next(left)
            rows = rows_of(piece)
        array[piece] = rows
        return number, checksum.crc32c(rows)

    return [found for _, found in sorted(each(put, pieces, directory, UPLOADS))]


def forget_replaced(root: Any) -> None:
    """Remove the stores that this one replaces, now that it holds a block of its own."""
    attributes = disk.read_group(root)
    if not attributes[layout.DECLARATION].get(REPLACES):
        return
    with disk.locked(root, ""):
        attributes = disk.read_group(root)
        for name in attributes[layout.DECLARATION].pop(REPLACES, ()):
            if re.fullmatch(REPLACED, name):  # a store that came from elsewhere may name anything
                disk.remove_tree(root.with_name(name), ignore_errors=True)
        disk.write_group(root, attributes)


def _pieces(start: int, stop: int, size: int) -> Iterator[slice]:
    """Cut rows at the multiples of ``size``."""
    while start < stop:
        end = min(start - start % size + size, stop)
        yield slice(start, end)
        start = end


def _as_arrays(contents: Mapping[str, Any]) -> dict[str, Array]:
    """Let plain sequences stand for arrays."""
    return {
        name: given if hasattr(given, "dtype") else np.asarray(given)
        for name, given in contents.items()
    }


def _length(contents: Mapping[str, Array], where: str) -> int:
    rows = {int(array.shape[0]) for array in contents.values() if array.ndim}
    if len(rows) != 1:
        raise DataError(f"{where}: arrays must have the same number of rows, got {sorted(rows)}")
    if rows == {0}:
        raise DataError(f"{where}: there are no rows to append")
    return rows.pop()
