"""Predictions and labels that people have in files, as a split: read in place, each byte once."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pipeline.chunk import Arena, ArraySpec, Block, Chunk, Schema, Split
from pipeline.errors import (
    ConfigError,
    CorruptError,
    DataError,
    FeatfoldError,
    MissingInputError,
)
from pipeline.store import checksum, layout, reads
from pipeline.store.coded import CODEC_FACTOR
from pipeline.store.file_arrays import opened_arrays
from pipeline.store.file_rows import FileRows
from pipeline.store.importers.npz import DeflatedRows
from pipeline.store.importers.shards import Shards
from pipeline.store.importers.sliced import SlicedRows
from pipeline.store.mask_folder import MaskFolders, holds_masks
from pipeline.store.memory import BLOCK_NBYTES, CHUNK_NBYTES
from pipeline.store.objects import Objects, is_lazy, object_rows
from pipeline.tasks import check_task, shape_remedy

PREDICTIONS = "predictions"
IN_FILES = (FileRows, DeflatedRows, SlicedRows, Shards)
"""Rows that workers open themselves, by name."""
MOST_CHUNKS = 2**16
"""Chunks of a block at most: small rows make blocks of many."""


def open_predictions(
    predictions: Any,
    labels: Any,
    *,
    classes: int,
    task: str = "multiclass",
    weights: Any = None,
    name: str = PREDICTIONS,
) -> Split:
    """Return predictions and labels of the same rows as a split for metrics; reads no rows.

    Each side is the path of an npy file or a zarr array, ``FILE.npz/NAME``, ``STORE/NAME``, or an
    array; or both are folders of PNG masks, matched by name (:class:`MaskFolders`). ``labels`` are
    integers (n, ...). Predictions of integers, of the same shape, become the array ``predictions``,
    those of floats ``logits``: (n, k, ...) for multiclass, else of the shape of the labels. Binary
    ones of one number a row are called ``scores`` as well, and read once for both. ``weights``
    (n,), for each row, are optional. Rows are read by whole stored chunks, whatever their number on
    either side; no label is looked at here.

    Raises :class:`MissingInputError` for what is not there, :class:`DataError` for rows, shapes or
    dtypes that do not fit, :class:`ConfigError` for an unknown task.
    """
    check_task(task)
    if not isinstance(classes, (int, np.integer)) or isinstance(classes, bool) or classes < 1:
        raise ConfigError(f"classes: {classes!r}; expected the number of classes, such as 21")
    folders = [holds_masks(given) for given in (predictions, labels)]
    if all(folders):
        if weights is not None:
            raise ConfigError("weights: masks in folders have none; give arrays instead")
        return MaskFolders(Path(predictions), Path(labels), classes=int(classes), name=name)
    if any(folders):
        _refuse_without_masks(predictions if folders[1] else labels, name)
        raise DataError(
            f"{predictions} and {labels}: one is a folder of masks, whose rows go by name; save "
            "the other side as PNG files of the same names"
        )
    given = {PREDICTIONS: predictions, "labels": labels, "weights": weights}
    opened = opened_arrays({key: x for key, x in given.items() if x is not None})
    specs = {key: _spec(key, array, name) for key, array in opened.items()}
    if np.dtype(specs[PREDICTIONS].memory_dtype).kind == "f":
        names = (
            ["logits", "scores"] if task == "binary" and not specs["labels"].shape else ["logits"]
        )
        for found in (opened, specs):
            found |= dict.fromkeys(names, found.pop(PREDICTIONS))
    rows = _rows(opened, name)
    _check_shapes(specs, int(classes), task, name)
    return PredictionSplit(Schema(rows, int(classes), specs, name), opened)


class PredictionSplit:
    """Rows of arrays in files, or in memory, which are read by whole stored chunks.

    A block is a whole number of the stored chunks of every array, so that none is opened twice.
    Pickles as the names of files; of arrays in memory a worker is sent the rows of its block.
    """

    by_element: ClassVar[bool] = True
    """Metrics say which elements of a row count; see :func:`pipeline.fold.by_element`."""

    def __init__(self, schema: Schema, arrays: Mapping[str, Any]) -> None:
        self.schema, self._arrays = schema, dict(arrays)
        self._start = 0  # first row of what only() cut off from arrays in memory
        widest = max(spec.nbytes for spec in schema.arrays.values())
        row = sum(spec.nbytes for spec in schema.arrays.values())
        self.chunk_rows = min(schema.rows, max(1, CHUNK_NBYTES // max(1, widest)))
        whole = math.lcm(*(self.object_rows(key) for key in self._arrays))
        if any(isinstance(array, DeflatedRows) for array in self._arrays.values()):
            whole = schema.rows
        most = min(BLOCK_NBYTES // max(1, row), MOST_CHUNKS * self.chunk_rows)
        size = whole * max(1, most // whole)
        self.blocks: Sequence[Block] = tuple(
            Block(index, start, min(start + size, schema.rows))
            for index, start in enumerate(range(0, schema.rows, size))
        )

    def __repr__(self) -> str:
        return f"PredictionSplit({', '.join(self._arrays)}, rows={self.schema.rows})"

    @property
    def name(self) -> str:
        """Name of the split in errors and reports."""
        return self.schema.split

    @property
    def is_ood(self) -> bool:
        """Whether the rows are out-of-distribution, by the name."""
        return layout.is_ood(self.name)

    def only(self, block: Block) -> PredictionSplit:
        """Return what a worker is sent: of arrays in memory the rows of the block alone."""
        held = [key for key in self._arrays if self._in_memory(key)]
        if len(self.blocks) == 1 or not held:
            return self
        part = copy(self)
        rows = slice(block.start - self._start, block.stop - self._start)
        part._arrays = {**self._arrays, **{key: self._arrays[key][rows] for key in held}}
        part.blocks, part._start = (block,), block.start
        return part

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of a block in order, with the given arrays; stored chunks are read once.

        Raises :class:`CorruptError` or :class:`MissingInputError` for what cannot be read any more.
        """
        names = {name: self._first_name(name) for name in sorted(self.schema.touched(fields))}
        step = self._step(step_rows)
        arena = Arena()
        with ExitStack() as stack:
            loader = _Loader(self, set(names.values()), stack)
            objects = {name: Objects(loader, name, block) for name in loader.arrays}
            for start in range(block.start, block.stop, step):
                stop = min(start + step, block.stop)
                # Yielded without a name: rows must not outlive the chunk while the next is read.
                yield Chunk(
                    self.schema,
                    start,
                    stop - start,
                    _named(names, {n: each.rows(start, stop) for n, each in objects.items()}),
                    is_ood=self.is_ood,
                    arena=arena,
                )

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of the rows of a step, and of stored chunks on their way to rows."""
        step, total = self._step(step_rows), 0.0
        for name in self.schema.touched(fields):
            spec, whole = self.schema.arrays[name], self.object_rows(name)
            memory_nbytes = math.prod(spec.shape) * spec.memory_dtype.itemsize
            held = whole * math.ceil(step / whole) if whole > 1 else 0
            total += (2 * step + CODEC_FACTOR * held) * memory_nbytes
        return math.ceil(total)

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: these files have no manifest."""
        return None

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return the checksums that these rows would have in a store."""
        found = dict.fromkeys(self.schema.touched(fields), 0)
        for chunk in self.read(block, fields):
            for name, crc32c in found.items():
                stored = layout.encode(chunk[name], self.schema.arrays[name])
                found[name] = checksum.crc32c(stored, crc32c)
        return {name: checksum.hexadecimal(crc32c) for name, crc32c in found.items()}

    def array(self, name: str) -> Any:
        """Return an array as it was opened."""
        return self._arrays[name]

    def object_rows(self, name: str) -> int:
        """Return the rows of a stored chunk that must be read whole, or 1."""
        array = self._arrays[name]
        return min(object_rows(array), self.schema.rows) if is_lazy(array) else 1

    def place(self, name: str, row: int) -> int:
        """Return where a row lies in an array."""
        return row - self._start if self._in_memory(name) else row

    def _first_name(self, name: str) -> str:
        """Return the first name of the array that goes by ``name``."""
        array = self._arrays[name]
        return next(first for first, other in self._arrays.items() if other is array)

    def _in_memory(self, name: str) -> bool:
        array = self._arrays[name]
        return not (is_lazy(array) or isinstance(array, IN_FILES))

    def _step(self, step_rows: int | None) -> int:
        if step_rows is not None and step_rows < 1:
            raise ConfigError(f"step_rows must be at least 1, got {step_rows}")
        return step_rows or self.chunk_rows


class _Loader:
    """The arrays of a split while one block of it is read."""

    def __init__(self, split: PredictionSplit, names: Iterable[str], stack: ExitStack) -> None:
        self.split = split
        self.arrays = {name: split.array(name) for name in names}
        for name, array in self.arrays.items():
            if isinstance(array, DeflatedRows):
                self.arrays[name] = stack.enter_context(array.opened())

    def object_rows(self, name: str) -> int:
        return self.split.object_rows(name)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Read rows of one array; stored chunks, or else the first of the rows, are counted."""
        split, whole = self.split, self.split.object_rows(name)
        chunks = (
            range(start // whole, -(-stop // whole)) if is_lazy(split.array(name)) else (start,)
        )
        for index in chunks:
            reads.count(split.name, name, index)
        spec, rows = (
            split.schema.arrays[name],
            slice(*(split.place(name, r) for r in (start, stop))),
        )
        try:
            found = self.arrays[name][rows]
            if hasattr(found, "compute"):  # dask; the caller may be a worker of its own
                found = found.compute(scheduler="synchronous")
        except (FeatfoldError, zipfile.BadZipFile, zlib.error):
            raise
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{split.name}: rows {start}-{stop} of {name} cannot be read ({error}); write them "
                "again"
            ) from error
        host = np.ascontiguousarray(layout.widen(found), dtype=spec.memory_dtype)
        if host.shape != (stop - start, *spec.shape):
            raise DataError(
                f"{split.name}: {name} gave shape {host.shape} for rows {start}-{stop}; expected "
                f"{(stop - start, *spec.shape)}"
            )
        return host


