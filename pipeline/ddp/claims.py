"""Samples by id: the first rank to claim one in the store of the process group counts it.

Claims need no collective, and no rank to wait for another. Which of two copies counts is not fixed:
they are of one sample, and equal unless the outputs of the model depend on the rest of its batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from pipeline.ddp.live import Ranks
from pipeline.errors import ConfigError

__all__ = ["Claims"]

ROOT = "featfold/ids"
_USERS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class Claims:
    """The samples that this rank counts since the last reset."""

    def __init__(self) -> None:
        self.used = False
        self.resets = 0
        self._own: set[str] = set()
        self._earlier: list[str] = []  # keys of the reset before, which no rank claims any more
        self._synced = False
        self._store: Any = None
        self._place = ""

    def claim(self, collection: Any, ids: Sequence[str], here: Ranks | None) -> list[int]:
        """Return the places of the ids that nobody had claimed, which are now this rank's."""
        self.used = True
        if here is not None and here.size > 1:
            self._store = here.store
            self._place = self._namespace(collection)
        fresh = []
        for place, name in enumerate(ids):
            if name not in self._own and self._first(name):
                self._own.add(name)
                fresh.append(place)
        return fresh

    def release(self, ids: Sequence[str]) -> None:
        """Give back claims of rows that were refused."""
        for name in ids:
            self._own.discard(name)
            if self._store is not None:
                self._store.delete_key(self._key(name))

    def synced(self) -> None:
        """Note that every rank is past the reset before."""
        self._synced = True

    def reset(self) -> None:
        """Begin anew: all samples are free again."""
        if self._store is not None and self._synced:
            for key in self._earlier:
                self._store.delete_key(key)
            self._earlier = []
        if self._store is not None:
            self._earlier += [self._key(name) for name in self._own]
        self._own, self._synced, self.used = set(), False, False
        self.resets += 1

    def _first(self, name: str) -> bool:
        return self._store is None or self._store.add(self._key(name), 1) == 1

    def _key(self, name: str) -> str:
        return f"{self._place}/{self.resets}/{name}"

    def _namespace(self, collection: Any) -> str:
        """Return what the claims of a collection go by: the same on every rank, and its own."""
        place = f"{ROOT}/{collection.prefix}{collection.declaration[:16]}"
        if _USERS.setdefault(place, collection) is not collection:
            raise ConfigError(
                f"two collections with prefix {collection.prefix!r} count samples by id, and would "
                "take each other's; give each its own, with clone(prefix=...)"
            )
        return place
