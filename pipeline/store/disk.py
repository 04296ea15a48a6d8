"""Files that survive a crash: written beside their place, flushed to the disk, then renamed.

In an object store an object appears whole in one request, so nothing is flushed, renamed or swept.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pipeline import files, locks
from pipeline.errors import ConfigError, CorruptError, MissingInputError
from pipeline.store import object_lock
from pipeline.store.place import ObjectPlace, Place, is_local

GROUP_FILE = "zarr.json"
LOCK_SECONDS = 600.0
_PARTIAL = ".partial"  # the ending zarr gives to files that it has not renamed yet


def sync(place: Place) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    if is_local(place):
        files.sync(place)


def make(directory: Place) -> None:
    """Make a directory and those above it, where there are directories."""
    if is_local(directory):
        directory.mkdir(parents=True, exist_ok=True)


def remove_tree(directory: Place, ignore_errors: bool = False) -> None:
    """Remove a directory with all that is in it, or what has its name as a prefix."""
    if isinstance(directory, ObjectPlace):
        directory.remove_tree()
        return
    assert is_local(directory)
    shutil.rmtree(directory, ignore_errors)


def sync_names(files: Iterable[Place], top: Place) -> None:
    """Flush every directory between files and ``top`` (included), deepest first."""
    if not is_local(top):
        return
    directories: set[Any] = set()
    for file in files:
        for parent in file.parents:  # type: ignore[attr-defined]
            directories.add(parent)
            if parent == top:
                break
    for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
        sync(directory)


def write_text(path: Place, text: str, *, new: bool = False) -> None:
    """Write a file so that after a crash either the old or the whole new text is there.

    An object that is to be ``new`` is refused by its service where there is one already; files of a
    store have one writer.
    """
    if isinstance(path, ObjectPlace):
        path.write_bytes(text.encode(), new=new)
        return
    assert is_local(path)
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


def told(what: str, root: Place, nbytes: int = 0) -> AbstractContextManager[None]:
    """Make one clear error of a disk that is full, or cannot be written to."""
    if not is_local(root):
        return nullcontext()
    remedy = "move the store to a larger disk (committed blocks are kept)"
    return files.told(what, root, nbytes, remedy)


def sweep(directory: Place, stem: str) -> None:
    """Remove what a killed writer of ``directory/stem`` left behind."""
    if not is_local(directory):
        return
    for stray in directory.glob(f"{stem}.*{_PARTIAL}"):
        stray.unlink(missing_ok=True)


def write_group(directory: Place, attributes: Mapping[str, Any], *, new: bool = False) -> None:
    """Write a zarr v3 group: a directory whose metadata holds ``attributes``."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    text = to_json(group)
    if not is_local(directory):
        write_text(directory / GROUP_FILE, text, new=new)
        return
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    sweep(directory, Path(GROUP_FILE).stem)
    write_text(directory / GROUP_FILE, text)
    if made:
        sync(directory.parent)


def is_group(directory: Place) -> bool:
    """Tell whether a group or an array of zarr v3 is there."""
    return (directory / GROUP_FILE).exists()


def read_group(directory: Place) -> dict[str, Any]:
    """Return the attributes of a zarr v3 group; other formats are refused and nothing is written.

    Raises MissingInputError where there is none, CorruptError where its metadata cannot be read.
    """
    if (directory / ".zgroup").exists() or (directory / ".zarray").exists():
        raise ConfigError(
            f"{directory} holds metadata of zarr format 2, expected format 3 alone; "
            "convert it, or remove the .zgroup that another program wrote"
        )
    return read_attributes(directory)


def read_attributes(directory: Place) -> dict[str, Any]:
    """Return the attributes of a group that this package wrote itself; as :func:`read_group`."""
    path = directory / GROUP_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except MissingInputError:  # there is not even a bucket
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise MissingInputError(f"{directory} is not there, or is not a zarr group") from None
    except ValueError as error:
        raise CorruptError(f"{path} is damaged ({error}); restore it from a copy") from error
    try:
        found = json.loads(text)
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
    root: Place, name: str, timeout_seconds: float = LOCK_SECONDS
) -> AbstractContextManager[Any]:
    """Hold the lock of a split; the lock file lies beside the store, so zarr never meets it."""
    what = f"{root}, {name or 'the store'}"
    if isinstance(root, ObjectPlace):
        root.check_writable()
    path = root.with_name(f".{root.name}.{name.replace('/', '+')}.lock")
    if isinstance(path, ObjectPlace):
        return object_lock.hold(path, what, timeout_seconds)
    assert is_local(path)
    return locks.hold(path, what, timeout_seconds)
