"""Samples by id: the first rank to claim one in the store of the process group counts it.

Claims need no collective, and no rank to wait for another. Which of two copies counts is not fixed:
they are of one sample, and equal unless the outputs of the model depend on the rest of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pipeline.ddp.live import Ranks

__all__ = ["Claims"]

ROOT = "featfold/ids"


class Claims:
    """The samples that this rank counts since the last reset, under a name that all ranks share.

    The name is what the collection goes by and declares, and how many before it did the same in
    the process group: ranks that make the same collections in the same order agree on it.
    """

    def __init__(self) -> None:
        self.place = ""
        """What samples are claimed under since the last reset; nothing before the first claim."""
        self._resets = 0
        self._own: set[str] = set()
        self._earlier: list[str] = []  # keys of the reset before, which no rank claims any more
        self._synced = False
        self._store: Any = None
        self._root = ""

    def claim(self, name: str, ids: Sequence[str], here: Ranks | None) -> list[int]:
        """Return the places of the ids that nobody had claimed, which are now this rank's."""
        if here is not None and here.size > 1:
            self._store = here.store
            if not self._root or not self._store.check([f"{self._root}/user/{here.rank}"]):
                self._root = self._own_root(name, here)
        self.place = f"{self._root}/{self._resets}"
        fresh = []
        for place, one in enumerate(ids):
            if one not in self._own and self._first(one):
                self._own.add(one)
                fresh.append(place)
        return fresh

    def release(self, ids: Sequence[str]) -> None:
        """Give back claims of rows that were refused."""
        self._own.difference_update(ids)
        self._delete([self._key(one) for one in ids])

    def synced(self) -> None:
        """Note that every rank is past the reset before."""
        self._synced = True

    def reset(self) -> None:
        """Begin anew: all samples are free again."""
        if self._synced:
            self._delete(self._earlier)
            self._earlier = []
        self._earlier += [self._key(one) for one in self._own]
        self._own, self._synced, self.place = set(), False, ""
        self._resets += 1

    def _first(self, one: str) -> bool:
        return self._store is None or self._store.add(self._key(one), 1) == 1

    def _key(self, one: str) -> str:
        return f"{self.place}/{one}"

    def _delete(self, keys: Sequence[str]) -> None:
        with suppress(RuntimeError):  # the store went with its process group
            for key in keys if self._store is not None else ():
                self._store.delete_key(key)

    def _own_root(self, name: str, here: Ranks) -> str:
        number = here.store.add(f"{ROOT}/{name}/users/{here.rank}", 1)
        root = f"{ROOT}/{name}/{number}"
        here.store.set(f"{root}/user/{here.rank}", "1")
        return root
