"""Files that people hold features in become a split of a store: checked, converted, block by block.

Everything that can be refused is refused before the first byte is written; labels are read through
for that. Blocks that are committed stay as they are, so an import that was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline import stopping
from pipeline.chunk import Block
from pipeline.store import Store, layout
from pipeline.store.declaration import declare
from pipeline.store.importers import origin
from pipeline.store.importers.linked import ChunkLinks, chunk_links
from pipeline.store.importers.mapping import Target, Wanted
from pipeline.store.importers.prepared import Prepared
from pipeline.store.importers.settled import Settled, Sources, place_of, settled
from pipeline.store.importers.shards import Shards
from pipeline.store.place import at
from pipeline.store.repair import damaged_blocks
from pipeline.store.writer import SplitWriter


class Progress(Protocol):
    """What is told how far an import is, in bytes."""

    def begin(self, name: str, total: int, /) -> None: ...
    def advance(self, amount: int, /) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str, /) -> None: ...


class Silent:
    """Tells nobody."""

    def begin(self, name: str, total: int, /) -> None: ...
    def advance(self, amount: int, /) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str, /) -> None: ...


@dataclass(frozen=True)
class Imported:
    """What an import did."""

    store: str
    split: str
    rows: int
    classes: int
    nbytes: int
    """Bytes of the rows of the split, as they are before any compression."""
    written: int
    """Blocks that were written now."""
    mended: int
    """Those of them that had been damaged."""
    kept: int
    """Blocks that were there and stayed as they are."""
    left_out: Mapping[str, str]
    """Arrays of the files that were not imported, and why."""
    adopted: str = ""
    """The array whose chunk files were linked, not copied."""
    copied: str = ""
    """Why none was, where that was asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Return the content as plain values for JSON."""
        return asdict(self)


def import_split(
    store: Store | str | Path,
    split: str,
    files: Sources,
    *,
    arrays: Mapping[str, str] | None = None,
    classes: int | None = None,
    labels: Any = None,
    layouts: Mapping[str, str] | None = None,
    dtype: str | Mapping[str, str] | None = None,
    scores: Mapping[str, str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    adopt: bool = False,
    progress: Progress | None = None,
    block_nbytes: int = layout.BLOCK_NBYTES,
    chunk_nbytes: int = layout.CHUNK_NBYTES,
) -> Imported:
    """Write arrays (n, ...) that lie in files into split ``split``, bit for bit unless asked.

    ``files``: paths, folders and globs, one or several, each perhaps as ``NAME=PATH``; arrays of
    one name in several files are one, in natural order. ``arrays`` maps names in the store to those
    in the files, ``{"features": "feat_list"}``, and leaves out others but ``labels`` and ``ids``;
    without it every array of numbers keeps its name. ``labels``: the name of an array in the files,
    another file, an array of integers (n,), or False for none; below 0 is OOD. ``classes``: their
    number k; by default that of the splits which the store has. ``layouts``: axes of the files,
    ``{"features": "NCHW"}`` (NTD, NDT, NCHW, NHWC, ND); tokens are stored as (t, d). ``dtype``: of
    all floats, or by name. ``scores``: ``{"conf": "higher-is-id"}`` or ``higher-is-ood``, asked
    for every array of one float a row; stored so that higher is more out-of-distribution.
    ``attributes`` are recorded beside where the rows came from.

    Memory is a few chunks, whatever the rows; a block is a whole number of them. ``resume`` goes
    on with a split of the same files, and writes damaged blocks again; ``overwrite`` removes a
    split that is there first, once all was checked. ``store`` is made where there is none.
    ``adopt``: the chunk files of the array with the widest rows, where it is zarr of
    format 3 that fits as it is, get a second name in the store instead of being copied; they are
    read once, for their checksums.

    Raises :class:`MissingInputError` for what is not there; :class:`DataError` for rows, labels or
    dtypes that do not fit; :class:`ConfigError` for what must be told; :class:`ExistsRefusedError`
    for a split that is there, or is of other files; nothing is written then.

    Differs from reading with ``numpy.load(mmap_mode="r")``: no page is mapped, which would count as
    memory of this process.
    """
    told = progress or Silent()
    sizes = {"block_nbytes": block_nbytes, "chunk_nbytes": chunk_nbytes}
    wanted = Wanted(arrays, layouts or {}, _dtypes(dtype), scores or {})
    layout.check_split_name(split)
    with settled(
        store, split, files, wanted, say=told.say, labels=labels, classes=classes,
        attributes=attributes, resume=resume, overwrite=overwrite,
    ) as found:  # fmt: skip
        return _import(store, split, found, told, sizes, adopt)


def _import(
    store: Store | str | Path,
    split: str,
    asked: Settled,
    told: Progress,
    sizes: dict[str, Any],
    adopt: bool,
) -> Imported:
    found, specs, classes = asked.found, asked.specs, asked.classes
    attributes = asked.attributes
    links, copied = chunk_links(found.targets, at(place_of(store))) if adopt else (None, "")
    if links is not None:
        sizes = links.sizes(sizes["block_nbytes"])
    declare(specs, classes=classes, rows=found.rows, attributes=attributes, **sizes)
    held = asked.there or Store.create(place_of(store))
    with held.lock(split):
        if asked.goes_on:
            writer = held.writer(split)
            damaged = _damaged(held, split, writer, told)
            if writer.missing() or damaged:
                _check_files(found)
        else:
            if held.has(split):
                held.remove_split(split)
            writer = held.create_split(
                split, specs, classes=classes, rows=found.rows,
                attributes={**attributes, layout.UNFINISHED: True}, **sizes,
            )  # fmt: skip
            damaged = []
        waiting = sorted([*writer.missing(), *damaged], key=lambda block: block.index)
        if links is not None and (why := links.misfit(writer.declared, held.path / split)):
            links, copied = None, why
        _write(writer, waiting, {block.index for block in damaged}, found.targets, told, links)
        origin.check_unchanged(held, split, found, asked.stamps)
        if held.attributes(split).get(layout.UNFINISHED):
            held.finish(split)  # not before: rows of files that changed are no split
    return Imported(
        store=str(place_of(store)),
        split=split,
        rows=found.rows,
        classes=classes,
        nbytes=found.nbytes,
        written=len(waiting),
        mended=len(damaged),
        kept=len(writer.blocks) - len(waiting),
        left_out=found.left_out,
        adopted=links.name if links is not None and not links.refused else "",
        copied=copied if links is None else links.refused,
    )


def _write(
    writer: SplitWriter,
    blocks: Sequence[Block],
    damaged: set[int],
    targets: Mapping[str, Target],
    told: Progress,
    links: ChunkLinks | None,
) -> None:
    """Write blocks one after the other; heeds a wish to stop between them."""
    row_nbytes = sum(target.spec.nbytes for target in targets.values())
    told.begin(f"import {writer.name}", sum(block.rows for block in blocks) * row_nbytes)
    for block in blocks:
        stopping.check()
        rows = {name: BlockRows(target, block, told) for name, target in targets.items()}
        if links is not None:
            rows[links.name].links = links
        writer.write(block.index, rows, overwrite=block.index in damaged)
    told.end()


class BlockRows:
    """The rows of one array of a block, read where the writer slices them."""

    links: ChunkLinks | None = None
    """The files that hold the rows already, in the chunks of the split."""

    def __init__(self, target: Target, block: Block, told: Progress) -> None:
        self.shape = (block.rows, *target.spec.shape)
        self.ndim, self.dtype = len(self.shape), target.dtype
        self._target, self._start, self._told, self._seen = target, block.start, told, 0

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Return rows; they are those of the next slice afterwards, in the same thread."""
        start, stop, _ = rows.indices(self.shape[0])
        found = self._target.read(self._start + start, self._start + stop)
        if stop > self._seen:
            self._told.advance((stop - self._seen) * self._target.spec.nbytes)
            self._seen = stop
        return found


def _dtypes(given: str | Mapping[str, str] | None) -> Mapping[str, str]:
    return {"": given} if isinstance(given, str) else given or {}


def _check_files(found: Prepared) -> None:
    """Have files compared with checksums of their own: not all of their rows are read now."""
    for target in found.targets.values():
        if isinstance(target.rows, Shards):
            target.rows.check()


def _damaged(store: Store, split: str, writer: SplitWriter, told: Progress) -> list[Block]:
    committed = writer.committed
    if not committed:
        return []
    told.say(f"{split}: comparing {len(committed)} committed blocks with their checksums")
    return damaged_blocks(store, split, told.say)
