"""Rows in a file of nothing but their bytes, read where they are sliced."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import MissingInputError


class FileRows:
    """An array of rows in a file, from ``start_nbytes`` on.

    Not mapped into memory: mapped pages count as memory of every process that looks at them.
    """

    def __init__(
        self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], start_nbytes: int = 0
    ) -> None:
        self.path, self.shape, self.dtype, self.start_nbytes = path, shape, dtype, start_nbytes

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Read rows; raises MissingInputError where the file is gone or too short."""
        start, stop, _ = rows.indices(self.shape[0])
        read = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self.read_into(read, start)
        return read

    def read_into(self, out: np.ndarray[Any, Any], start: int) -> None:
        """Fill a contiguous array from row ``start`` on; raises as slicing does."""
        left = out.reshape(-1).view(np.uint8)
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.start_nbytes + start * self.row_nbytes)
                while len(left):
                    got = file.readinto(left.data)
                    if not got:
                        raise ValueError("the file ends before them")
                    left = left[got:]
        except (FileNotFoundError, ValueError) as error:
            raise MissingInputError(
                f"{self.path} lacks rows {start}-{start + len(out)} ({error}); was it removed "
                "during the run?"
            ) from error
