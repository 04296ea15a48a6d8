"""Samples by id: the first rank to claim one in the store of the process group counts it.

Claims need no collective, and no rank to wait for another. Which of two copies counts is not fixed:
they are of one sample, and equal unless the outputs of the model depend on the rest of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pipeline.ddp.live import Ranks
from pipeline.errors import ConfigError, DataError

__all__ = ["Claims", "names_of"]

ROOT = "featfold/ids"


class Claims:
    """The samples that this rank counts since the last reset, under a name that all ranks share.

    The name is what the collection goes by and declares, and how many collections before it made
    their first claim under the same in the process group. Ranks agree on it whose collections make
    their first claims in the same order; a rank that has no batch of one is a name behind the
    others from then on. So names are compared before numbers are added up.
    """

    def __init__(self) -> None:
        self.place = ""
        """What samples are claimed under since the last reset; nothing before the first claim."""
        self._resets = 0
        self._own: set[str] = set()
        self._earlier: list[str] = []  # keys of the reset before, which no rank claims any more
        self._synced = False
        self._closed = False
        self._store: Any = None
        self._root = ""

    def claim(self, name: str, ids: Sequence[str], here: Ranks | None) -> list[int]:
        """Return the places of the ids that nobody had claimed, which are now this rank's.

        Raises :class:`ConfigError` where there are rows of which it is not known who they are.
        """
        if self._closed:
            raise ConfigError(
                "ids beside rows whose ids are not known, from a clone, a merge or a saved state: "
                "samples might count twice; call reset() before the first update with ids"
            )
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

    def close(self) -> None:
        """Refuse further ids until the next reset: there are rows whose ids are not known."""
        self._closed = True

    def copied(self) -> Claims:
        """Return claims for an independent copy of what was counted.

        They are the same in one process. Among several ranks the copy is closed: each rank would
        have to wait until all others had made their claims anew.
        """
        made = Claims()
        made._closed = self._closed
        if self._store is None:
            made._own = set(self._own)
        elif self.place:
            made.close()
        return made

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
        self._closed = False
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


def names_of(ids: Any) -> list[str]:
    """Return the names of samples; raises :class:`DataError` for what names none."""
    plain = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    odd = [one for one in plain if isinstance(one, bool) or not isinstance(one, int | str | bytes)]
    if odd:
        raise DataError(f"ids: {odd[0]!r} names no sample; give whole numbers or strings")
    return [str(one) for one in plain]
