"""npy files: an array each, of any rank, read from the file without being mapped into memory."""

from __future__ import annotations

import ast
import struct
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np

from pipeline.errors import CorruptError, DataError
from pipeline.store.file_rows import FileRows
from pipeline.store.importers import Importer, Rows, array_name, has_suffix
from pipeline.store.importers.faults import told

LONGEST_HEAD_NBYTES = 2**20
AGAIN = "save it again as an array of numbers, (n, ...), with numpy.save"


def npy_rows(path: Path) -> FileRows:
    """Return the rows of an npy file; reads its head.

    Raises :class:`DataError` for what is no array of numbers in rows, :class:`CorruptError` for a
    file that is too short for its head.
    """
    with told(path):
        try:
            with path.open("rb") as file:
                shape, dtype = head(file)
                start = file.tell()
        except ValueError as error:
            why = str(error) if path.stat().st_size else "it is empty, 0 bytes"
            raise DataError(f"{path} cannot be read ({why}); {AGAIN}") from error
    expected = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if path.stat().st_size < expected:
        raise CorruptError(
            f"{path} has {path.stat().st_size:,} bytes of {expected:,}; save it again"
        )
    return FileRows(path, shape, dtype, start)


def head(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the head of an npy file; raises ValueError for arrays that are not rows of numbers."""
    version = np.lib.format.read_magic(stream)
    read: Any = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
        (3, 0): _head_3_0,
    }.get(version)
    if read is None:
        raise ValueError(f"npy format {version}, expected 1.0 to 3.0")
    try:
        shape, columns_first, dtype = read(stream)
    except (SyntaxError, TokenError, TypeError, KeyError):  # of what numpy parses, as it is
        raise ValueError("its head is damaged") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, not numbers")
    if dtype.names is not None:
        raise ValueError(
            f"its rows are records of {', '.join(dtype.names)}; save each field as an array"
        )
    if columns_first and len(shape) > 1:
        raise ValueError("its rows lie apart; save np.ascontiguousarray of it")
    return shape, dtype


def _head_3_0(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a head of version 3, which is that of version 2 in UTF-8."""
    (length,) = struct.unpack("<I", stream.read(4).ljust(4, b"\xff"))
    text = stream.read(length) if length <= LONGEST_HEAD_NBYTES else b""
    try:
        found = ast.literal_eval(text.decode())
        descr, columns_first, shape = (found[k] for k in ("descr", "fortran_order", "shape"))
        if not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError
        return tuple(shape), bool(columns_first), np.lib.format.descr_to_dtype(descr)
    except (ValueError, SyntaxError, KeyError, TypeError):
        raise ValueError("its head is damaged") from None


def _arrays(path: Path) -> Mapping[str, Rows]:
    return {array_name(path): npy_rows(path)}


FORMAT = Importer("npy", (".npy",), has_suffix(".npy"), _arrays)