def _refuse_without_masks(given: Any, name: str) -> None:
    """Raise :class:`MissingInputError` for the folder beside one of masks that has none."""
    local = isinstance(given, (str, Path)) and "://" not in str(given)
    if not local or Path(given).is_file():
        return
    if not Path(given).exists():
        raise MissingInputError(f"{name}: {given} is not there")
    if not any((Path(given) / head).exists() for head in ("zarr.json", ".zarray", ".zgroup")):
        raise MissingInputError(f"{name}: {given} holds no PNG file; the other side is PNG masks")


def _named(names: Mapping[str, str], rows: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rows[first] for name, first in names.items()}


def _spec(key: str, array: Any, name: str) -> ArraySpec:
    if not len(array.shape):
        raise DataError(f"{name}: {key} is one number; expected (n, ...), rows first")
    try:
        dtype = layout.dtype_name(array)
    except DataError as error:
        raise DataError(f"{name}: {key}: {error}") from error
    if key == "labels" and "int" not in dtype and dtype != "bool":
        raise DataError(f"{name}: labels have dtype {dtype}; expected integers")
    if key == "weights" and "float" not in dtype:
        raise DataError(f"{name}: weights have dtype {dtype}; expected floats")
    shape = tuple(int(length) for length in array.shape[1:])
    if 0 in shape:
        raise DataError(f"{name}: {key} has rows of shape {shape}, which hold nothing")
    return ArraySpec(shape, "uint8" if dtype == "bool" else dtype)


