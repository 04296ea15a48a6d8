"""Which partials of training metrics go with checkpoints that are still on disk.

Every checkpoint is written with partials of its own, most of which outlive it. A callback is not
told where a checkpoint goes: what has appeared or changed in the folders of the checkpoints when
the next one is saved is the one before. What is known so far lies beside the attempts of a run, so
that a training that goes on from another looks after the partials of both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import files
from pipeline.ddp.files import Moment

__all__ = ["Checkpoints", "Save"]

KEPT = "checkpoints.json"
SAVES_KEPT = 3
"""Latest saves whose partials stay whatever is on disk: a checkpoint may go somewhere else."""


class Save(NamedTuple):
    """The partials that were written with a checkpoint."""

    attempt: int
    moments: tuple[Moment, ...]


class Checkpoints:
    """Partials of the checkpoints of a run that may still be there, of all of its attempts."""

    def __init__(self, run: Path) -> None:
        self._path = run / KEPT
        self._saves: list[Save] = []
        self._seen: dict[str, tuple[int, Save]] = {}
        """When each file was written, and with which partials."""
        with suppress(OSError, ValueError, KeyError, TypeError):  # what is not known stays there
            self._take_up(json.loads(self._path.read_text()))

    def saving(self, trainer: Any, latest: Save) -> list[Save]:
        """Note partials that go with a checkpoint that is about to be written.

        Returns earlier ones that no checkpoint needs any more; none where some folder of
        checkpoints is not known, or on a remote file system.
        """
        folders = [getattr(one, "dirpath", None) for one in trainer.checkpoint_callbacks]
        seen: dict[str, tuple[int, Save]] = {}
        for path, written in _files([str(one) for one in folders if one]):
            before = self._seen.get(path)
            if before and before[0] == written:
                seen[path] = before
            elif self._saves:
                seen[path] = written, self._saves[-1]
        self._seen = seen
        self._saves.append(latest)
        hidden = any(folder is None or "://" in str(folder) for folder in folders)
        gone = [] if hidden else self._unneeded()
        self._write()
        return gone

    def _unneeded(self) -> list[Save]:
        needed = {save for _, save in self._seen.values()}.union(self._saves[-SAVES_KEPT:])
        gone = [save for save in self._saves if save not in needed]
        self._saves = [save for save in self._saves if save in needed]
        return gone

    def _write(self) -> None:
        number = {save: place for place, save in enumerate(self._saves)}
        content = {
            "saves": [[save.attempt, [m._asdict() for m in save.moments]] for save in self._saves],
            "seen": {path: [written, number[save]] for path, (written, save) in self._seen.items()},
        }
        text = json.dumps(content).encode()
        files.write_whole(
            self._path, lambda file: file.write(text), len(text), "name another directory"
        )

    def _take_up(self, content: Any) -> None:
        saves = [
            Save(attempt, tuple(Moment(**moment) for moment in moments))
            for attempt, moments in content["saves"]
        ]
        seen = {path: (written, saves[place]) for path, (written, place) in content["seen"].items()}
        self._saves, self._seen = saves, seen


def _files(folders: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield the checkpoints in some folders, files or folders themselves, with their times."""
    for folder in dict.fromkeys(folders):
        for path in Path(folder).absolute().rglob("*.ckpt"):
            try:
                yield str(path), path.stat().st_mtime_ns
            except FileNotFoundError:  # removed meanwhile
                continue
