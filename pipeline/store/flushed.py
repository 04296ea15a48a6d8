"""A local zarr store that flushes every file to the disk before it gets its name."""

from __future__ import annotations

import asyncio
import os
import uuid

from zarr.core.buffer import Buffer
from zarr.storage import LocalStore


class FlushedStore(LocalStore):  # type: ignore[misc]
    """Writes beside the file, flushes, then renames: a name never stands for a torn chunk."""

    async def set(self, key: str, value: Buffer) -> None:
        """Write one file."""
        if not self._is_open:
            await self._open()
        await asyncio.to_thread(self.set_sync, key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write one file in this thread."""
        self._check_writable()
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        try:
            with partial.open("wb") as file:
                file.write(value.as_buffer_like())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
