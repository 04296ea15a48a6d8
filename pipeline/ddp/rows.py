"""Rows of a batch that count: the leading ones of a batch that is told of, or chosen ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from pipeline import arrays
from pipeline.errors import ConfigError, DataError

__all__ = ["Expected", "leading", "picked"]


@dataclass
class Expected:
    """A batch whose rows come with the next updates, in order, in one piece or several."""

    rows: int | None
    """Rows of the batch; None if all count however many there are."""
    counted_rows: int
    """Leading rows that count; the others repeat samples."""
    given_rows: int = 0
    error: ConfigError | None = None
    """Why it is not known which rows count, to be raised where that matters."""

    @classmethod
    def everything(cls) -> Self:
        """Return a batch without a row that repeats another."""
        return cls(None, 0)

    @classmethod
    def unknown(cls, error: ConfigError) -> Self:
        """Return a batch of which only ids can tell the rows that repeat others."""
        return cls(None, 0, error=error)

    def counted(self, rows: int) -> int:
        """Return how many leading ones of the next rows count."""
        if self.error is not None:
            raise self.error
        if self.rows is None:
            return rows
        if self.given_rows + rows > self.rows and self.counted_rows < self.rows:
            raise self._mismatch(self.given_rows + rows)
        if self.counted_rows == self.rows:
            return rows
        return min(rows, max(0, self.counted_rows - self.given_rows))

    def check(self) -> None:
        """Raise :class:`DataError` if only some rows of a batch with repeated ones were given."""
        if self.rows is None or self.counted_rows == self.rows:
            return
        if self.given_rows not in (0, self.rows):
            raise self._mismatch(self.given_rows)

    def _mismatch(self, given: int) -> DataError:
        return DataError(
            f"updates were given {given} rows of a batch of {self.rows}, of which the last "
            f"{(self.rows or 0) - self.counted_rows} repeat samples; give the rows of the batch "
            "whole and in order, or ids"
        )


def leading(rows: int, *given: Any) -> tuple[Any, ...]:
    """Return the leading rows of each array; None stays None."""
    return tuple(None if one is None else one[:rows] for one in given)


def picked(places: Sequence[int], *given: Any) -> tuple[Any, ...]:
    """Return the rows at some places of each array; None stays None."""
    return tuple(None if one is None else _rows_at(places, one) for one in given)


def _rows_at(places: Sequence[int], given: Any) -> Any:
    x = given if arrays.is_array(given) else np.asarray(given)
    index = arrays.like(np.asarray(places, np.int64), x)
    return arrays.namespace(x).take(x, index, axis=0)
