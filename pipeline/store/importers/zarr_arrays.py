"""zarr of format 2 or 3, written by anything: an array, or all arrays of a group by their paths.

Opened read-only. Each chunk is read once. Chunks that were never written read as the fill value,
so an array of floats that lacks some is refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, CorruptError, DataError
from pipeline.store import layout
from pipeline.store.importers import Importer, Rows, Unreadable, array_name
from pipeline.store.importers.faults import is_packed, native, told
from pipeline.store.importers.sliced import SlicedRows, in_bands

V3, V2_ARRAY, V2_GROUP = "zarr.json", ".zarray", ".zgroup"
NEVER_WRITTEN = np.uint64(2**64 - 1)
"""Offset and bytes of a chunk that a shard lacks."""
_DAMAGE = (ValueError, RuntimeError, KeyError, TypeError)


class _Array:
    """One array, opened at the first read."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self._array: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Array, (self.path, self.name)

    def fill(self, out: np.ndarray[Any, Any], start: int) -> None:
        import zarr

        stop = start + len(out)
        with told(self.path, *_DAMAGE, where=f"rows {start}-{stop}"):
            if self._array is None:
                self._array = zarr.open_array(self.path, mode="r")
            out[...] = self._array[start:stop]

    def close(self) -> None:
        self._array = None


def zarr_rows(path: Path) -> dict[str, Rows]:
    """Return the rows of an array, called by its folder, or of those of a group by their paths.

    Raises :class:`ConfigError` for metadata of both formats in one place and for stores of this
    package, :class:`CorruptError` for what zarr cannot open, :class:`DataError` without arrays.
    """
    found = dict(_named(path))
    if not found:
        raise DataError(
            f"{path} is a zarr group without arrays with rows; name one with arrays (n, ...)"
        )
    return found


def folder_of(rows: Rows) -> Path | None:
    """Return the folder of the array whose rows these are; None of other rows."""
    bands = getattr(rows, "source", None)
    found = getattr(bands, "source", None)
    return found.path if isinstance(found, _Array) else None


def _named(path: Path) -> Iterator[tuple[str, Rows]]:
    import zarr

    _check_format(path)
    for folder in (path.parent, path):
        _check_foreign(folder)
    if not _is_group(path):
        with told(path, *_DAMAGE):
            array = zarr.open_array(path, mode="r")
        if array.ndim:
            yield array_name(path), _rows(path, path.name, array)
        return
    with told(path, *_DAMAGE):
        group = zarr.open_group(path, mode="r", use_consolidated=False)
        members = sorted(group.members(max_depth=None), key=lambda member: member[0])
    for name, member in members:
        _check_format(path / name)
        _check_foreign(path / name)
        if isinstance(member, zarr.Array) and member.ndim:
            yield name, _rows(path / name, name, member)


def _check_format(path: Path) -> None:
    """Raise :class:`ConfigError` where metadata of both formats lie side by side."""
    both = [name for name in (V2_ARRAY, V2_GROUP) if (path / name).exists()]
    if both and (path / V3).exists():
        raise ConfigError(
            f"{path} holds metadata of zarr format 3 (zarr.json) and of format 2 ({both[0]}), so "
            "that programs see different arrays; remove the one that another program wrote"
        )


def _check_foreign(path: Path) -> None:
    """Raise :class:`ConfigError` for stores and splits of this package, which have a manifest."""
    attributes: Any = ()
    with suppress(OSError, ValueError, KeyError, TypeError):
        attributes = json.loads((path / V3).read_text(encoding="utf-8"))["attributes"] or ()
    if layout.DECLARATION in attributes:
        raise ConfigError(
            f"{path} is a store of featfold, or a split of one, already: use it as it is, or "
            "export it first"
        )


def _is_group(path: Path) -> bool:
    if not (path / V3).exists():
        return not (path / V2_ARRAY).exists()
    with told(path, ValueError, KeyError, TypeError):
        return bool(json.loads((path / V3).read_text(encoding="utf-8"))["node_type"] == "group")


