"""The store as a whole: a zarr group whose sub-groups are the splits."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pipeline import locks
from pipeline.chunk import ArraySpec, Block
from pipeline.errors import CorruptError, ExistsRefusedError, FeatfoldError, MissingInputError
from pipeline.store import disk, layout, manifest, object_lock, place
from pipeline.store.declaration import Declaration, check_version, declare
from pipeline.store.head import SavedHead, read_head, write_head
from pipeline.store.names import read_names, remove_names, write_names
from pipeline.store.reader import StoredSplit, open_split
from pipeline.store.writer import REPLACES, SplitWriter


class Store:
    """A directory of splits, or a prefix of an object store; reading needs no right to write."""

    def __init__(self, path: place.Place) -> None:
        self.path: Any = path
        """Where it lies: a ``pathlib.Path``, or what stands for a URL."""

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False) -> Store:
        """Create an empty store; raises ExistsRefusedError where something is already.

        ``path`` is a folder, or the URL of a place in an object store (s3://, gs://, az://).
        ``overwrite`` moves an existing store aside (``.NAME.replaced-...`` in the same folder); it
        is removed when the first block of the new one is committed, not before.
        """
        root = place.at(path)
        if isinstance(root, place.ObjectPlace):
            root.check_writable()
            if not disk.is_group(root):  # who made it was told already
                object_lock.check_service(root)
        with disk.told(root.name, root.parent):
            disk.make(root.parent)
            replaced: list[str] = []
            with disk.locked(root, ""):
                if _is_taken(root):
                    replaced = _replace(root, overwrite)
                own = {"schema_version": layout.SCHEMA_VERSION}
                extra = {REPLACES: replaced} if replaced else {}
                disk.write_group(root, {layout.DECLARATION: {**own, **extra}})
        return cls(root)

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Open an existing store, in a folder or at a URL; nothing is written.

        Raises MissingInputError where there is none, ConfigError for another format or version.
        """
        root = place.at(path)
        check_version(disk.read_group(root), str(root))
        return cls(root)

    @staticmethod
    def is_at(path: str | Path) -> bool:
        """Tell whether something is there: a store, or what :meth:`open` has a word to say of."""
        root = place.at(path)
        if isinstance(root, place.ObjectPlace):
            return disk.is_group(root) or not (root.is_read_only or not root.children())
        return root.exists()

    def has(self, name: str) -> bool:
        """Tell whether there is a split of this name."""
        return layout.is_split_name(name) and self._exists(name)

    def splits(self) -> tuple[str, ...]:
        """Return the names of all splits, in-distribution ones first, numbers by value."""
        return tuple(layout.split_names(self.path))

    def split(self, name: str, *, allow_partial: bool = False, verify: bool = False) -> StoredSplit:
        """Open a split for reading, pinned as it is now.

        Raises IncompleteError if blocks are missing, unless ``allow_partial`` asks for the
        committed rows before the first missing one. ``verify`` reads everything once and raises
        CorruptError where it differs from the manifest.
        """
        self._check_exists(name)
        opened = open_split(self.path, name, allow_partial=allow_partial)
        if verify and (found := opened.verify()):
            raise CorruptError(
                f"{self.path}: {len(found)} findings; " + "; ".join(str(one) for one in found[:5])
            )
        return opened

    def attributes(self, name: str) -> dict[str, Any]:
        """Return what was said of a split when it was created."""
        return dict(self._declared(name).attributes)

    def write_head(
        self, weight: Any, bias: Any, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Save the head of the model: W (k, d), b (k,): see :func:`pipeline.store.head.write_head`.

        ``attributes`` say which features it reads, as ``how`` and ``field``: their mean if not.
        """
        write_head(self.path, weight, bias, attributes or {})

    def head(self) -> SavedHead | None:
        """Return the head that is saved with the features, or None."""
        return read_head(self.path)

    def write_names(self, name: str, names: Sequence[str]) -> None:
        """Save what the rows with ids 0, 1, ... of a split are called, such as image files."""
        write_names(self.path, name, names)

    def names(self, name: str) -> list[str] | None:
        """Return what the rows of a split are called, by id, or None where nobody said."""
        self._check_exists(name)
        return read_names(self.path, name)

    def remove_block(self, name: str, index: int) -> Block:
        """Take a block of a split out for good: see :meth:`SplitWriter.remove`."""
        return self.writer(name).remove(index)

    def remove_split(self, name: str) -> None:
        """Take a split out for good, with its rows and their names; the others stay.

        Killed, it leaves a split that lacks blocks, which another call removes.
        """
        declared, split = self._declared(name), self.path / name
        with disk.told(f"the removal of {name}", self.path), disk.locked(self.path, name) as held:
            held.check()
            for index in manifest.indexes(split):  # first, as nothing counts without its record
                disk.remove_tree(manifest.record_place(split, index))
            remove_names(self.path, name)
            for array in declared.arrays:
                disk.remove_tree(split / array, ignore_errors=True)
            disk.remove_tree(split / layout.MANIFEST)
            disk.remove_tree(split)

    def writer(self, name: str) -> SplitWriter:
        """Return a writer that resumes, or appends to, an existing split."""
        return SplitWriter(self.path, name, self._declared(name))

    def lock(
        self, name: str, part: tuple[int, int] | None = None
    ) -> AbstractContextManager[object]:
        """Hold a split for as long as it is filled; LockedError at once if somebody else does.

        As ``part`` (i, n), only that share of it: other shares may be held beside it.
        """
        own = f"{name}.filling"
        stem = self.path.with_name(f".{self.path.name}.{own.replace('/', '+')}")
        what = f"{self.path}, {own}"
        if isinstance(self.path, Path):
            return locks.hold_shared(stem, what, part)
        self.path.check_writable()
        return object_lock.hold_shared(stem, what, part)

    def finish(self, name: str) -> None:
        """Declare a split whole that was created as :data:`layout.UNFINISHED`."""
        with disk.told(name, self.path), disk.locked(self.path, name):
            attributes = disk.read_group(self.path / name)
            if attributes.pop(layout.UNFINISHED, None) is not None:
                disk.write_group(self.path / name, attributes)

    def create_split(
        self,
        name: str,
        arrays: Mapping[str, ArraySpec],
        *,
        classes: int,
        rows: int | None = None,
        block_nbytes: int = layout.BLOCK_NBYTES,
        chunk_nbytes: int = layout.CHUNK_NBYTES,
        attributes: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> SplitWriter:
        """Declare a split and return its writer.

        With ``rows`` its blocks are fixed now and may be written in any order; without, it grows by
        appending. ``exist_ok`` resumes a split that was declared alike. Raises ExistsRefusedError
        if it exists otherwise, ConfigError or DataError for a declaration that cannot be stored.
        """
        layout.check_split_name(name)
        declared = declare(
            arrays,
            classes=classes,
            rows=rows,
            block_nbytes=block_nbytes,
            chunk_nbytes=chunk_nbytes,
            attributes=attributes or {},
        )
        with disk.told(name, self.path), disk.locked(self.path, ""):
            if self._exists(name):
                self._check_same(name, declared, exist_ok)
            else:
                self._write_groups(name, declared)
        return SplitWriter(self.path, name, declared)

    def _exists(self, name: str) -> bool:
        return disk.is_group(self.path / name / layout.MANIFEST)

    def _check_exists(self, name: str) -> None:
        layout.check_split_name(name)
        if self._exists(name):
            return
        near = get_close_matches(name, self.splits(), 1)
        raise MissingInputError(
            f"{self.path} has no split {name!r}; it has {', '.join(self.splits()) or 'none'}"
            + (f"; did you mean {near[0]}?" if near else "")
        )

    def _declared(self, name: str) -> Declaration:
        self._check_exists(name)
        where = f"{self.path}, split {name}"
        return Declaration.from_attributes(disk.read_group(self.path / name), where)

    def _check_same(self, name: str, declared: Declaration, exist_ok: bool) -> None:
        differences = self._declared(name).differences(declared)
        if differences or not exist_ok:
            why = "; ".join(differences) or "to go on writing it, pass exist_ok=True"
            raise ExistsRefusedError(f"{self.path} has a split {name} already: {why}")

    def _write_groups(self, name: str, declared: Declaration) -> None:
        """Write the groups above the split, the split, and its manifest: only then it exists."""
        *above, _ = name.split("/")
        for depth in range(1, len(above) + 1):
            parent = self.path.joinpath(*above[:depth])
            if not disk.is_group(parent):
                disk.write_group(parent, {})
        disk.write_group(self.path / name, declared.to_attributes())
        disk.write_group(self.path / name / layout.MANIFEST, {})


def _is_taken(root: Path | place.ObjectPlace) -> bool:
    """Tell whether something is there already, other than what a killed creation left."""
    if isinstance(root, place.ObjectPlace):
        return bool(root.children())
    if not root.is_dir():
        return root.exists()
    disk.sweep(root, Path(disk.GROUP_FILE).stem)
    return any(root.iterdir())


def _replace(root: Path | place.ObjectPlace, overwrite: bool) -> list[str]:
    """Move an existing store aside and return the names under which replaced stores are kept."""
    try:
        kept = list(disk.read_group(root)[layout.DECLARATION].get(REPLACES, ()))
    except (FeatfoldError, OSError, KeyError):
        raise ExistsRefusedError(
            f"{root} exists and is not a featfold store; choose another path"
        ) from None
    if not overwrite:
        raise ExistsRefusedError(
            f"{root} is a store already: open it to resume, or ask to overwrite it"
        )
    if kept and not any(manifest.indexes(root / name) for name in layout.split_names(root)):
        disk.remove_tree(root)
        return kept
    aside = f".{root.name}.replaced-{uuid.uuid4().hex[:8]}"
    if isinstance(root, place.ObjectPlace):
        _move_aside(root, [*kept, aside])
    else:
        root.rename(root.with_name(aside))
    return [*kept, aside]


def _move_aside(root: place.ObjectPlace, kept: list[str]) -> None:
    """Copy a store beside itself, and delete it here: its own group goes last, and tells of both.

    Killed before the copies are whole, this leaves the store as it was; killed later, a store that
    lacks blocks, which the next ``overwrite`` replaces.
    """
    attributes = disk.read_group(root)
    moving = root.move(root.with_name(kept[-1]), disk.GROUP_FILE)
    next(moving)
    own = {**attributes[layout.DECLARATION], REPLACES: kept}
    disk.write_group(root, {**attributes, layout.DECLARATION: own})
    next(moving, None)
