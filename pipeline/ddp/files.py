"""Partial files: the states of one process at one moment of a run, merged by any other process.

A partial is keyed by run, attempt, phase, sanity flag, global step, batches trained on, rank and
number of ranks: an epoch alone means several moments where training validates more than once an
epoch or starts again. Files are safetensors with a header of JSON, flushed and renamed into place.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline import files
from pipeline.choice import differing
from pipeline.content import digest
from pipeline.errors import ConfigError, CorruptError, DataError, IncompleteError, MissingInputError

__all__ = [
    "RUNNING", "Beginning", "Moment", "Origin", "Partial", "Run", "complete", "each_moment",
]  # fmt: skip

FORMAT = 1
HEADER = "featfold"
POLL_SECONDS = 0.05
RUNNING = "running"
"""Phase of the partials that go with a checkpoint: training metrics up to it."""
BEGINNING = "begin.json"
_NAME = re.compile(r"[\w.-]+")
_MOMENT = re.compile(r"step-(\d+)-batch-(\d+)")
Tensors = Mapping[str, np.ndarray[Any, Any]]


class Moment(NamedTuple):
    """A phase of a run, and when: the same on every rank."""

    phase: str
    """``train``, ``val``, ``test``, or any other word."""
    step: int
    """Optimiser steps so far."""
    batch: int = 0
    """Batches trained on so far; steps alone collide where gradients accumulate."""
    sanity: bool = False
    """Whether it is the check before training, which counts for nothing."""
    collection: str = "metrics"
    """Which of the collections of the phase."""

    @property
    def folder(self) -> str:
        """Name of its folder within the one of an attempt."""
        phase = f"{self.phase}.sanity" if self.sanity else self.phase
        return f"{phase}/step-{self.step:08d}-batch-{self.batch:08d}/{self.collection}"

    def __str__(self) -> str:
        check = " (sanity check)" if self.sanity else ""
        return f"{self.phase} at step {self.step}, batch {self.batch}{check}, of {self.collection}"


class Origin(NamedTuple):
    """The weights that an attempt began with: those of another attempt, after some batch."""

    attempt: int
    batch: int


class Beginning(NamedTuple):
    """How an attempt began."""

    origin: Origin | None
    """None for weights that no attempt of the run has trained."""
    trains: bool
    """Whether it is a training, or the validation or test of weights as they are."""


@dataclass(frozen=True)
class Partial:
    """What a rank wrote: its arrays, and where they belong."""

    run: str
    attempt: int
    moment: Moment
    rank: int
    world_size: int
    declaration: str
    """Digest of the metrics and classes: equal on all ranks."""
    about: Mapping[str, Any]
    """More that the writer knows: JSON."""
    arrays: Tensors
    group: tuple[int, ...] = ()
    """Ranks of the process group among all of the world, where it is not the world itself."""

    @property
    def name(self) -> str:
        """Name of its file: two groups of one world, each with a rank 0, do not collide."""
        group = f".group-{digest(self.group)[:8]}" if self.group else ""
        return f"rank-{self.rank:05d}-of-{self.world_size:05d}{group}.safetensors"

    def header(self) -> dict[str, Any]:
        """Return all but the arrays, for JSON."""
        return {
            "format": FORMAT, "run": self.run, "attempt": self.attempt,
            "moment": self.moment._asdict(), "rank": self.rank, "world_size": self.world_size,
            "declaration": self.declaration, "about": self.about, "group": self.group,
        }  # fmt: skip


class Run:
    """The folder of a run: ``attempt-0001/PHASE/MOMENT/COLLECTION/rank-00000-of-00002``.

    An attempt is one start of the training script, or of a validation or test on its own. A merge
    takes the files of one attempt: those of another are of other weights.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.id = self.path.name
        if not _NAME.fullmatch(self.id):
            raise ConfigError(
                f"run: {self.id!r} cannot name a folder; use letters, digits, '.', '_' and '-'"
            )

    def open_attempt(self, origin: Origin | None = None, *, trains: bool = True) -> int:
        """Begin an attempt, on one process only: return its number, which is nobody else's.

        ``origin`` says which attempt it goes on from, and where. An attempt without one is a
        training anew, whose curve has nothing of the attempts before.
        """
        with files.told("a folder", self.path, 0, "name another directory"):
            self.path.mkdir(parents=True, exist_ok=True)
            number = max(self.attempts(), default=0) + 1
            while True:
                try:
                    os.mkdir(self._attempt(number))
                    files.sync(self.path)
                except FileExistsError:
                    number += 1
                else:
                    break
        content = json.dumps({"origin": origin and origin._asdict(), "trains": trains}).encode()
        files.write_whole(
            self._attempt(number) / BEGINNING, lambda file: file.write(content), len(content),
            "name another directory",
        )  # fmt: skip
        return number

    def beginning(self, attempt: int) -> Beginning:
        """Return how an attempt began; one that did not come to say so is a training anew."""
        path = self._attempt(attempt) / BEGINNING
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return Beginning(None, True)
        except (OSError, ValueError) as error:
            raise CorruptError(f"{path} cannot be read ({error}); remove the attempt") from None
        origin = found["origin"]
        return Beginning(None if origin is None else Origin(**origin), found["trains"])

    def attempts(self) -> list[int]:
        """Return the numbers of the attempts, in order."""
        names = (entry.name for entry in self.path.glob("attempt-*"))
        return sorted(int(name[8:]) for name in names if name[8:].isdecimal())

    def moments(self, attempt: int) -> list[Moment]:
        """Return the moments that some rank of an attempt wrote, in order of batches and steps."""
        found = []
        for folder in self._attempt(attempt).glob("*/step-*/*"):
            when = _MOMENT.fullmatch(folder.parent.name)
            phase, _, sanity = folder.parent.parent.name.partition(".")
            if when and any(folder.glob("rank-*.safetensors")):
                step, batch = map(int, when.groups())
                found.append(Moment(phase, step, batch, sanity == "sanity", folder.name))
        return sorted(found, key=lambda m: (not m.sanity, m.batch, m.step, m.phase, m.collection))

    def write(self, partial: Partial) -> Path:
        """Write what a rank has, whole or not at all; a later write of the same takes its place."""
        from safetensors.numpy import save

        for word in (partial.moment.phase, partial.moment.collection):
            if not re.fullmatch(r"[\w-]+", word):
                raise ConfigError(f"phase: {word!r} cannot name a folder; use letters and digits")
        path = self._folder(partial.attempt, partial.moment) / partial.name
        content = save(
            {key: np.ascontiguousarray(x) for key, x in partial.arrays.items()},
            {HEADER: json.dumps(partial.header())},
        )
        files.write_whole(
            path, lambda file: file.write(content), len(content), "name another directory"
        )
        return path

    def remove(self, attempt: int, moment: Moment) -> None:
        """Remove what all ranks of an attempt wrote at a moment, and the folder of the moment."""
        folder = self._folder(attempt, moment)
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # other collections have theirs there
            folder.parent.rmdir()

    def partials(self, moment: Moment, attempt: int) -> list[Partial]:
        """Return what the ranks of an attempt wrote at a moment.

        Raises :class:`CorruptError` for a file that cannot be read or is of another place.
        """
        paths = sorted(self._folder(attempt, moment).glob("rank-*.safetensors"))
        return [self._read(path, moment, attempt) for path in paths]

    def gathered(
        self,
        moment: Moment,
        attempt: int | Sequence[int] | None = None,
        wait_seconds: float = 0.0,
        group: Sequence[int] | None = None,
    ) -> list[Partial]:
        """Return one partial of every rank at a moment, of one attempt.

        It is the latest attempt that is complete, of those that are named. Ranks that have not
        written yet are waited for. Where several process groups wrote, ``group`` says whose
        partials are wanted, by their ranks in the world. Raises :class:`MissingInputError` where
        there is nothing, :class:`IncompleteError` naming missing ranks, :class:`DataError` naming
        ranks that are there twice or declare other metrics.
        """
        until = time.monotonic() + wait_seconds
        while True:
            try:
                return self._complete(moment, attempt, group)
            except (IncompleteError, MissingInputError):
                if time.monotonic() >= until:
                    raise
            time.sleep(POLL_SECONDS)

    def listed(self, attempt: int | None = None) -> str:
        """Return the moments there are, for messages."""
        numbers = self.attempts() if attempt is None else [attempt]
        found = dict.fromkeys(str(m) for number in numbers for m in self.moments(number))
        return "; ".join(found) or "none at all: is this the folder of a run?"

    def _complete(
        self, moment: Moment, attempt: int | Sequence[int] | None, group: Sequence[int] | None
    ) -> list[Partial]:
        numbers = self.attempts() if attempt is None else attempt
        wanted = [numbers] if isinstance(numbers, int) else sorted(numbers, reverse=True)
        failed: IncompleteError | None = None
        for number in wanted:
            partials = self.partials(moment, number)
            if group is not None:
                partials = [partial for partial in partials if partial.group == tuple(group)]
            try:
                if partials:
                    return complete(partials, f"{self.path}, attempt {number}: {moment}")
            except IncompleteError as error:
                failed = failed or error
        if failed:
            raise failed
        of = f", attempt {attempt}," if attempt is not None else ""
        there = self.listed(attempt if isinstance(attempt, int) else None)
        raise MissingInputError(f"{self.path}{of} holds no partial of {moment}; it has {there}")

    def _read(self, path: Path, moment: Moment, attempt: int) -> Partial:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as file:
                header = json.loads((file.metadata() or {}).get(HEADER, "{}"))
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise CorruptError(
                f"{path} cannot be read ({error}); remove it, and merge another attempt"
            ) from None
        if header.get("format") != FORMAT:
            raise CorruptError(f"{path} is no partial of this version of featfold")
        found = Moment(**header["moment"])
        if (header["run"], header["attempt"], found) != (self.id, attempt, moment):
            raise CorruptError(
                f"{path} holds run {header['run']}, attempt {header['attempt']}, {found}; "
                f"expected run {self.id}, attempt {attempt}, {moment}: it was moved or copied here"
            )
        own = {name: header[name] for name in ("rank", "world_size", "declaration", "about")}
        own["group"] = tuple(header["group"])
        return Partial(run=self.id, attempt=attempt, moment=moment, arrays=arrays, **own)

    def _attempt(self, number: int) -> Path:
        return self.path / f"attempt-{number:04d}"

    def _folder(self, attempt: int, moment: Moment) -> Path:
        return self._attempt(attempt) / moment.folder


