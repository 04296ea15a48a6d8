"""The rows of a bank: held with the scorer, or in the files that the pass of the fit left.

Whichever it is, they come in the same tiles, so that neither changes a bit of any score.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.content import Const, value
from pipeline.errors import CorruptError, MissingInputError
from pipeline.partials import opened_rows
from pipeline.procedure import REHEARSING
from pipeline.views import View

BANK_TILE_NBYTES = 4 * 2**20
"""Bytes of a tile of a bank in float64: products with it fill the caches of a core."""
TILE_LIMITS = 64, 4096
REHEARSED = 16
"""Entries that a plan looks at."""
READING = 4
"""Tiles that are held while one is read: what was read, what is kept of it, the next, it."""


@value
class BankFile:
    """The entries of one block: a table among the partials, as its fit left it."""

    path: str
    checksum: int
    """CRC-32 of the rows and their head."""
    rows: int
    nbytes: int
    """Bytes of the rows, those that do not count among them."""


@value
class Bank:
    """Entries (m, d) of a split that scorers compare with.

    Up to ``BANK_LIMIT_NBYTES`` they are ``held``, and saved with the scorer. Above, ``files`` name
    the tables that hold them: a file that is gone or was changed is an error, never another
    neighbour. Rows of files that are not finite do not count. The bank of a plan has both: the file
    that will be, and a few made-up entries for all.
    """

    split: str
    view: View
    entries: int
    width: int
    held: Const | None = None
    files: tuple[BankFile, ...] = ()

    @property
    def tile_rows(self) -> int:
        """Entries of a tile; the last one may have fewer."""
        least, most = TILE_LIMITS
        return max(least, min(most, BANK_TILE_NBYTES // (8 * self.width)))

    @property
    def files_nbytes(self) -> int:
        """Bytes that are read whenever the entries are, where they are in files."""
        return sum(file.nbytes for file in self.files)

    @property
    def reading_nbytes(self) -> int:
        """Bytes that are held while tiles are read, however many there are."""
        return READING * 8 * min(self.tile_rows, self.entries) * self.width

    def tiles(self, x: Array) -> Iterator[Array]:
        """Yield the entries in order, in float64, in the library and on the device of ``x``."""
        xp = arrays.namespace(x)
        for tile in self._held_tiles(x) if self.held else self._file_tiles(x):
            if REHEARSING.get():  # of made-up rows, a few stand for all
                yield xp.astype(tile[: min(REHEARSED, tile.shape[0]), ...], xp.float64)
                return
            yield xp.astype(tile, xp.float64, copy=False)

    def _held_tiles(self, x: Array) -> Iterator[Array]:
        assert self.held is not None
        entries = self.held.like(x)
        for tile in arrays.tiles(self.entries, self.tile_rows):
            yield entries[tile, ...]

    def _file_tiles(self, x: Array) -> Iterator[Array]:
        tile = np.empty((self.tile_rows, self.width))
        filled = 0
        for run in self._runs():
            taken = 0
            while taken < len(run):
                count = min(len(run) - taken, self.tile_rows - filled)
                tile[filled : filled + count] = run[taken : taken + count]
                filled, taken = filled + count, taken + count
                if filled == self.tile_rows:
                    yield arrays.like(tile, x)
                    filled = 0
        if filled:
            yield arrays.like(tile[:filled], x)

    def _runs(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the entries that count, about a tile at a time."""
        try:
            for file in self.files:
                yield from self._runs_of(file)
        except (MissingInputError, CorruptError) as error:
            raise type(error)(
                f"the bank of {self.split}, {self.entries} entries too many to be saved with the "
                f"detector: {error}; fit again, with max_bank to save a sample of the bank instead"
            ) from error

    def _runs_of(self, file: BankFile) -> Iterator[np.ndarray[Any, Any]]:
        with opened_rows(Path(file.path)) as stored:
            if (stored.checksum, stored.shape[0]) != (file.checksum, file.rows):
                raise CorruptError(f"{file.path} is not the file that was fitted on")
            each = stored.shape[1] if len(stored.shape) == 3 else 1
            step = max(1, self.tile_rows // each)
            for _ in arrays.tiles(file.rows, step):
                yield finite_entries(stored.read(step), self.width)


def finite_entries(rows: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """Return the entries (m, width) of rows (n, width) or (n, t, width) that are finite."""
    flat = rows.reshape(-1, width)
    finite = np.isfinite(flat).all(axis=1)
    return flat if finite.all() else flat[finite]
