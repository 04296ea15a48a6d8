"""A split over arrays that are in memory already, or that are sliced lazily: never copied whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any

import numpy as np

from pipeline import arrays as libraries
from pipeline.arrays import Array
from pipeline.chunk import Arena, ArraySpec, Block, Chunk, Schema
from pipeline.content import whole_number
from pipeline.errors import ConfigError, DataError
from pipeline.store import checksum, layout
from pipeline.store.coded import CODEC_FACTOR
from pipeline.store.file_rows import FileRows
from pipeline.store.objects import Objects, held_rows, is_lazy, object_rows

CHUNK_NBYTES = 4 * 2**20
BLOCK_NBYTES = 128 * 2**20
LARGEST_CLASSES = 2**24
"""Labels above this are taken for a mistake, such as -1 in an unsigned dtype."""
_LAYOUTS = {"labels": "", "ids": "", "logits": "K", "mask": "T"}


class ArraySplit:
    """Rows of numpy, torch, cupy, zarr or dask arrays, read slice by slice onto the host.

    ``features`` (n, d) or (n, t, d) and ``labels`` (n,) are shorthands for entries of ``arrays``.
    Without ``classes``, k is the width of the logits if there are any, else the largest label plus
    one (labels in memory only), else 0. Labels in memory are checked now, lazy ones when read.

    Raises DataError for unequal lengths, no rows, labels >= k or dtypes that are not numbers.
    """

    def __init__(
        self,
        features: Array | None = None,
        labels: Array | None = None,
        *,
        classes: int | None = None,
        name: str = "id/train",
        arrays: Mapping[str, Array] | None = None,
        block_rows: int | None = None,
        chunk_rows: int | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"name: {name!r}; a split needs a name, such as id/train")
        shorthands = {"features": features, "labels": labels}
        named = {key: array for key, array in shorthands.items() if array is not None}
        self.name = name
        self._starts: dict[str, int] = {}  # first rows of what only() cuts off
        self._arrays = {
            key: array if hasattr(array, "dtype") else np.asarray(array)
            for key, array in {**(arrays or {}), **named}.items()
        }
        rows = self._count_rows()
        specs = {key: _spec(key, array, name) for key, array in self._arrays.items()}
        layout.check_mask(specs, f"split {name}")
        in_memory = self._labels_in_memory()
        known = self._count_classes(in_memory) if classes is None else _checked_classes(classes)
        if in_memory is not None:
            layout.check_labels(in_memory, known, name, 0)
        self.schema = Schema(rows=rows, classes=known, arrays=specs, split=name)
        widest = max(spec.nbytes for spec in specs.values())
        total = sum(spec.nbytes for spec in specs.values())
        step = chunk_rows or self._step_rows(widest)
        size = block_rows or _whole_objects(
            step * max(1, BLOCK_NBYTES // (step * total)), step, total, self._arrays.values()
        )
        if step < 1 or size < 1:
            raise ConfigError(f"chunk_rows and block_rows must be positive, got {step} and {size}")
        self.chunk_rows = min(step, size, rows)
        self.blocks = tuple(
            Block(index, start, min(start + size, rows))
            for index, start in enumerate(range(0, rows, size))
        )

    def _step_rows(self, widest: int) -> int:
        """Return rows of a read: whole stored objects of the widest array, near CHUNK_NBYTES."""
        step = max(1, CHUNK_NBYTES // widest)
        array = max(self._arrays.values(), key=lambda a: math.prod(a.shape[1:]))
        natural = object_rows(array)
        if natural <= step:
            return step // natural * natural
        return natural if natural * widest <= layout.CHUNK_NBYTES else step

    def __repr__(self) -> str:
        return f"ArraySplit({', '.join(self._arrays)}, name={self.name!r}, rows={self.schema.rows})"

    @property
    def is_ood(self) -> bool:
        """Whether the rows are out-of-distribution."""
        return layout.is_ood(self.name)

    def only(self, block: Block) -> ArraySplit:
        """Return a split with the rows of one block alone: what a worker process is sent.

        Rows in files are left there: see :mod:`pipeline.store.shared`.
        """
        if len(self.blocks) == 1:
            return self
        part = copy(self)
        part.blocks = (block,)
        sent = [name for name, array in self._arrays.items() if not isinstance(array, FileRows)]
        part._starts = dict.fromkeys(sent, block.start)
        rows = {name: self.rows(name, block.start, block.stop) for name in sent}
        part._arrays = {**self._arrays, **rows}
        return part

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The arrays by name."""
        return self._arrays

    def with_arrays(self, arrays: Mapping[str, Array]) -> ArraySplit:
        """Return a split that finds the same rows in other arrays."""
        other = copy(self)
        other._arrays = dict(arrays)
        return other

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the chunks of a block in order, on the host, with the given arrays only.

        Of arrays that are loaded lazily every stored object is opened once.
        """
        names = sorted(self.schema.touched(fields))
        arena = Arena()
        whole = {name: Objects(self, name, block) for name in names}
        step = self._step(step_rows)
        for start in range(block.start, block.stop, step):
            stop = min(start + step, block.stop)
            # Yielded without a name: the rows must not outlive the chunk while the next is read.
            yield Chunk(
                self.schema,
                start,
                stop - start,
                {name: objects.rows(start, stop) for name, objects in whole.items()},
                is_ood=self.is_ood,
                arena=arena,
            )

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of the rows that are converted or loaded; those in memory cost none."""
        step = self._step(step_rows)
        return sum(self._copied_nbytes(name, step) for name in self.schema.touched(fields))

    def _copied_nbytes(self, name: str, step_rows: int) -> int:
        array, spec = self._arrays[name], self.schema.arrays[name]
        row_nbytes = math.prod(spec.shape) * spec.memory_dtype.itemsize
        if isinstance(array, np.ndarray) and array.flags.c_contiguous:
            return 0 if array.dtype == spec.memory_dtype else 2 * step_rows * row_nbytes
        loaded = step_rows + (held_rows(array, spec) if is_lazy(array) else 0)
        return 2 * step_rows * row_nbytes + math.ceil(CODEC_FACTOR * loaded * row_nbytes)

    def _step(self, step_rows: int | None) -> int:
        if step_rows is not None and step_rows < 1:
            raise ConfigError(f"step_rows must be at least 1, got {step_rows}")
        return step_rows or self.chunk_rows

    def identity(self, block: Block, fields: frozenset[str]) -> str | None:
        """Return None: rows in memory are known only by reading them."""
        return None

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return the checksums that these rows would have in a store."""
        return {name: self._checksum(name, block) for name in self.schema.touched(fields)}

    def _checksum(self, name: str, block: Block) -> str:
        crc32c, spec = 0, self.schema.arrays[name]
        for start in range(block.start, block.stop, self.chunk_rows):
            rows = self.rows(name, start, min(start + self.chunk_rows, block.stop))
            crc32c = checksum.crc32c(layout.encode(rows, spec), crc32c)
        return checksum.hexadecimal(crc32c)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return rows of one array on the host, as computations see them."""
        first = self._starts.get(name, 0)
        rows = self._arrays[name][start - first : stop - first]
        if hasattr(rows, "compute"):  # dask; the caller may be a worker thread of its own
            rows = rows.compute(scheduler="synchronous")
        spec = self.schema.arrays[name]
        host = np.ascontiguousarray(layout.widen(rows), dtype=spec.memory_dtype)
        if host.shape != (stop - start, *spec.shape):
            raise DataError(
                f"split {self.name}: {name} gave shape {host.shape} for rows {start}-{stop}, "
                f"expected {(stop - start, *spec.shape)}"
            )
        if name == "labels":
            layout.check_labels(host, self.schema.classes, self.name, start)
        return host

    def object_rows(self, name: str) -> int:
        """Return the rows of a stored object of an array that is loaded whole, or 1."""
        array = self._arrays[name]
        return held_rows(array, self.schema.arrays[name]) if is_lazy(array) else 1

    def _count_rows(self) -> int:
        lengths = {
            key: array.shape[0] if len(array.shape) else None for key, array in self._arrays.items()
        }
        if not lengths:
            raise DataError(f"split {self.name}: no arrays were given")
        rows = next(iter(lengths.values()))
        if len(set(lengths.values())) > 1 or not isinstance(rows, int):
            shown = ", ".join(f"{key}: {length}" for key, length in lengths.items())
            raise DataError(
                f"split {self.name}: arrays must share a known number of rows, got {shown}"
            )
        if rows == 0:
            raise DataError(f"split {self.name} is empty: every array has 0 rows")
        return rows

    def _labels_in_memory(self) -> np.ndarray[Any, Any] | None:
        labels = self._arrays.get("labels")
        if labels is None or hasattr(labels, "compute") or not libraries.is_array(labels):
            return None
        return libraries.to_host(labels)

    def _count_classes(self, labels: np.ndarray[Any, Any] | None) -> int:
        if "logits" in self._arrays:
            return int(self._arrays["logits"].shape[-1])
        if labels is not None:
            return self._classes_of(labels)
        if "labels" in self._arrays:
            raise ConfigError(
                f"split {self.name}: labels that are computed lazily do not tell the number of "
                "classes; pass classes="
            )
        return 0

    def _classes_of(self, labels: np.ndarray[Any, Any]) -> int:
        largest = int(labels.max())
        if largest >= LARGEST_CLASSES:
            raise DataError(
                f"split {self.name}: the largest label is {largest}, which would make as many "
                "classes; mend the labels (below 0 is void), or pass classes="
            )
        return max(0, largest + 1)


