"""What of some files will be stored: opened, chosen and checked against each other, rows unread."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError
from pipeline.store.file_arrays import opened_array
from pipeline.store.importers import Rows, Unreadable, close
from pipeline.store.importers.mapping import Target, Wanted, selected
from pipeline.store.importers.shards import Found, Shards, gather

LABELS = "labels"
GIVEN = "(given)"
"""What labels are called that are no array of the files."""


@dataclass(frozen=True)
class Prepared:
    """Arrays that will be stored, and the files that they come from."""

    files: tuple[Path, ...]
    formats: tuple[str, ...]
    targets: Mapping[str, Target]
    left_out: Mapping[str, str]
    rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as stored."""
        return sum(target.nbytes for target in self.targets.values())

    def close(self) -> None:
        """Let go of files that are open."""
        for target in self.targets.values():
            close(target.rows)


def prepare(sources: Sequence[str | Path], wanted: Wanted, labels: Any = None) -> Prepared:
    """Open sources and settle what becomes of their arrays; see :func:`pipeline.import_split`.

    Raises :class:`DataError` where arrays have not the same rows, file by file.
    """
    found = gather(sources)
    given, found = with_labels(found, labels)
    chosen, left_out = chosen_of(found, wanted, labels)
    targets = {n: Target(n, f, _rows(found, f), wanted) for n, f in chosen.items()}
    if given is not None:
        targets[LABELS] = Target(LABELS, GIVEN, given, wanted)
    if not targets:
        reasons = "; ".join(why for why in left_out.values())
        raise DataError(
            f"there is no array to import{': ' if reasons else ''}{reasons}; name files of arrays "
            "(n, ...) of numbers, or map one of these"
        )
    _check_files(targets)
    return Prepared(found.files, found.formats, targets, left_out, _check_rows(targets))


def chosen_of(found: Found, wanted: Wanted, labels: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Return what :func:`selected` does, with labels by the name that was given, or without."""
    chosen, left_out = selected(found.arrays, wanted)
    if labels is None:
        return chosen, left_out
    old = chosen.pop(LABELS, None)
    if isinstance(labels, str) and labels in found.arrays:
        chosen = {n: own for n, own in chosen.items() if not n == own == labels}
        chosen[LABELS] = labels
        left_out.pop(labels, None)
    if old is not None and old not in chosen.values():
        left_out[old] = "not wanted" if labels is False else "other labels are given"
    return chosen, left_out


def with_labels(found: Found, labels: Any) -> tuple[Rows | None, Found]:
    """Return labels that are no array of the files, and the files with those that they lie in."""
    named = isinstance(labels, str) and labels in found.arrays
    if labels is None or labels is False or named:
        return None, found
    if not isinstance(labels, (str, Path)):
        array = np.asarray(labels)
        if not array.ndim:
            raise ConfigError(f"labels: {labels!r}; expected integers (n,), a name or a file")
        return array, found
    try:
        if glob.has_magic(str(labels)):
            own = gather([labels])
            if len(own.arrays) != 1:
                raise ConfigError(
                    f"labels: {labels} hold {', '.join(own.arrays)}; expected one: name FILE/NAME"
                )
            rows: Any = next(iter(own.arrays.values()))
            files = own.files
        else:
            rows, files = opened_array(str(labels), LABELS), _file_of(Path(labels))
    except (DataError, ConfigError) as error:
        raise type(error)(
            f"{error}; no array of the files has that name either: {', '.join(found.arrays)}"
        ) from None
    everything = tuple(dict.fromkeys([*found.files, *files]))
    return rows, Found(everything, found.formats, found.arrays)


def _rows(found: Found, name: str) -> Shards:
    rows = found.arrays[name]
    if isinstance(rows, Unreadable):
        raise DataError(f"{name}: {rows.why}")
    return rows


def _file_of(path: Path) -> tuple[Path, ...]:
    """Return the file that ``FILE`` or ``FILE.npz/NAME`` speaks of."""
    path = path.expanduser().absolute()
    return next(((each,) for each in (path, *path.parents) if each.is_file()), ())


def _check_rows(targets: Mapping[str, Target]) -> int:
    counts = {name: int(target.rows.shape[0]) for name, target in targets.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}: {rows:,}" for name, rows in counts.items())
        raise DataError(
            f"arrays must have the same number of rows, got {shown}; leave out what does not belong"
            " by mapping what does"
        )
    rows = next(iter(counts.values()))
    if not rows:
        raise DataError(
            f"{', '.join(targets)}: there are no rows; write the files again, or name others"
        )
    return rows


def _check_files(targets: Mapping[str, Target]) -> None:
    """Raise a DataError where as many files of two arrays have other rows each: out of step."""
    sharded = [(n, t.rows) for n, t in targets.items() if isinstance(t.rows, Shards)]
    for (one, ours), (other, theirs) in combinations(sharded, 2):
        if len(ours.parts) != len(theirs.parts) or len(ours.parts) == 1:
            continue
        for mine, its in zip(ours.parts, theirs.parts, strict=True):
            if mine.rows.shape[0] != its.rows.shape[0]:
                raise DataError(
                    f"{one} of {mine.path} has {mine.rows.shape[0]:,} rows, {other} of {its.path} "
                    f"has {its.rows.shape[0]:,}; expected the same, file by file"
                )
