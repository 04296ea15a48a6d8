"""Names of the rows of a split, such as the files of images: those of ids 0, 1, 2, ...

A group ``names/SPLIT`` of the store holds them as JSON text in one array of bytes. The attributes
of the group, with a digest of the bytes, are written last: names that are not complete are not
there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.chunk import ArraySpec
from pipeline.errors import CorruptError, ExistsRefusedError
from pipeline.store import disk, layout

GROUP, TEXT, DIGEST = "names", "text", "sha256"


def write_names(root: Any, split: str, names: Sequence[str]) -> None:
    """Save the names of a split; the same ones again change nothing.

    Raises :class:`ExistsRefusedError` where the split has others.
    """
    text = np.frombuffer(json.dumps(list(names)).encode(), np.uint8)
    group, digest = root.joinpath(GROUP, *split.split("/")), _digest(text)
    with disk.told(f"the names of {split}", root), disk.locked(root, f"{split}.names"):
        if disk.is_group(group):
            if disk.read_group(group).get(DIGEST) != digest:
                raise ExistsRefusedError(
                    f"{root}: the rows of {split} have other names; name another split or store"
                )
            return
        for parent in (root / GROUP, *_between(root, split)):
            if not disk.is_group(parent):
                disk.write_group(parent, {})
        layout.create_array(group / TEXT, ArraySpec((), "uint8"), len(text), len(text), text)
        layout.open_array(group / TEXT, "r+")[:] = text
        disk.write_group(group, {DIGEST: digest, "rows": len(names)})


def read_names(root: Any, split: str) -> list[str] | None:
    """Return the names of a split, or None without; CorruptError where their bytes differ."""
    group = root.joinpath(GROUP, *split.split("/"))
    if not disk.is_group(group):
        return None
    expected = disk.read_group(group).get(DIGEST)
    try:
        text = np.asarray(layout.open_array(group / TEXT, "r")[:])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{root}: the names of {split} cannot be read ({error})") from error
    if _digest(text) != expected:
        raise CorruptError(
            f"{root}: the names of {split} differ from what was written; restore {group} from a "
            "copy"
        )
    return [str(name) for name in json.loads(text.tobytes())]


def remove_names(root: Any, split: str) -> None:
    """Remove the names of a split, if it has some."""
    disk.remove_tree(root.joinpath(GROUP, *split.split("/")), ignore_errors=True)


def _between(root: Any, split: str) -> list[Any]:
    parts = split.split("/")
    return [root.joinpath(GROUP, *parts[:depth]) for depth in range(1, len(parts))]


def _digest(text: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(text.tobytes()).hexdigest()
