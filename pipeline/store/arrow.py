"""Columns of Arrow and Parquet as rows of numbers: nulls, text and lists of unequal length refused.

pyarrow is imported where a file is opened.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError


@dataclass(frozen=True)
class RowType:
    """What a row of a column is: a number, or lists of them within lists."""

    lengths: tuple[int, ...]
    """Lengths of the lists, the outermost first."""
    shape: tuple[int, ...]
    """Shape of a row: the lengths, unless they are those of a tensor."""
    dtype: np.dtype[Any]

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


def pyarrow(asked: str, extra: str = "parquet") -> Any:
    """Import pyarrow with its readers; raises :class:`ConfigError` that names the extra."""
    try:
        for module in ("csv", "ipc", "parquet"):
            importlib.import_module(f"pyarrow.{module}")
        return importlib.import_module("pyarrow")
    except ImportError:
        raise ConfigError(f"{asked} needs pyarrow; pip install 'featfold[{extra}]'") from None


def opened_parquet(path: Path) -> Any:
    """Open a Parquet file to be read front to back: no page is held longer than needed.

    Checksums of pages are compared where the file has them.
    """
    return importlib.import_module("pyarrow.parquet").ParquetFile(
        path, pre_buffer=False, buffer_size=2**20, page_checksum_verification=True
    )


def row_type(field: Any, read_first: Callable[[], Any]) -> RowType:
    """Return what the rows of a field are, by its type; lists have the lengths of the first row.

    ``read_first`` gives it, as an array of one, and is called where it is needed.
    """
    types = importlib.import_module("pyarrow.types")
    kind, lengths, tensor = field.type, list[int](), tuple[int, ...]()
    first = read_first() if _is_of_any_length(types, kind) else None
    while True:
        if hasattr(kind, "storage_type"):
            tensor, kind = _tensor_shape(kind), kind.storage_type
            first = getattr(first, "storage", first)
            continue
        if types.is_fixed_size_list(kind):
            lengths.append(kind.list_size)
        elif types.is_list(kind) or types.is_large_list(kind):
            lengths.append(_longest(first))
        else:
            break
        kind, first = kind.value_type, None if first is None else first.flatten()
    dtype = _numpy_dtype(kind)
    shape = tensor if tensor and math.prod(tensor) == math.prod(lengths) else tuple(lengths)
    return RowType(tuple(lengths), shape, dtype)


def _is_of_any_length(types: Any, kind: Any) -> bool:
    """Tell whether the rows of a type are lists, or hold lists, whose length it does not say."""
    if hasattr(kind, "storage_type"):
        return _is_of_any_length(types, kind.storage_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return True
    return bool(types.is_fixed_size_list(kind)) and _is_of_any_length(types, kind.value_type)


def _tensor_shape(kind: Any) -> tuple[int, ...]:
    """Return the shape of tensors in C order, () of others and of what is no tensor."""
    shape = tuple(getattr(kind, "shape", ()))
    order = list(getattr(kind, "permutation", None) or range(len(shape)))
    return shape if order == sorted(order) and None not in shape else ()


def _longest(lists: Any) -> int:
    return int(lists.value_lengths()[0].as_py() or 0) if len(lists) else 0


def _numpy_dtype(kind: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return found
    except (NotImplementedError, TypeError):
        return np.dtype(object)


def numbers(
    column: Any, lengths: Sequence[int], what: str, first_row: int = 0
) -> np.ndarray[Any, Any]:
    """Return the numbers (n, ...) of an array of Arrow whose lists have these lengths.

    ``what`` names the column, and ``first_row`` counts its rows, in errors. Raises
    :class:`DataError` for nulls, for lists of another length and for what is not a number.
    """
    n, per_row = len(column), 1
    for length in lengths:
        column = _checked(getattr(column, "storage", column), what)
        if hasattr(column, "value_lengths"):
            found = column.value_lengths().to_numpy(zero_copy_only=False)
            if len(wrong := np.nonzero(found != length)[0]):
                row = first_row + int(wrong[0]) // per_row
                raise DataError(
                    f"{what}: row {row} holds a list of {found[wrong[0]]}, the rows before it "
                    f"lists of {length}; make all rows of one length, with a mask beside them"
                )
        column = column.flatten()
        per_row *= length
    column = _checked(getattr(column, "storage", column), what)
    made: np.ndarray[Any, Any] = np.asarray(column.to_numpy(zero_copy_only=False))
    if made.dtype.kind not in "biuf":
        raise DataError(
            f"{what} holds {column.type}; expected numbers: write classes as integers from 0 on"
        )
    return made.reshape(n, *lengths)


def _checked(column: Any, what: str) -> Any:
    if column.null_count:
        raise DataError(
            f"{what} lacks {column.null_count} numbers; fill them in, with a class of ignore where "
            "a label does not count"
        )
    return column
