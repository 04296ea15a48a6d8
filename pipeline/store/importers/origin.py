"""Where the rows of an imported split came from: recorded, so that no other files go on with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chunk import ArraySpec
from pipeline.errors import DataError, ExistsRefusedError
from pipeline.store import disk, layout
from pipeline.store.catalog import Store
from pipeline.store.importers.mapping import SIGNS, Target
from pipeline.store.importers.prepared import Prepared

IMPORTED = "imported_from"
SCORES = "scores"
"""Attribute that says of stored scores what high ones mean."""
MIXED = "rows of files that changed"
"""What is said in place of ``unfinished`` of a split that nothing can finish."""
REPLACE = "replace it with --overwrite (overwrite=True), or name another split"
Stamps = tuple[tuple[int, ...], ...]


def attributes(found: Prepared) -> dict[str, Any]:
    """Return what a split records of its files: how many, their names, sizes and times, in one."""
    told: dict[str, Any] = {
        "first": str(found.files[0]) if found.files else "",
        "files": len(found.files),
        "formats": list(found.formats),
        "arrays": {name: _told(target) for name, target in found.targets.items()},
        **_identity(found.files),
    }
    scores = {
        name: {"higher_is": "ood", "imported_as": target.sign}
        for name, target in found.targets.items()
        if target.sign in SIGNS[:2]
    }
    return {IMPORTED: told, **({SCORES: scores} if scores else {})}


def _told(target: Target) -> dict[str, str]:
    told = {"found": target.found, **target.conversion}
    if isinstance(target.rows, np.ndarray):
        told["sha256"] = hashlib.sha256(np.ascontiguousarray(target.rows).data).hexdigest()
    return told


def _identity(files: Sequence[Path]) -> dict[str, Any]:
    """Return bytes and a digest of names below their common folder, sizes and times of files."""
    top = os.path.commonpath([file.parent for file in files]) if files else ""
    lines, nbytes = hashlib.sha256(), 0
    for file in files:
        stat = file.stat()
        nbytes += stat.st_size
        line = f"{file.relative_to(top)}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
        lines.update(line.encode(errors="surrogateescape"))
    return {"nbytes": nbytes, "sha256": lines.hexdigest()}


def check_same(
    store: Store,
    split: str,
    now: Mapping[str, Any],
    specs: Mapping[str, ArraySpec],
    rows: int,
    classes: int,
) -> None:
    """Raise :class:`ExistsRefusedError` unless a split was begun with these files, alike."""
    declared = store.writer(split).declared
    then = declared.attributes.get(IMPORTED)
    if not isinstance(then, Mapping):
        raise ExistsRefusedError(
            f"{store.path}: split {split} was not imported from files; {REPLACE}"
        )
    if declared.attributes.get(layout.UNFINISHED) == MIXED:
        raise DataError(
            f"{store.path}: files changed while split {split} was imported from them, and its rows "
            f"may be of both; {REPLACE}"
        )
    pairs = {
        "rows": (declared.rows, rows),
        "classes": (declared.classes, classes),
        **{key: (then.get(key), now[IMPORTED][key]) for key in ("files", "nbytes", "arrays")},
        "stored as": (_plain(declared.arrays), _plain(specs)),
        "names, sizes and times": (then.get("sha256"), now[IMPORTED]["sha256"]),
    }
    differing = [f"{k}: {_shown(a)} then, {_shown(b)} now" for k, (a, b) in pairs.items() if a != b]
    if differing:
        raise ExistsRefusedError(
            f"{store.path}: split {split} was begun with other files or options (of "
            f"{then.get('first')}): {'; '.join(differing)}; go on with those; or {REPLACE}"
        )


def _shown(entry: Any) -> str:
    return entry[:12] if isinstance(entry, str) else str(entry)


def _plain(specs: Mapping[str, ArraySpec]) -> dict[str, str]:
    return {
        name: f"{spec.shape} {spec.dtype} {spec.layout}".rstrip() for name, spec in specs.items()
    }


def stamps(files: Sequence[Path]) -> Stamps:
    """Return what tells files that changed, even if put back: nobody sets the ctime of a file."""
    found = (file.stat() for file in files)
    return tuple((s.st_nlink, s.st_ctime_ns, s.st_size, s.st_mtime_ns, s.st_ino) for s in found)


def check_unchanged(store: Store, split: str, found: Prepared, before: Stamps) -> None:
    """Raise :class:`DataError` if a file changed since its rows were first looked at.

    The split is then marked, so that no import goes on with it.
    """
    changed = [str(f) for f, then in zip(found.files, before, strict=True) if _changed(f, then)]
    if changed:
        with disk.told(split, store.path), disk.locked(store.path, split):
            attributes = disk.read_group(store.path / split)
            disk.write_group(store.path / split, {**attributes, layout.UNFINISHED: MIXED})
        raise DataError(
            f"{split}: files changed while they were imported ({changed[0]}"
            f"{f' and {len(changed) - 1} more' if changed[1:] else ''}); its rows may be of both: "
            "import again what lies still, with --overwrite (overwrite=True)"
        )


def _changed(file: Path, then: tuple[int, ...]) -> bool:
    try:
        (now,) = stamps([file])
    except OSError:
        return True
    alone = then[0] == now[0] == 1  # another name for a file, or one less, changes its ctime
    return then[1 if alone else 2 :] != now[1 if alone else 2 :]
