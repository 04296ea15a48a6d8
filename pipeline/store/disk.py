"""Files that survive a crash: written beside their place, flushed to the disk, then renamed."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pipeline import files, locks
from pipeline.errors import ConfigError, CorruptError, MissingInputError
from pipeline.files import sync as sync

GROUP_FILE = "zarr.json"
LOCK_SECONDS = 600.0
_PARTIAL = ".partial"  # the ending zarr gives to files that it has not renamed yet


def sync_names(files: Iterable[Path], top: Path) -> None:
    """Flush every directory between files and ``top`` (included), deepest first."""
    directories = set()
    for file in files:
        for parent in file.parents:
            directories.add(parent)
            if parent == top:
                break
    for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
        sync(directory)


def write_text(path: Path, text: str) -> None:
    """Write a file so that after a crash either the old or the whole new text is there."""
    partial = path.with_suffix(f".{uuid.uuid4().hex}{_PARTIAL}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def told(what: str, root: Path, nbytes: int = 0) -> AbstractContextManager[None]:
    """Make one clear error of a disk that is full, or cannot be written to."""
    remedy = "move the store to a larger disk (committed blocks are kept)"
    return files.told(what, root, nbytes, remedy)


def sweep(directory: Path, stem: str) -> None:
    """Remove what a killed writer of ``directory/stem`` left behind."""
    for stray in directory.glob(f"{stem}.*{_PARTIAL}"):
        stray.unlink(missing_ok=True)


def write_group(directory: Path, attributes: Mapping[str, Any]) -> None:
    """Write a zarr v3 group: a directory whose metadata holds ``attributes``."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    text = to_json(group)
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    sweep(directory, Path(GROUP_FILE).stem)
    write_text(directory / GROUP_FILE, text)
    if made:
        sync(directory.parent)


def read_group(directory: Path) -> dict[str, Any]:
    """Return the attributes of a zarr v3 group; other formats are refused and nothing is written.

    Raises MissingInputError where there is none, CorruptError where its metadata cannot be read.
    """
    path = directory / GROUP_FILE
    if (directory / ".zgroup").exists() or (directory / ".zarray").exists():
        raise ConfigError(
            f"{directory} holds metadata of zarr format 2, expected format 3 alone; "
            "convert it, or remove the .zgroup that another program wrote"
        )
    if not path.exists():
        raise MissingInputError(f"{directory} is not there, or is not a zarr group")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        attributes = found["attributes"] if found["node_type"] == "group" else None
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"{path} is damaged ({error}); restore it from a copy") from error
    if not isinstance(attributes, dict) or found.get("zarr_format") != 3:
        raise ConfigError(f"{directory} is not a zarr group of format 3")
    return attributes


def to_json(tree: Any) -> str:
    """Return ``tree`` as JSON text; what JSON cannot hold is a ConfigError."""
    try:
        return json.dumps(tree, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"attributes must be plain JSON: {error}") from error


def locked(
    root: Path, name: str, timeout_seconds: float = LOCK_SECONDS
) -> AbstractContextManager[locks.Held]:
    """Hold the lock of a split; the lock file lies beside the store, so zarr never meets it."""
    path = root.with_name(f".{root.name}.{name.replace('/', '+')}.lock")
    return locks.hold(path, f"{root}, {name or 'the store'}", timeout_seconds)
