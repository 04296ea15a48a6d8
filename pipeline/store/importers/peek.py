"""What files hold, and what an import would make of it: shapes, dtypes and bytes, no rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import FeatfoldError
from pipeline.store.importers import Unreadable, logical_dtype
from pipeline.store.importers.mapping import Target, Wanted, wider_of
from pipeline.store.importers.prepared import LABELS, chosen_of, with_labels
from pipeline.store.importers.shards import Found, Shards, gather


@dataclass(frozen=True)
class Seen:
    """One array of the files, and what it would be stored as."""

    found: str
    files: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    stored: str
    """Its name in the split; empty where it would be left out."""
    row_shape: tuple[int, ...]
    stored_dtype: str
    layout: str
    note: str
    """What is done to its rows, what must be told first, or why it is left out."""

    def to_dict(self) -> dict[str, Any]:
        """Return the content as plain values for JSON."""
        return asdict(self)


def seen(sources: Sequence[str | Path], wanted: Wanted, labels: Any = None) -> list[Seen]:
    """Return every array of the sources, with what would become of it.

    Raises as :func:`pipeline.store.importers.shards.gather` for files that cannot be opened.
    """
    found = gather(sources)
    try:
        given, _ = with_labels(found, labels)
        chosen, left_out = chosen_of(found, wanted, labels)
    except FeatfoldError:  # why is said by who imports
        return [_seen(n, a, "", _why(a), None) for n, a in _shown(found)]
    stored_as: dict[str, list[str]] = {}
    for name, own in chosen.items():
        stored_as.setdefault(own, []).append(name)
    told = []
    for own, rows in _shown(found, chosen.values()):
        for name in stored_as.get(own, [""]):
            told.append(_would_be(own, rows, name, wanted, left_out.get(own, "")))
    if given is not None:
        told.append(_would_be(str(labels), given, LABELS, wanted, ""))
    return told


def _shown(found: Found, chosen: Collection[str] = ()) -> list[tuple[str, Any]]:
    """Return the arrays of files, without columns of a wider one that are not chosen themselves."""
    arrays = found.arrays
    return [(n, rows) for n, rows in arrays.items() if n in chosen or not wider_of(n, arrays)]


def _would_be(own: str, rows: Any, name: str, wanted: Wanted, why: str) -> Seen:
    if not name:
        return _seen(own, rows, "", why, None)
    try:
        target = Target(name, own, rows, wanted)
    except FeatfoldError as error:
        return _seen(own, rows, name, str(error), None)
    return _seen(own, rows, name, ", ".join(target.conversion.values()), target)


def _seen(own: str, rows: Any, name: str, note: str, target: Target | None) -> Seen:
    shape = tuple(int(n) for n in rows.shape)
    return Seen(
        found=own,
        files=len(rows.parts) if isinstance(rows, Shards) else 1,
        shape=shape,
        dtype=logical_dtype(rows),
        nbytes=0 if isinstance(rows, Unreadable) else math.prod(shape) * rows.dtype.itemsize,
        stored=name,
        row_shape=() if target is None else target.spec.shape,
        stored_dtype="" if target is None else target.spec.dtype,
        layout="" if target is None else target.spec.layout,
        note=note,
    )


def _why(rows: Any) -> str:
    return rows.why if isinstance(rows, Unreadable) else ""