def _rows(opened: Mapping[str, Any], name: str) -> int:
    counts = {key: array.shape[0] for key, array in opened.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{key}: {rows}" for key, rows in counts.items())
        raise DataError(f"{name}: arrays must have the same number of rows, got {shown}")
    rows = next(iter(counts.values()))
    if not isinstance(rows, int) or not rows:
        raise DataError(f"{name}: expected a known number of rows, one or more; got {rows}")
    return rows


def _check_shapes(specs: Mapping[str, ArraySpec], classes: int, task: str, name: str) -> None:
    """Raise :class:`DataError` unless rows of both sides have the shapes that the task declares."""
    labels = specs["labels"].shape
    side = "logits" if "logits" in specs else PREDICTIONS
    by_class = side == "logits" and task == "multiclass"
    expected = (classes, *labels) if by_class else labels
    if specs[side].shape != expected:
        what = "floats" if side == "logits" else "integers"
        remedy = shape_remedy(
            (0, *specs[side].shape), (0, *labels), floats=side == "logits", task=task,
            classes=classes, names=(PREDICTIONS, "labels"),
        )  # fmt: skip
        raise DataError(
            f"{name}: predictions, {what}, have rows of shape {specs[side].shape} beside labels "
            f"{labels}; expected {expected} for a {task} task of {classes} classes{remedy}"
        )
    if task == "multilabel" and labels[:1] != (classes,):
        raise DataError(
            f"{name}: labels have rows of shape {labels}; expected ({classes}, ...), one number "
            "for each label"
        )
    if "weights" in specs and specs["weights"].shape:
        raise DataError(
            f"{name}: weights have rows of shape {specs['weights'].shape}; expected one a row"
        )
