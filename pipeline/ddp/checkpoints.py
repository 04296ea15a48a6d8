"""Which partials of training metrics go with checkpoints that are still on disk.

Every checkpoint is written with partials of its own, most of which outlive it. A callback is not
told where a checkpoint goes: what has appeared or changed in the folders of the checkpoints when
the next one is saved is the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.ddp.files import Moment

__all__ = ["Checkpoints"]

SAVES_KEPT = 3
"""Latest saves whose partials stay whatever is on disk: a checkpoint may go somewhere else."""

Moments = tuple[Moment, ...]


class Checkpoints:
    """Moments of the partials of each checkpoint of an attempt that is still there."""

    def __init__(self) -> None:
        self._saves: list[Moments] = []
        self._seen: dict[Path, tuple[int, Moments]] = {}
        """When each file was written, and with which partials."""

    def saving(self, trainer: Any, moments: Sequence[Moment]) -> list[Moment]:
        """Note partials that go with a checkpoint that is about to be written.

        Returns the moments of earlier ones that no checkpoint needs any more; none where some
        folder of checkpoints is not known, or on a remote file system.
        """
        latest = self._saves[-1] if self._saves else ()
        seen: dict[Path, tuple[int, Moments]] = {}
        folders = [getattr(one, "dirpath", None) for one in trainer.checkpoint_callbacks]
        for path, written in _files([str(one) for one in folders if one]):
            before = self._seen.get(path)
            seen[path] = before if before and before[0] == written else (written, latest)
        self._seen = seen
        self._saves.append(tuple(moments))
        if any(folder is None or "://" in str(folder) for folder in folders):
            return []
        return self._unneeded()

    def _unneeded(self) -> list[Moment]:
        on_disk = {one for _, own in self._seen.values() for one in own}
        needed = on_disk.union(*self._saves[-SAVES_KEPT:])
        gone = dict.fromkeys(one for own in self._saves for one in own if one not in needed)
        self._saves = [own for own in self._saves if needed.intersection(own)]
        return list(gone)


def _files(folders: Sequence[str]) -> Iterator[tuple[Path, int]]:
    """Yield the checkpoints in some folders, files or folders themselves, with their times."""
    for folder in dict.fromkeys(folders):
        for path in Path(folder).rglob("*.ckpt"):
            try:
                yield path, path.stat().st_mtime_ns
            except FileNotFoundError:  # removed meanwhile
                continue
