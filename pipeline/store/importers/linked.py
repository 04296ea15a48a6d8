"""Chunk files of a zarr array that fit a split as they are: linked into the store, not copied.

A hard link is a second name of a file. The store has its own metadata and manifest, so nothing of
the other array is touched by what is written, replaced or removed in the store; and a program that
replaces a chunk there, as zarr does, leaves the store's name with the old bytes. Every byte is read
once, for the checksums that tell whether somebody changed it in place.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chunk import ArraySpec
from pipeline.store import checksum, disk, layout
from pipeline.store.declaration import Declaration, widest
from pipeline.store.importers.mapping import Target
from pipeline.store.importers.shards import Shards
from pipeline.store.importers.zarr_arrays import V3, folder_of
from pipeline.store.place import is_local

CHUNK_KEYS = ("chunk_grid", "chunk_key_encoding", "codecs", "data_type")
"""What says how the rows of a chunk lie in its file."""


class ChunkLinks:
    """The chunk files of one array, and its metadata."""

    def __init__(self, name: str, folder: Path, spec: ArraySpec, found: Mapping[str, Any]) -> None:
        self.name, self.folder, self.spec, self._found = name, folder, spec, found
        self.chunk_rows = int(found["chunk_grid"]["configuration"]["chunk_shape"][0])
        self.refused = ""
        """Why files were copied after all."""

    def sizes(self, block_nbytes: int) -> dict[str, int]:
        """Return the sizes with which a split has the same chunks."""
        chunk_nbytes = self.chunk_rows * self.spec.nbytes
        return {"chunk_nbytes": chunk_nbytes, "block_nbytes": max(block_nbytes, chunk_nbytes)}

    def misfit(self, declared: Declaration, split: Path) -> str:
        """Say why the chunks of a split, begun perhaps by copying, are others, or nothing."""
        if declared.chunk_rows[self.name] != self.chunk_rows:
            return f"the split has chunks of other rows than {self.name}"
        there = _metadata(split / self.name)
        if any(there.get(key, self._found[key]) != self._found[key] for key in CHUNK_KEYS):
            return f"the split was begun with other codecs than those of {self.name}"
        return ""

    def create(self, directory: Path, name: str) -> None:
        """Write the metadata of the array in the store: the same chunks, under our attributes."""
        own = {
            **self._found,
            "attributes": {"logical_dtype": self.spec.dtype, "layout": self.spec.layout},
            "dimension_names": list(layout.dimension_names(name, self.spec)),
        }
        disk.make(directory)
        disk.write_text(directory / disk.GROUP_FILE, disk.to_json(own))

    def put(self, file: Path, index: int, rows: np.ndarray[Any, Any]) -> int:
        """Give the chunk file that holds ``rows`` its name in the store; return their checksum."""
        source = layout.chunk_file(self.folder, index, self.spec)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{uuid.uuid4().hex}.partial")
        try:
            os.link(source, partial)
        except OSError as error:  # another file system, or one without links
            self.refused = f"{self.name}: files cannot be linked into the store ({_short(error)})"
            shutil.copyfile(source, partial)
        disk.sync(partial)
        partial.replace(file)
        return checksum.crc32c(rows)


def _short(error: OSError) -> str:
    return f"[Errno {error.errno}] {error.strerror}"


def chunk_links(targets: Mapping[str, Target], store: object) -> tuple[ChunkLinks | None, str]:
    """Return what links the array with the widest rows, or None and why it must be copied."""
    target = targets[widest({name: each.spec for name, each in targets.items()})]
    if not is_local(store):
        return None, "the store is no folder"
    if target.conversion:
        return None, f"{target.name} is converted ({', '.join(target.conversion.values())})"
    parts = target.rows.parts if isinstance(target.rows, Shards) else ()
    folder = folder_of(parts[0].rows) if len(parts) == 1 else None
    if folder is None:
        return None, f"{target.name} is not one zarr array"
    found = _metadata(folder)
    if why := _unfit(folder, found, target.spec):
        return None, f"{target.name} {why}"
    return ChunkLinks(target.name, folder, target.spec, found), ""


def _metadata(folder: Path) -> dict[str, Any]:
    path = folder / V3
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found if isinstance(found, dict) else {}


def _unfit(folder: Path, found: Mapping[str, Any], spec: ArraySpec) -> str:
    """Say why the chunks of an array are not those of a split, or nothing."""
    if not found:
        return "is zarr of format 2"
    codecs = [codec["name"] for codec in found["codecs"]]
    stored = layout.stored_dtype(spec)
    endian = found["codecs"][0].get("configuration", {}).get("endian", "little")
    keys = found["chunk_key_encoding"]
    grid = found["chunk_grid"]
    if codecs[0] != "bytes" or endian != "little" or found["data_type"] != stored.name:
        return f"has other codecs ({', '.join(codecs)}) or bytes in another order"
    if grid["name"] != "regular" or grid["configuration"]["chunk_shape"][1:] != list(spec.shape):
        return "has chunks that split a row"
    if keys["name"] != "default" or keys.get("configuration", {}).get("separator", "/") != "/":
        return "has chunk files with other names"
    chunk_rows, rows = grid["configuration"]["chunk_shape"][0], found["shape"][0]
    chunks = (layout.chunk_file(folder, i, spec) for i in range(-(-rows // chunk_rows)))
    return "" if all(map(Path.is_file, chunks)) else "has chunks that were never written"
