"""Arrays that people have in files of their own, opened by a path without loading rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.store.columns import SUFFIXES, table_rows
from pipeline.store.importers import Unreadable, format_of, formats
from pipeline.store.shared import mapped_rows


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


def _is_known(path: Path) -> bool:
    return path.is_file() and any(one.opens(path) for one in formats())


def _is_column(path: Path) -> bool:
    return path.parent.suffix in SUFFIXES and path.parent.is_file()


def opened_array(given: Any, what: str) -> Any:
    """Return an array whose rows are read where it is sliced.

    ``given`` is the path of an npy file or of a zarr array; ``FILE.npz/NAME`` or ``STORE/NAME`` for
    one of several in a store, or in a file of any format that can be imported;
    ``TABLE.csv/COLUMN`` (or tsv, parquet) for a column, with ``*`` in its name for several; or an
    array, which is returned as it is. Raises :class:`MissingInputError` where there is nothing,
    :class:`ConfigError` where one of several must be named, :class:`DataError` for what holds no
    numbers; ``what`` names it in errors.
    """
    if not isinstance(given, (str, Path)):
        array = given if hasattr(given, "dtype") else np.asarray(given)
        return mapped_rows(array) or array
    if "://" in str(given):
        return _zarr(str(given), what)
    path = Path(given).absolute()
    if _is_column(path):
        return table_rows(path.parent, {what: path.name})[what]
    for file in (path, *path.parents):
        if _is_known(file):
            return _of_file(file, "" if file == path else str(path.relative_to(file)), what)
    if path.is_dir():
        return _zarr(str(path), what)
    there = "is no array that is known here" if path.exists() else "is not there"
    raise MissingInputError(
        f"{what}: {path} {there}; expected an npy file, FILE.npz/NAME, TABLE.csv/COLUMN, a zarr "
        "array, or a folder of PNG files"
    )


def _of_file(path: Path, name: str, what: str) -> Any:
    """Return the array of that name of a file; of one alone no name is needed."""
    try:
        there = format_of(path).arrays(path)
    except DataError as error:
        raise type(error)(f"{what}: {error}") from error
    if not name and len(there) == 1:
        name = next(iter(there))
    if name not in there:
        _refuse_choice(path, name, sorted(there), what)
    found = there[name]
    if isinstance(found, Unreadable):
        raise DataError(f"{what}: {found.why}")
    return found


def _zarr(location: str, what: str) -> Any:
    import zarr

    try:
        found = zarr.open(location, mode="r")
    except FileNotFoundError as error:
        raise MissingInputError(
            f"{what}: {location} holds no zarr array, and no PNG masks"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{what}: {location} cannot be opened by zarr ({error})") from error
    if isinstance(found, zarr.Group):
        _refuse_choice(location, "", sorted(found.array_keys()), what)
    return found


def _refuse_choice(where: Any, name: str, there: list[str], what: str) -> None:
    lacks = f"has no array {name!r}" if name else f"holds {len(there)} arrays"
    named = f"; name one, such as {where}/{there[0]}" if there else ""
    raise ConfigError(f"{what}: {where} {lacks}: {', '.join(there) or '(none)'}{named}")
