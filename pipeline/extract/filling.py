"""Filling a split: the outputs of a model over a source, written block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.chunk import Block
from pipeline.errors import ConfigError, DataError
from pipeline.extract.model import Extractor, bits, count_rows, declare, integers
from pipeline.extract.sources import Batch, Source
from pipeline.store import Store

Contents = dict[str, NDArray[Any]]
Progress = Callable[[int, int], None]
"""Called after each batch with the rows done so far and the rows of the split."""


class Writer(Protocol):
    """What extraction asks of a split that is being written."""

    @property
    def name(self) -> str: ...
    @property
    def blocks(self) -> Sequence[Block]: ...
    def missing(self) -> Sequence[Block]: ...
    def write(self, block_index: int, contents: Mapping[str, NDArray[Any]], /) -> None: ...


def extract_split(
    store: Store,
    name: str,
    model: Extractor | Callable[[Any], Any],
    source: Source,
    *,
    classes: int,
    batch_rows: int = 32,
    progress: Progress | None = None,
    attributes: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Create split ``name`` of ``store`` as the model's outputs ask for, and fill it.

    A split that is there already is gone on with, its committed blocks are kept; one that came from
    another source or model is refused, and so is a second process while this one writes
    (LockedError). ``attributes`` are recorded beside those of the model, ``options`` are those of
    ``store.create_split``.
    """
    if not len(source):
        raise DataError(f"split {name}: source {source.name!r} has no rows")
    extractor = _extractor(model)
    with extractor.ready():
        outputs, _ = _run(extractor, source, name, 0, 1)
    with store.lock(name):
        writer = store.create_split(
            name,
            declare(outputs, extractor.description.layouts),
            classes=classes,
            rows=len(source),
            attributes={"source": source.name, **extractor.attributes(), **(attributes or {})},
            exist_ok=True,
            **options,
        )
        extract(extractor, source, writer, batch_rows=batch_rows, progress=progress)


def extract(
    model: Extractor | Callable[[Any], Any],
    source: Source,
    writer: Writer,
    *,
    batch_rows: int = 32,
    progress: Progress | None = None,
) -> None:
    """Write the blocks that ``writer`` misses; never more than one is in memory.

    Features, labels and ids of a row come from one read of the source. Batches start anew with
    each block, so a resumed run gives the bits of an uninterrupted one with the same
    ``batch_rows``, threads and device; other ones may differ by float32 rounding.

    Raises
    ------
    ConfigError
        When ``batch_rows`` is not positive.
    DataError
        When source and split differ in rows, the model fails, or batches do not fit together:
        split and rows are named, and the blocks before them are kept.
    """
    if batch_rows < 1:
        raise ConfigError(f"batch_rows is at least 1, got {batch_rows}")
    rows = writer.blocks[-1].stop if writer.blocks else 0
    if rows != len(source):
        raise DataError(
            f"split {writer.name} holds {rows} rows, source {source.name!r} has {len(source)}"
        )
    extractor = _extractor(model)
    missing = list(writer.missing())
    done = rows - sum(block.rows for block in missing)
    with extractor.ready():
        for block in missing:
            contents: Contents = {}
            for start in range(block.start, block.stop, batch_rows):
                stop = min(start + batch_rows, block.stop)
                outputs, batch = _run(extractor, source, writer.name, start, stop)
                found = {name: bits(output) for name, output in outputs.items()}
                found |= {"labels": batch.labels, "ids": batch.ids}
                _place(contents, found, block, start, writer.name)
                done += stop - start
                if progress is not None:
                    progress(done, rows)
            writer.write(block.index, contents)


def _extractor(model: Extractor | Callable[[Any], Any]) -> Extractor:
    return model if isinstance(model, Extractor) else Extractor(model)


def _run(
    extractor: Extractor, source: Source, split: str, start: int, stop: int
) -> tuple[dict[str, torch.Tensor], Batch]:
    """Read rows and call the model on them; whatever fails names the split and the rows."""
    where = f"split {split} rows {start}-{stop}"
    inputs, labels, ids = source.read(start, stop)
    batch = Batch(inputs, integers("labels", labels, where), integers("ids", ids, where))
    lengths = {"inputs": count_rows(inputs), "labels": len(batch.labels), "ids": len(batch.ids)}
    if set(lengths.values()) != {stop - start}:
        raise DataError(f"{where}: source {source.name!r} gave {lengths}")
    try:
        return extractor(inputs), batch
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    except Exception as error:
        raise DataError(f"{where}: the model raised {type(error).__name__}: {error}") from error


def _place(contents: Contents, found: Contents, block: Block, start: int, split: str) -> None:
    """Copy the arrays of a batch to their rows of a block, which the first batch lays out."""
    if not contents:
        for name, rows in found.items():
            contents[name] = np.empty((block.rows, *rows.shape[1:]), rows.dtype)
    expected = {name: (rows.shape[1:], rows.dtype.name) for name, rows in contents.items()}
    got = {name: (rows.shape[1:], rows.dtype.name) for name, rows in found.items()}
    if got != expected:
        raise DataError(
            f"split {split} from row {start}: expected rows of {expected}, as in the batches "
            f"before, got {got}"
        )
    for name, rows in found.items():
        # A copy, so that nothing keeps the model's larger buffers alive.
        contents[name][start - block.start :][: len(rows)] = rows