def _checked_classes(classes: Any) -> int:
    try:
        return whole_number(classes, "classes", 0)
    except ConfigError:
        raise ConfigError(
            f"classes: {classes!r}; expected the number of classes, such as 10"
        ) from None


def _spec(key: str, array: Array, split: str) -> ArraySpec:
    if isinstance(array, np.ma.MaskedArray):
        raise DataError(
            f"split {split}: {key} is a numpy masked array, whose mask would be ignored; fill it, "
            "or leave rows out by a label below 0 and tokens by an array called mask"
        )
    try:
        dtype = layout.dtype_name(array)
    except DataError as error:
        raise DataError(f"split {split}: {key}: {error}") from error
    if key == "labels" and "int" not in dtype:
        raise DataError(f"split {split}: labels must be integers, got {dtype}")
    shape = tuple(int(length) for length in array.shape[1:])
    if 0 in shape:
        raise DataError(f"split {split}: {key} has rows of shape {shape}, which hold nothing")
    letters = _LAYOUTS.get(key, {1: "D", 2: "TD"}.get(len(shape), ""))
    return ArraySpec(shape, dtype, letters if len(letters) == len(shape) else "")


def _whole_objects(rows: int, step: int, row_nbytes: int, given: Iterable[Array]) -> int:
    """Return the rows of a block: whole stored objects of every lazy array, near ``rows``.

    So no object is opened by two blocks, as long as such a block is not larger than a stored one.
    """
    whole = math.lcm(step, *(object_rows(array) for array in given if is_lazy(array)))
    if whole * row_nbytes > layout.BLOCK_NBYTES:
        return rows
    return max(whole, rows // whole * whole)
