"""An import of which everything was checked that can be refused before a byte is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.chunk import ArraySpec
from pipeline.content import whole_number
from pipeline.errors import ConfigError, ExistsRefusedError, MissingInputError
from pipeline.store import layout
from pipeline.store.catalog import Store
from pipeline.store.declaration import declare
from pipeline.store.importers import origin
from pipeline.store.importers.labelled import check_labels, say_without
from pipeline.store.importers.mapping import Wanted
from pipeline.store.importers.prepared import Prepared, prepare
from pipeline.store.importers.usable import check_usable
from pipeline.store.place import ObjectPlace, at

Sources = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Settled:
    """An import of which everything was checked that can be refused beforehand."""

    there: Store | None
    goes_on: bool
    """Whether the split is there, and is not to be replaced."""
    found: Prepared
    classes: int
    specs: Mapping[str, ArraySpec]
    attributes: Mapping[str, Any]
    stamps: origin.Stamps


@contextmanager
def settled(
    store: Store | str | Path | None,
    split: str,
    files: Sources,
    wanted: Wanted,
    *,
    say: Callable[[str], object],
    labels: Any = None,
    classes: int | None = None,
    attributes: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> Iterator[Settled]:
    """Open files, and raise what an import refuses; they are let go of at the end.

    Nothing is written. Without ``store``, or with ``split`` "", less is checked.
    """
    if split:
        layout.check_split_name(split)
    if resume and overwrite:
        raise ConfigError("resume and overwrite: go on with a split, or replace it; give one")
    there = None if store is None else _opened(store)
    exists = there is not None and there.has(split)
    if there is not None and exists and not (resume or overwrite):
        _refuse_existing(there, split)
    found = prepare([files] if isinstance(files, (str, Path)) else list(files), wanted, labels)
    try:
        stamps = origin.stamps(found.files)
        specs = {name: target.spec for name, target in found.targets.items()}
        if split or classes is not None:
            classes = _classes(there, classes, split, found)
            check_labels(found.targets, classes, split or "the files", say)
            say_without(found, split, say)
            check_usable(specs, classes, split or "the files", _others(there, split))
        said = {**(attributes or {}), **origin.attributes(found)}
        goes_on = exists and not overwrite
        if there is not None and goes_on:
            origin.check_same(there, split, said, specs, found.rows, classes or 0)
        declare(
            specs, classes=classes or 0, rows=found.rows, attributes=said,
            block_nbytes=layout.BLOCK_NBYTES, chunk_nbytes=layout.CHUNK_NBYTES,
        )  # fmt: skip
        yield Settled(there, goes_on, found, classes or 0, specs, said, stamps)
    finally:
        found.close()


def place_of(store: Store | str | Path) -> Any:
    """Return where a store lies, or will."""
    return store.path if isinstance(store, Store) else store


def _opened(store: Store | str | Path) -> Store | None:
    """Return a store that can be written, or None where one can be made."""
    place = at(place_of(store))
    if isinstance(place, ObjectPlace):
        place.check_writable()
    if isinstance(store, Store):
        return store
    try:
        return Store.open(store)
    except MissingInputError:
        # names of what a creation that was killed leaves begin with z
        if isinstance(place, Path) and (place.is_file() or any(place.glob("[!z]*"))):
            raise ExistsRefusedError(
                f"{place} exists and is not a featfold store; choose another path"
            ) from None
        return None


def _others(store: Store | None, split: str) -> dict[str, Mapping[str, ArraySpec]]:
    """Return the arrays of the other splits of a store."""
    if store is None:
        return {}
    names = [name for name in store.splits() if name != split]
    return {name: store.writer(name).declared.arrays for name in names}


def _refuse_existing(store: Store, split: str) -> None:
    state = "it is complete"
    if store.attributes(split).get(layout.UNFINISHED):
        state = "it was never declared whole"
    if missing := store.writer(split).missing():
        state = f"{len(missing)} of its blocks are missing"
    raise ExistsRefusedError(
        f"{store.path} has a split {split} already, and {state}; go on with --resume (resume=True),"
        " replace it with --overwrite (overwrite=True), or name another split"
    )


def _classes(store: Store | None, given: int | None, split: str, found: Prepared) -> int:
    """Return the number of classes: as given, or that of the other splits, which have the same."""
    names = () if store is None else store.splits()
    known = {name: store.writer(name).declared.classes for name in names if store is not None}
    if given is None and len(set(known.values())) == 1:
        return next(iter(known.values()))
    if given is not None:
        given = whole_number(given, "classes", 0)
        for other, classes in known.items():
            if other != split and classes != given:
                raise ConfigError(
                    f"{split}: {given} classes, but {other} of the store has {classes}, and splits "
                    "of other classes do not go together: give the same, or use another store"
                )
        return given
    seen = "" if not known else f"; the splits of the store have {sorted(set(known.values()))}"
    raise ConfigError(
        f"{split}: say how many classes there are with --classes (classes=); 0 if there are none, "
        f"{'and labels run from 0 on' if 'labels' in found.targets else 'as there are no labels'}"
        f"{seen}"
    )
