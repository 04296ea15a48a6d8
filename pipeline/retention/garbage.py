"""Garbage of a cache and of the runs that used it: runs, partials, constants, unfinished files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import files, locks
from pipeline.config import JobConfig
from pipeline.engine.settings import CONSTANTS, PARTIALS
from pipeline.errors import FeatfoldError, LockedError
from pipeline.partials import Partials
from pipeline.report import read
from pipeline.report.runs import directory_of, is_finished
from pipeline.retention.needed import needed
from pipeline.retention.places import Place, job_of
from pipeline.store.place import at, is_local


@dataclass(frozen=True)
class Garbage:
    """Files and folders that may go for one reason."""

    what: str
    """runs, partials, constants or unfinished."""
    paths: tuple[Path, ...]
    nbytes: int
    why: str

    @classmethod
    def of(cls, what: str, paths: Iterable[Path], why: str) -> Garbage:
        """Return garbage with its size on the disk."""
        listed = tuple(paths)
        return cls(what, listed, sum(map(_nbytes, listed)), why)


@dataclass
class Found:
    """What may go, and what stays although it looks as if it might."""

    garbage: list[Garbage] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of all garbage."""
        return sum(one.nbytes for one in self.garbage)


def find(place: Place) -> Found:
    """Return the garbage of a place; nothing is written and nothing is locked.

    Raises :class:`~pipeline.errors.MissingInputError` where there is nothing to look at.
    """
    busy = {family: locks.holder_of_family(family) for family in place.families()}
    return _found(place, {family: who for family, who in busy.items() if who})


def collect(place: Place) -> Found:
    """Delete the garbage of a place and return it; its jobs cannot start meanwhile."""
    busy: dict[Path, str] = {}
    with ExitStack() as held:
        for family in place.families():
            try:
                held.enter_context(locks.hold_family(family))
            except LockedError as error:
                busy[family] = str(error)
        found = _found(place, busy)
        for path in (path for one in found.garbage for path in one.paths):
            files.remove(path)
            if path.parent.parent == place.cache / PARTIALS:
                with suppress(OSError):  # others of its key are left
                    path.parent.rmdir()
    return found


def _found(place: Place, busy: Mapping[Path, str]) -> Found:
    found = Found(left=list(busy.values()))
    staying: list[tuple[Path, JobConfig]] = []
    unknown = False
    for family, runs in place.families().items():
        if family in busy:
            continue
        jobs: dict[Path, JobConfig] = {}
        for run in filter(is_finished, runs):
            try:
                jobs[run] = job_of(read(run), run)
            except FeatfoldError as error:
                unknown = True
                found.left.append(f"{run}: {error}; delete it if it is not wanted")
        old = _older(place, family, jobs)
        found.garbage += [_run(run, f"older than the last {place.last} of its job") for run in old]
        dead = [run for run in runs if not is_finished(run)]
        found.garbage += [_run(run, "did not finish, and nobody works on it") for run in dead]
        staying += [(run, job) for run, job in jobs.items() if run not in old]
    if busy or unknown:
        found.left.append("partials and constants: which of them such runs need is not known")
    else:
        _add_cached(found, place, staying)
    strays = [stray for folder in _folders(place) for stray in files.abandoned(folder)]
    within = tuple(path for one in found.garbage for path in one.paths)
    strays = [stray for stray in strays if not any(map(stray.is_relative_to, within))]
    found.garbage.append(Garbage.of("unfinished", strays, "whoever wrote them has ended"))
    found.garbage = [one for one in found.garbage if one.paths]
    return found


def _older(place: Place, family: Path, jobs: Mapping[Path, JobConfig]) -> list[Path]:
    """Return the finished runs of a job that are not among the last."""
    latest = directory_of(family)  # the newest of those that began in one second
    own = [run for run, job in jobs.items() if place.is_used_by(job)]
    return sorted(own, key=lambda run: run == latest)[: -place.last]


def _run(run: Path, why: str) -> Garbage:
    return Garbage.of("run", [run], why)


def _add_cached(found: Found, place: Place, staying: Sequence[tuple[Path, JobConfig]]) -> None:
    """Add the partials that no run needs, and the constants, that were not used lately."""
    before = time.time() - place.unused_seconds
    try:
        kept = needed([(run, job) for run, job in staying if place.caches(job)])
    except FeatfoldError as error:
        found.left.append(f"partials: a kept run cannot be planned, so all are left: {error}")
    else:
        unused = [
            path
            for stat, path in Partials(place.cache / PARTIALS).entries()
            if path.stem not in kept.get(path.parent.name, ()) and stat.st_mtime <= before
        ]
        why = "no kept run would look at them again"
        found.garbage.append(Garbage.of("partials", sorted(unused), why))
    with suppress(FileNotFoundError):
        constants = sorted((place.cache / CONSTANTS).iterdir())
        old = [path for path in constants if path.stat().st_mtime <= before]
        why = "written again by whoever needs them"
        found.garbage.append(Garbage.of("constants", old, why))


def _folders(place: Place) -> Iterator[Path]:
    """Yield the folders that unfinished files may be in, none within another."""
    store = at(place.store) if place.store else None
    given = [place.cache, place.runs, *([store] if store and is_local(store) else [])]
    for folder in given:
        above = [other for other in given if other != folder]
        if not any(folder.absolute().is_relative_to(other.absolute()) for other in above):
            yield folder


def _nbytes(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    if path.is_dir():
        entries = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        return sum(entry.lstat().st_size for entry in entries)
    with suppress(FileNotFoundError):
        return path.lstat().st_size
    return 0
