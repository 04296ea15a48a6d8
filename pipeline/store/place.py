"""Where a store lies: a folder of this machine, or a prefix of an object store named by a URL.

A folder is a :class:`pathlib.Path`, an object store an :class:`~pipeline.store.object_place.
ObjectPlace`, which has the part of its interface that stores need. What differs between the two
(how a file appears whole, how a lock is held) is chosen by :mod:`pipeline.store.disk`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, Self, TypeGuard, TypeVar

from pipeline.store import object_place
from pipeline.store.object_place import SCHEMES
from pipeline.store.object_place import ObjectPlace as ObjectPlace

T = TypeVar("T")
R = TypeVar("R")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SQUEEZED = re.compile(rf"({'|'.join(SCHEMES)}):/")
"""A URL that was made a path, which keeps one slash of two."""


class Place(Protocol):
    """A name below which a store keeps files; joined with ``/``. Pickles as the name."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> Self: ...
    def __truediv__(self, key: str, /) -> Self: ...
    def joinpath(self, *parts: str) -> Self: ...
    def with_name(self, name: str) -> Self: ...
    def exists(self) -> bool: ...
    def read_text(self, encoding: str) -> str: ...
    def unlink(self, missing_ok: bool = False) -> None: ...


def is_url(given: Any) -> bool:
    """Tell whether something names an object store."""
    if isinstance(given, str):
        return bool(_URL.match(given))
    if isinstance(given, os.PathLike):
        return bool(_SQUEEZED.match(os.fspath(given)))
    return isinstance(given, ObjectPlace)


def at(given: str | Path | Place) -> Path | ObjectPlace:
    """Return the place that a path or a URL names, an absolute one.

    Raises ConfigError for a URL that is none of s3, gs, az, http and https, lacks its bucket, or
    holds credentials.
    """
    if isinstance(given, ObjectPlace):
        return given
    if not is_url(given):
        return Path(given).absolute()  # type: ignore[arg-type]
    if isinstance(given, Path):
        scheme, _, rest = str(given).partition(":/")
        given = f"{scheme}://{rest}"
    return ObjectPlace.of(str(given))


def is_local(place: object) -> TypeGuard[Path]:
    """Tell whether a place is a folder of this machine, or one that it has mounted."""
    return isinstance(place, Path)


def check_url(given: str) -> None:
    """Raise ConfigError where a path is meant to be a URL and is none that can name a store."""
    if is_url(given):
        at(given)


def each(
    call: Callable[[T], R], items: Iterable[T], place: Place, at_once: int = object_place.AT_ONCE
) -> list[R]:
    """Return ``call`` of each item: in an object store, of several at the same time."""
    if is_local(place):
        return list(map(call, items))
    return object_place.each(call, list(items), at_once)
