"""Rows of a source through a model as a stream: what a store of them would hold, and no store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.chunk import ArraySpec, Block
from pipeline.errors import ConfigError, DataError, FeatfoldError
from pipeline.extract.final_layer import saved
from pipeline.extract.model import declare
from pipeline.extract.passing import AUTO, Contents, Pass
from pipeline.extract.sources import Source
from pipeline.extract.stream import Shape, StreamedSplit
from pipeline.store import checksum, declaration, layout


def source_stream(
    run: Pass,
    source: Source,
    *,
    classes: int,
    block_nbytes: int,
    attributes: Mapping[str, Any],
) -> StreamedSplit:
    """Return the rows of a source, of which the first are looked at, as a split that is read once.

    Arrays, dtypes, blocks and batches are those of :func:`pipeline.extract.filling.extract_split`.

    Raises
    ------
    ConfigError
        For a source without ranges: what is planned needs the number of its rows.
    DataError
        For no rows, and whatever the model or the source does not do as it should.
    """
    if not hasattr(source, "read"):
        raise ConfigError(
            f"split {run.split}: {source.name} is a stream of rows that nobody has counted, and a "
            "job is planned with their number; run it with a store"
        )
    rows = len(source)
    if not rows:
        raise DataError(f"split {run.split}: source {source.name!r} has no rows")
    first = run.batch_rows if run.manner.batch_rows == AUTO else 1
    outputs = run.tensors(_read(run, source, 0, min(first, rows)), 0)
    declared = declaration.declare(
        declare(outputs, run.extractor.description.layouts),
        classes=classes,
        rows=rows,
        block_nbytes=block_nbytes,
        chunk_nbytes=layout.CHUNK_NBYTES,
        attributes=attributes,
    )
    shape = Shape(
        run.split, declared.arrays, classes, declared.step_rows, declared.block_rows,
        run.batch_rows, rows,
    )  # fmt: skip
    seen: dict[int, dict[str, str]] = {}
    batches = _batches(run, source, shape, declared.allotted, seen)
    made = StreamedSplit(shape, batches, attributes, seen)
    made.head = saved(run.head, run.extractor)
    return made


def _batches(
    run: Pass,
    source: Source,
    shape: Shape,
    blocks: tuple[Block, ...],
    seen: dict[int, dict[str, str]],
) -> Iterator[Contents]:
    """Yield what is stored of every batch; they start anew with each block, as in a store.

    ``seen`` is given the checksums of every block, which are those of a store as well.
    """
    for block in blocks:
        start, crc32c = block.start, dict.fromkeys(shape.arrays, 0)
        while start < block.stop:
            stop = min(start + run.batch_rows, block.stop)
            contents = run.arrays(_read(run, source, start, stop), start)
            _check(contents, shape, start)
            for name, rows in contents.items():
                crc32c[name] = checksum.crc32c(np.ascontiguousarray(rows), crc32c[name])
            yield contents
            del contents
            start = stop
        seen[block.index] = {name: checksum.hexadecimal(crc) for name, crc in crc32c.items()}


def _read(run: Pass, source: Source, start: int, stop: int) -> Any:
    try:
        given = source.read(start, stop)
    except FeatfoldError:
        raise
    except Exception as error:
        raise DataError(
            f"split {run.split} rows {start}-{stop}: source {source.name!r} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    return run.checked(given, start, stop - start)


def _check(contents: Contents, shape: Shape, start: int) -> None:
    """Raise :class:`DataError` for what a store would refuse to hold."""
    expected = {name: _seen(spec) for name, spec in shape.arrays.items()}
    got = {name: (rows.shape[1:], rows.dtype.name) for name, rows in contents.items()}
    if got != expected:
        raise DataError(
            f"split {shape.name} from row {start}: expected rows of {expected}, as the first ones, "
            f"got {got}"
        )
    labels: NDArray[np.int64] = contents["labels"]
    layout.check_labels(labels, shape.classes, shape.name, start)


def _seen(spec: ArraySpec) -> tuple[tuple[int, ...], str]:
    return spec.shape, layout.stored_dtype(spec).name
