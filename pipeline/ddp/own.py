"""What is saved of one rank beside its states: its rows, what is known of them, and its place."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.errors import ConfigError

__all__ = ["Own", "of_one_process"]


class Own(NamedTuple):
    """A rank of a process group, and the rows that it has taken in."""

    rows: int
    unchecked: bool
    """Whether some of them may repeat those of other ranks."""
    rank: int
    size: int

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return all of it as arrays by key."""
        return {name: np.array([number]) for name, number in self._asdict().items()}

    @classmethod
    def read(cls, state_dict: Mapping[str, Any]) -> Self:
        """Return what :meth:`arrays` wrote; raises :class:`ConfigError` for other states."""
        if any(name not in state_dict for name in cls._fields):
            raise of_one_process()
        rows, unchecked, rank, size = (int(np.asarray(state_dict[name])[0]) for name in cls._fields)
        return cls(rows, bool(unchecked), rank, size)

    def check_place(self, rank: int, size: int, prefix: str) -> None:
        """Raise :class:`ConfigError` where another rank would count these rows again.

        Warns where one process takes a part for the whole. Of no rows it does not matter.
        """
        if (self.rank, self.size) == (rank, size) or not self.rows:
            return
        whose = f"{prefix}metrics: these are states of rank {self.rank} of {self.size}"
        if size > 1:
            raise ConfigError(
                f"{whose}, and this is rank {rank} of {size}: samples would count more than once, "
                "or not at all. Let each rank save and load its own, or reset before saving"
            )
        warnings.warn(f"{whose} alone; load those of every rank, and merge them", stacklevel=4)


def of_one_process() -> ConfigError:
    """Return the error of states that say nothing of their rows."""
    return ConfigError(
        "these are states of a Collection of one process, of which neither the rows nor their "
        "repeats are known; take them in and save them with ff.ddp.Collection"
    )