def complete(partials: Sequence[Partial], what: str) -> list[Partial]:
    """Return partials by rank if there is one of each, all of the same declaration.

    Raises :class:`IncompleteError` or :class:`DataError` that name the ranks otherwise.
    """
    groups = sorted({partial.group for partial in partials})
    if len(groups) > 1:
        named = _joined([f"ranks {list(group)}" if group else "all ranks" for group in groups])
        raise DataError(
            f"{what}: partials of several process groups lie together, of {named}; name one of "
            f"them, as in group={list(groups[-1])}"
        )
    sizes = sorted({partial.world_size for partial in partials})
    if len(sizes) > 1:
        raise DataError(
            f"{what}: partials of {_joined(sizes)} ranks lie together; one process group writes "
            "to an attempt: begin another with open_attempt"
        )
    ranks = [partial.rank for partial in partials]
    if doubled := sorted({rank for rank in ranks if ranks.count(rank) > 1}):
        raise DataError(
            f"{what}: ranks {doubled} are there twice, and would count twice; remove the copies"
        )
    if missing := sorted(set(range(sizes[0])) - set(ranks)):
        raise IncompleteError(
            f"{what}: ranks {missing} of {sizes[0]} wrote no partial; every rank must write one, "
            "also without a batch; or name an attempt that is complete"
        )
    by_rank = sorted(partials, key=lambda partial: partial.rank)
    others = [p.rank for p in by_rank if p.declaration != by_rank[0].declaration]
    if others:
        said = [dict(partial.about.get("declared", {})) for partial in by_rank]
        raise DataError(
            f"{what}: ranks {others} declare other metrics, classes or options than rank 0: "
            f"{differing(said[others[0]], said[0])}"
        )
    return by_rank


def _joined(entries: Sequence[int | str]) -> str:
    return " and ".join(map(str, entries))


def each_moment(run: Run) -> Iterator[tuple[Moment, list[int]]]:
    """Yield every moment of a run in order, with the attempts that have partials of it."""
    found: dict[Moment, list[int]] = {}
    for attempt in run.attempts():
        for moment in run.moments(attempt):
            found.setdefault(moment, []).append(attempt)
    yield from sorted(found.items(), key=lambda item: (not item[0].sanity, item[0].batch))
