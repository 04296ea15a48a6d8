"""What goes wrong while files of other programs are read, as errors that name file and remedy."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, CorruptError, DataError, FeatfoldError, MissingInputError


def not_there(path: Path, what: str = "is not there") -> str:
    """Say that a path is not there, and what is there in its stead."""
    if not path.parent.is_dir():
        return f"{path} {what}, nor is its folder; mend the path"
    names: list[str] = []
    with suppress(OSError):
        names = sorted(each.name for each in path.parent.iterdir())
    shown = get_close_matches(path.name, names, 3) or names[:3]
    there = f"{', '.join(shown)}{' and others' if len(names) > len(shown) else ''}"
    return f"{path} {what}; mend the path: its folder has {there or 'no files'}"


@contextmanager
def told(path: Path, *damage: type[Exception], where: str = "") -> Iterator[None]:
    """Make clear errors of what a library raises for a file; ``damage`` is its own besides OSError.

    Raises :class:`MissingInputError` for a file that is not there, :class:`DataError` for one that
    may not be read now, :class:`CorruptError` otherwise; ``where`` says which part of it was read.
    """
    part = f", {where}," if where else ""
    faults: tuple[type[Exception], ...] = (OSError, *damage)
    try:
        yield
    except FeatfoldError:
        raise
    except FileNotFoundError as error:
        raise MissingInputError(not_there(path)) from error
    except PermissionError as error:
        raise DataError(
            f"{path} may not be read (permission denied); let your user read it: chmod +r"
        ) from error
    except BlockingIOError as error:
        raise DataError(
            f"{path} is open for writing elsewhere; wait until it is finished there"
        ) from error
    except faults as error:
        why = " ".join(str(error).split())[:300]
        raise CorruptError(
            f"{path}{part} cannot be read ({why}); save it again, or restore it from a copy"
        ) from error


def package(name: str, extra: str, path: Path) -> Any:
    """Import an optional package; raises :class:`ConfigError` that names the extra with it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading it needs {name.partition('.')[0]} ({error}); "
            f"pip install 'featfold[{extra}]'"
        ) from None


def native(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of numbers in the byte order of this machine; others stay as they are."""
    found: np.dtype[Any] = np.dtype(dtype)
    if found.kind in "biuf":
        found = found.newbyteorder("=")
    return found


def is_packed(attributes: Any) -> bool:
    """Tell whether numbers must be scaled before they mean anything (CF conventions)."""
    return bool(attributes.get("scale_factor", 1) != 1 or attributes.get("add_offset", 0) != 0)