def _rows(path: Path, name: str, array: Any) -> Rows:
    shape, dtype = tuple(array.shape), native(array.dtype)
    logical = str(array.attrs.get("logical_dtype", ""))
    is_bfloat16 = logical == layout.BFLOAT16 and dtype == np.uint16
    row_nbytes = math.prod(shape[1:]) * dtype.itemsize
    try:
        _check_numbers(path, array, dtype)
        source = in_bands(_Array(path, name), shape[0], array.chunks[0], row_nbytes, str(path))
    except DataError as error:
        return Unreadable(str(error), shape, dtype)
    return SlicedRows(source, shape, dtype, layout.BFLOAT16 if is_bfloat16 else "")


def _check_numbers(path: Path, array: Any, dtype: np.dtype[Any]) -> None:
    """Raise :class:`DataError` for text, packed numbers, and floats that were never written."""
    if dtype.kind not in "biuf":
        raise DataError(f"{path} holds {dtype}; expected numbers: save it as such, or map others")
    if is_packed(array.attrs):
        raise DataError(
            f"{path} is packed by scale_factor and add_offset; save the numbers themselves"
        )
    with told(path, *_DAMAGE):
        lacking = _lacking(path, array) if dtype.kind == "f" else 0
    if lacking > 0:
        raise DataError(
            f"{path} lacks {lacking:,} of {array.nchunks:,} chunks, whose rows read as the fill "
            f"value {array.fill_value}; finish writing it, or write it again with "
            "write_empty_chunks=True if that is what they hold"
        )


def _lacking(path: Path, array: Any) -> int:
    """Return how many chunks of an array were never written; looks into shards."""
    if array.shards is None:
        return int(array.nchunks - array.nchunks_initialized)
    grid = [-(-n // size) for n, size in zip(array.shape, array.chunks, strict=True)]
    each = [shard // size for shard, size in zip(array.shards, array.chunks, strict=True)]
    written = 0
    for place in np.ndindex(*(-(-n // size) for n, size in zip(grid, each, strict=True))):
        file = path / array.metadata.encode_chunk_key(place)
        if file.is_file():
            index = _shard_index(path, array, file, math.prod(each)).reshape(*each, 2)
            inside = (
                slice(n - at * size) for n, at, size in zip(grid, place, each, strict=True)
            )  # of the last shard of an axis, some chunks lie beyond the array
            written += int(np.any(index[tuple(inside)] != NEVER_WRITTEN, axis=-1).sum())
    return int(array.nchunks) - written


def _shard_index(path: Path, array: Any, file: Path, chunks: int) -> np.ndarray[Any, Any]:
    """Return offset and bytes of every chunk of a shard; raises :class:`DataError`.

    Zarr specification, codec sharding_indexed, version 1.0.
    """
    (sharding,) = (codec for codec in array.metadata.codecs if hasattr(codec, "index_location"))
    codecs = [codec.to_dict()["name"] for codec in sharding.index_codecs]
    if codecs not in (["bytes"], ["bytes", "crc32c"]):
        raise DataError(
            f"{path} has shards whose indexes are coded by {', '.join(codecs)}, so that chunks "
            "which were never written are not seen; write it again without that"
        )
    endian = sharding.index_codecs[0].to_dict().get("configuration", {}).get("endian", "little")
    nbytes = chunks * 2 * 8
    with file.open("rb") as shard:
        if sharding.index_location.value == "end":
            shard.seek(-nbytes - 4 * (len(codecs) - 1), os.SEEK_END)
        found = shard.read(nbytes)
    if len(found) < nbytes:
        raise CorruptError(f"{file} ends before its index of {chunks} chunks; write it again")
    return np.frombuffer(found, "<u8" if endian == "little" else ">u8")


def _opens(path: Path) -> bool:
    return any((path / name).is_file() for name in (V3, V2_ARRAY, V2_GROUP))


FORMAT = Importer("zarr", (), _opens, zarr_rows)
