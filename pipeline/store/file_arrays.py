"""Arrays that people have in files of their own: zarr, npy and npz, opened without loading rows."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from pipeline.errors import ConfigError, CorruptError, DataError, FeatfoldError, MissingInputError
from pipeline.store.columns import SUFFIXES, table_rows
from pipeline.store.file_rows import FileRows
from pipeline.store.shared import mapped_rows

LOCAL_HEAD_NBYTES = 30
"""Bytes before the name of a member in a zip file; the last four say how long what follows is."""


class DeflatedRows:
    """Rows of a compressed array of an npz file, which can only be read from the first one on."""

    def __init__(
        self, path: Path, member: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.path, self.member, self.shape, self.dtype = path, member, shape, dtype

    @contextmanager
    def opened(self) -> Iterator[InOrder]:
        """Open the rows to be read in order; raises :class:`CorruptError` for damaged ones."""
        try:
            with zipfile.ZipFile(self.path) as file, file.open(self.member) as stream:
                _head(stream)
                yield InOrder(self, stream)
        except FeatfoldError:
            raise
        except FileNotFoundError as error:
            raise MissingInputError(f"{self.path} is not there any more") from error
        except (zipfile.BadZipFile, zlib.error) as error:
            raise CorruptError(f"{self.path} is damaged ({error}); save it again") from error


class InOrder:
    """Compressed rows on their way out of a file."""

    def __init__(self, rows: DeflatedRows, stream: IO[bytes]) -> None:
        self.shape, self.dtype = rows.shape, rows.dtype
        self._path, self._stream, self._next = rows.path, stream, 0

    def __getitem__(self, rows: slice) -> np.ndarray[Any, Any]:
        """Read the next rows; raises :class:`CorruptError` where the file ends before."""
        start, stop, _ = rows.indices(self.shape[0])
        if start != self._next:
            raise ValueError(f"rows {start}-{stop} are out of order; {self._next} come next")
        found = np.empty((stop - start, *self.shape[1:]), self.dtype)
        buffer = found.reshape(-1).view(np.uint8).data
        filled = 0
        while filled < len(buffer) and (part := self._stream.read(len(buffer) - filled)):
            buffer[filled : filled + len(part)] = part
            filled += len(part)
        if filled < len(buffer):
            raise CorruptError(f"{self._path} ends before row {stop}; save it again")
        self._next = stop
        return found


def opened_arrays(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays by what they are, as :func:`opened_array`; a table is read once for all."""
    tables: dict[Path, dict[str, str]] = {}
    for what, one in given.items():
        if isinstance(one, (str, Path)) and _is_column(path := Path(one).absolute()):
            tables.setdefault(path.parent, {})[what] = path.name
    columns: dict[str, Any] = {}
    for table, patterns in tables.items():
        columns |= table_rows(table, patterns)
    return {w: columns[w] if w in columns else opened_array(one, w) for w, one in given.items()}


def _is_column(path: Path) -> bool:
    return path.parent.suffix in SUFFIXES and path.parent.is_file()


def opened_array(given: Any, what: str) -> Any:
    """Return an array whose rows are read where it is sliced.

    ``given`` is the path of an npy file or of a zarr array; ``FILE.npz/NAME`` or ``STORE/NAME`` for
    one of several in a file or store; ``TABLE.csv/COLUMN`` (or tsv, parquet) for a column, with
    ``*`` in its name for several; or an array, which is returned as it is. Raises
    :class:`MissingInputError` where there is nothing, :class:`ConfigError` where one of several
    must be named, :class:`DataError` for what holds no numbers; ``what`` names it in errors.
    """
    if not isinstance(given, (str, Path)):
        array = given if hasattr(given, "dtype") else np.asarray(given)
        return mapped_rows(array) or array
    if "://" in str(given):
        return _zarr(str(given), what)
    path = Path(given).absolute()
    if path.suffix == ".npy" and path.is_file():
        return _npy(path, what)
    if path.suffix == ".npz" and path.is_file():
        return _npz(path, "", what)
    if path.parent.suffix == ".npz" and path.parent.is_file():
        return _npz(path.parent, path.name, what)
    if _is_column(path):
        return table_rows(path.parent, {what: path.name})[what]
    if path.is_dir():
        return _zarr(str(path), what)
    there = "is no array that is known here" if path.exists() else "is not there"
    raise MissingInputError(
        f"{what}: {path} {there}; expected an npy file, FILE.npz/NAME, TABLE.csv/COLUMN, a zarr "
        "array, or a folder of PNG files"
    )


def _npy(path: Path, what: str) -> FileRows:
    try:
        with path.open("rb") as file:
            shape, dtype = _head(file)
            start = file.tell()
    except ValueError as error:
        raise DataError(f"{what}: {path} cannot be read ({error})") from error
    expected = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if path.stat().st_size < expected:
        raise CorruptError(
            f"{what}: {path} has {path.stat().st_size:,} bytes of {expected:,}; save it again"
        )
    return FileRows(path, shape, dtype, start)


def _npz(path: Path, name: str, what: str) -> FileRows | DeflatedRows:
    try:
        with zipfile.ZipFile(path) as file:
            members = {member.removesuffix(".npy"): member for member in file.namelist()}
            if not name and len(members) == 1:
                name = next(iter(members))
            if name not in members:
                _refuse_choice(path, name, sorted(members), what)
            info = file.getinfo(members[name])
            with file.open(info) as stream:
                shape, dtype = _head(stream)
                head_nbytes = stream.tell()
        if info.compress_type != zipfile.ZIP_STORED:
            return DeflatedRows(path, info.filename, shape, dtype)
        with path.open("rb") as raw:
            raw.seek(info.header_offset)
            lengths = raw.read(LOCAL_HEAD_NBYTES)[-4:]
    except FeatfoldError:
        raise
    except (zipfile.BadZipFile, ValueError) as error:
        raise DataError(f"{what}: {path} cannot be read ({error}); save it again") from error
    names = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    start = info.header_offset + LOCAL_HEAD_NBYTES + names + head_nbytes
    return FileRows(path, shape, dtype, start)


def _head(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the head of an npy file; raises ValueError for arrays that are not rows of numbers."""
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"npy format {version}")
    shape, columns_first, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, not numbers")
    if columns_first and len(shape) > 1:
        raise ValueError("its rows lie apart; save np.ascontiguousarray of it")
    return shape, dtype


def _zarr(location: str, what: str) -> Any:
    import zarr

    try:
        found = zarr.open(location, mode="r")
    except FileNotFoundError as error:
        raise MissingInputError(f"{what}: {location} holds no zarr array") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{what}: {location} cannot be opened by zarr ({error})") from error
    if isinstance(found, zarr.Group):
        _refuse_choice(location, "", sorted(found.array_keys()), what)
    return found


def _refuse_choice(where: Any, name: str, there: list[str], what: str) -> None:
    lacks = f"has no array {name!r}" if name else f"holds {len(there)} arrays"
    named = f"; name one, such as {where}/{there[0]}" if there else ""
    raise ConfigError(f"{what}: {where} {lacks}: {', '.join(there) or '(none)'}{named}")
