"""Arrays in an object store: zarr's way to their objects, and the fast way to raw chunks.

Every chunk is one request for all of its rows that a block has, so that a pass fetches each byte
of the arrays it uses once, even where two blocks share a chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, BinaryIO, cast

import numpy as np
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import ObjectStore

from pipeline.chunk import ArraySpec, Block
from pipeline.store import layout, object_client, raw
from pipeline.store.object_place import ObjectPlace

MISSING = "the object is missing"


class ArrayObjects(ObjectStore):  # type: ignore[misc]
    """What zarr reads and writes below a place, asked again as all of the store's requests are."""

    def __init__(self, place: ObjectPlace, *, read_only: bool) -> None:
        super().__init__(object_client.client(place.scheme, place.bucket), read_only=read_only)
        self.place = place

    def with_read_only(self, read_only: bool = False) -> ArrayObjects:
        """Return the same objects, to be read or written."""
        return ArrayObjects(self.place, read_only=read_only)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the content of an object, or None; featfold's arrays are never read in part."""
        if byte_range is not None:
            raise NotImplementedError(f"{self.place / key}: shards are not read from object stores")
        try:
            content = await asyncio.to_thread((self.place / key).read_bytes)
        except FileNotFoundError:
            return None
        return prototype.buffer.from_bytes(content)

    async def set(self, key: str, value: Buffer) -> None:
        """Write one object, in one request."""
        self._check_writable()
        await asyncio.to_thread((self.place / key).write_bytes, value.as_buffer_like())

    async def exists(self, key: str) -> bool:
        """Tell whether there is an object."""
        return await asyncio.to_thread((self.place / key).exists)

    async def delete(self, key: str) -> None:
        """Delete one object."""
        self._check_writable()
        await asyncio.to_thread((self.place / key).unlink)

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys of all objects below."""
        for found in await asyncio.to_thread((self.place / prefix).all_below):
            yield found.key[len(self.place.key) :].strip("/")

    def list(self) -> AsyncIterator[str]:
        """Yield the keys of all objects."""
        return self.list_prefix("")

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names right below."""
        for name in await asyncio.to_thread((self.place / prefix).children):
            yield name


def zarr_store(place: ObjectPlace, *, read_only: bool) -> ArrayObjects:
    """Return what zarr opens or creates an array in."""
    return ArrayObjects(place, read_only=read_only)


class ObjectChunks(raw.RawChunks):
    """Reads rows of one array of one block from its uncompressed chunks, each fetched once."""

    directory: ObjectPlace

    def __init__(
        self,
        directory: ObjectPlace,
        split: str,
        spec: ArraySpec,
        chunk_rows: int,
        trailer_nbytes: int,
        block: Block,
    ) -> None:
        super().__init__(directory, split, spec, chunk_rows, trailer_nbytes)
        self.block = block

    def check(self, index: int) -> None:
        """Fetch one whole chunk, and raise as :meth:`read` would if it was damaged."""
        size = self.chunk_rows * self.spec.nbytes
        with self._whole(index) as file:
            rows = np.empty(size, np.uint8)
            raw.compare(raw.read_into(file, rows), file.read(self.trailer_nbytes))

    def _open(self, index: int) -> BinaryIO:
        first = index * self.chunk_rows
        start = max(self.block.start - first, 0)
        stop = min(self.block.stop - first, self.chunk_rows)
        if (start, stop) == (0, self.chunk_rows):
            return self._whole(index)
        try:
            content, found = self._object(index).read_range(
                start * self.spec.nbytes, stop * self.spec.nbytes
            )
        except FileNotFoundError:
            raise FileNotFoundError(MISSING) from None
        self._check_size(found)
        return cast(BinaryIO, _Fetched(content, start * self.spec.nbytes))

    def _whole(self, index: int) -> BinaryIO:
        try:
            content = self._object(index).read_bytes()
        except FileNotFoundError:
            raise FileNotFoundError(MISSING) from None
        self._check_size(len(content))
        return cast(BinaryIO, _Fetched(content, 0))

    def _object(self, index: int) -> ObjectPlace:
        return layout.chunk_file(self.directory, index, self.spec)

    def _check_size(self, found: int) -> None:
        expected = self.chunk_rows * self.spec.nbytes + self.trailer_nbytes
        if found != expected:
            raise ValueError(f"the object has {found} bytes, expected {expected}")


class _Fetched:
    """Bytes of an object from a place on, read as a file is; nothing is copied but what is read."""

    def __init__(self, content: Any, start: int) -> None:
        self._content, self._start, self._at = memoryview(content), start, 0

    def __enter__(self) -> _Fetched:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def seek(self, offset: int) -> None:
        """Go to a byte of the object."""
        self._at = offset - self._start

    def readinto(self, out: memoryview) -> int:
        """Fill a buffer; return the number of bytes that there were."""
        part = self._content[self._at : self._at + len(out)]
        out[: len(part)] = part
        self._at += len(part)
        return len(part)

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes."""
        part = self._content[self._at : self._at + nbytes]
        self._at += len(part)
        return bytes(part)

    def close(self) -> None:
        """Let go of the bytes."""
        self._content = memoryview(b"")
