"""A whole job from its configuration: extract, plan, fit, score, evaluate, report."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline import files, locks, report, seeds, stopping, unstored
from pipeline.chunk import Block, Split
from pipeline.cluster import open_cluster, parse_nbytes
from pipeline.config import JobConfig, load
from pipeline.content import digest
from pipeline.engine import PARTIALS, Execute, Settings, Streaming, Trace, pending, run_jobs
from pipeline.errors import ConfigError
from pipeline.evaluation import Evaluation
from pipeline.events import Journal
from pipeline.facts import Facts
from pipeline.fill import Progress, fill
from pipeline.fitted import Fitted, members_of
from pipeline.fold import Partial
from pipeline.inputs import cache_directory
from pipeline.machine import reset_peak
from pipeline.partials import Partials
from pipeline.plan import Pass, Work
from pipeline.planning import (
    LATEST,
    Planned,
    Prepared,
    earlier_run,
    family_of,
    labels_of,
    plan_of,
)
from pipeline.planning import plan as plan
from pipeline.workplace import pinned_to

SCORES = "scores"
JOB = "job.yaml"
"""The job of a run with every default written out: ``featfold run`` takes it again."""
ANOTHER = "name another report.directory"
UNUSABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG}
)
"""Errors of a folder that say that it cannot be one where the job wants it."""


class Silent:
    """Progress that nobody watches."""

    def begin(self, name: str, total: int, unit: str = "bytes") -> None:
        """Ignore the start of a stage."""

    def advance(self, amount: int) -> None:
        """Ignore progress."""

    def end(self) -> None:
        """Ignore the end of a stage."""

    def say(self, text: str) -> None:
        """Ignore a message."""


@dataclass(frozen=True)
class Done:
    """A finished job."""

    results: Mapping[str, Any]
    directory: Path
    html: Path


def run(
    config: JobConfig | str | Path,
    *,
    command: str = "",
    progress: Progress | None = None,
    part: tuple[int, int] | None = None,
    pin: str | Path | None = None,
    stored: bool = True,
) -> Done:
    """Run a job, or that of a YAML file: missing splits are extracted, others used as they are.

    ``part`` (i, n) folds the i-th of n shares of the blocks of a pass: n such runs side by side
    leave nothing to read to the last of them. ``pin`` is the directory of an earlier run, or
    ``LATEST``: its first passes are kept as they were. A job with ``seeds`` runs on each of their
    stores, in runs of their own, and then reports the means. Unless ``stored``, the rows of sources
    go from their models straight into the statistics and scores, and features are written nowhere:
    a job that would read any of them twice is a :class:`~pipeline.errors.ConfigError` that names
    the detectors which need that and those which do not.

    Raises :class:`~pipeline.errors.BudgetError` before anything is read for the fit if a worker
    could not hold what the plan projects, :class:`~pipeline.errors.LockedError` where another run
    of the same name is on its way.
    """
    config = config if isinstance(config, JobConfig) else load(config, stored=stored)
    outputs, family = _alone(config, part), family_of(config)
    with Journal(progress or Silent(), outputs, family, part, command) as told:
        if not stored:
            done = _run_unstored(config, command, told, part, pin)
        else:
            done = (_run_seeds if config.seeds else _run_stored)(config, command, told, part, pin)
        told.done(done.directory)
        return done


def _run_stored(
    config: JobConfig,
    command: str,
    told: Journal,
    part: tuple[int, int] | None,
    pin: str | Path | None,
) -> Done:
    began = time.perf_counter()
    fill(config, told)
    prepared = Prepared(config)
    earlier = earlier_run(config, pin)
    planned = plan_of(config, prepared, earlier)
    planned.check()
    return _run(config, prepared, planned, command, told, part, earlier, began)


def _run_unstored(
    config: JobConfig,
    command: str,
    told: Journal,
    part: tuple[int, int] | None,
    pin: str | Path | None,
) -> Done:
    if part is not None or pin is not None:
        raise ConfigError("--no-store: nothing is kept that --blocks or --pin could go on from")
    if not config.store:  # where it would be is where partials are
        config = config.model_copy(update={"store": f"{config.name}.zarr"})
    began = time.perf_counter()
    with unstored.streams_of(config) as streams:
        prepared = unstored.prepared_over(config, streams)
        planned, streaming = unstored.plan(config, prepared)
        told.say("no store: features go straight into the statistics; models are not in the plan")
        return _run(config, prepared, planned, command, told, None, None, began, streaming)


def _run_seeds(
    config: JobConfig,
    command: str,
    told: Journal,
    part: tuple[int, int] | None,
    pin: str | Path | None,
) -> Done:
    if pin is not None and str(pin) != LATEST:
        raise ConfigError(f"pin: {pin}; a job with seeds has one run for each: pin it to {LATEST}")
    seeds.refuse_unlike(config)
    done = []
    for place, seed in enumerate(config.each(), 1):
        told.say(f"seed {place} of {len(config.seeds)}: {seed.store}")
        done.append(run(seed, command=command, progress=told, part=part, pin=pin))
    held = told.alone()
    directory = _run_directory(config)
    results = report.averaged(
        [report.read(one.directory) for one in done], name=config.name, run=directory.name
    )
    held.check()
    html = report.write_report(results, directory)
    _write_latest(directory)
    return Done(results, directory, html)


@contextmanager
def _alone(config: JobConfig, part: tuple[int, int] | None) -> Iterator[locks.Held]:
    """Hold the outputs of a job."""
    family = family_of(config)
    with _told_of(family):
        family.mkdir(parents=True, exist_ok=True)
    with locks.hold_family(family_of(config), part) as held:
        yield held


def _run(
    config: JobConfig,
    prepared: Prepared,
    planned: Planned,
    command: str,
    told: Journal,
    part: tuple[int, int] | None,
    earlier: Fitted | None,
    began: float,
    streaming: Streaming | None = None,
) -> Done:
    held = told.alone()
    cache = cache_directory(config.resources.cache, config.store)
    files.sweep(cache)

    def finished(pass_: Pass, work: Work, block: Block) -> None:
        told.advance(block.rows * work.split.schema.row_nbytes(work.fields))

    trace = Trace()
    reset_peak()
    settings = replace(planned.settings, part=part)
    pinned = pinned_to(earlier.turns, cache, config.store) if earlier else None
    with (
        stopping.heeded(),
        open_cluster(planned.resources, cache, settings, finished, told.say)
        if streaming is None
        else unstored.cluster_of(planned, streaming, cache, finished) as cluster,
    ):
        told.say(f"runs on {cluster.resources.label} ({planned.resources.why})")
        if cluster.dashboard_url:
            told.say(f"dashboard: {cluster.dashboard_url}")
        execute = _told(cluster.execute, told, settings, cache)
        skips = config.nonfinite == "skip"
        outcomes = run_jobs(
            prepared.fits, execute, skip_nonfinite=skips, trace=trace, pin=pinned,
            room=planned.room,
        )  # fmt: skip
        fitted = members_of(config.detectors, prepared.fits, outcomes, trace)
        chosen = run_jobs(
            prepared.selections(fitted), execute, stage="select", skip_nonfinite=skips,
            trace=trace, room=planned.room,
        )  # fmt: skip
        fitted, outcomes = prepared.selected(fitted, chosen), outcomes | chosen
        directory = _run_directory(config)  # nothing is left of a run that ends before
        report.write_text(directory / JOB, config.resolved())
        fitted.save(directory / "detectors")
        jobs = prepared.evaluations(fitted)
        outcomes |= run_jobs(
            jobs, execute, stage="score", skip_nonfinite=skips, trace=trace, room=planned.room
        )
        measured = cluster.peak_nbytes()
        resources = cluster.resources
    facts = Facts(
        name=config.name,
        run=directory.name,
        command=command,
        config_text=config.resolved(),
        store=config.store if streaming is None else unstored.NOWHERE,
        seconds=time.perf_counter() - began,
        roles=_roles(prepared, outcomes),
        trace=trace,
        resources=resources,
        projections=planned.projections,
        measured_nbytes=measured,
        baselines=prepared.baselines,
        logits=prepared.head.label,
    )
    if prepared.sets is not None:
        told.say(f"comparing the scores of {len(fitted)} detectors")
    found = prepared.evaluation(fitted, outcomes)
    _file_scores(found, directory / SCORES)
    results = facts.results(fitted, found)
    held.check()
    html = report.write_report(results, directory)
    _write_latest(directory)
    if config.resources.cache_limit is not None:  # scores are read from the cache until here
        Partials(cache / PARTIALS).trim(parse_nbytes(config.resources.cache_limit))
    return Done(report.read(directory), directory, html)


def _roles(
    prepared: Prepared, outcomes: Mapping[str, Any]
) -> dict[str, tuple[Split, str, Sequence[int] | None]]:
    """Return every split of the job with its role and its rows per class."""

    def counted(split: Split, role: str) -> tuple[Split, str, Sequence[int] | None]:
        counts = outcomes.get(labels_of(split))
        return split, role, None if counts is None else counts.tolist()

    found = {prepared.train.name: counted(prepared.train, "id_train")}
    held_out = {**prepared.scaling, **prepared.further}
    found |= {name: counted(split, "id_val") for name, split in held_out.items()}
    found |= {
        split.name: counted(split, role)
        for role, split in prepared.choosing.items()
        if split.name not in found
    }
    sets = prepared.sets
    if sets is not None:
        found[sets.id_test.name] = counted(sets.id_test, "id_test")
        found |= {s.name: (s, group, None) for group, several in sets.ood.items() for s in several}
    return found


def _file_scores(found: Evaluation, directory: Path) -> None:
    """Write the scores of each detector as ``SPLIT/DETECTOR.npy``; one block is in memory."""
    for split, tables in found.tables.items():
        for detector, table in tables.items():
            table.save(directory / split / f"{quote(detector, safe=' ()=,')}.npy")


def _run_directory(config: JobConfig) -> Path:
    """Make the directory of a new run, ``DIRECTORY/NAME/UTC-HASH``."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"{stamp}-{digest(config.resolved())[:8]}"
    family = family_of(config)
    twins = 0
    while True:  # runs that start within one second get a number
        twins += 1
        directory = family / (name if twins == 1 else f"{name}-{twins}")
        with _told_of(directory):
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                continue
        return directory


@contextmanager
def _told_of(directory: Path) -> Iterator[None]:
    """Tell a folder that cannot be one, which is the job's fault, from a disk that is full."""
    try:
        yield
    except OSError as error:
        if error.errno in UNUSABLE:
            raise ConfigError(f"report.directory: no run can be written there ({error})") from error
        with files.told(directory.name, directory.parent, 0, ANOTHER):
            raise


def _write_latest(directory: Path) -> None:
    """Point ``LATEST`` beside the runs to the newest finished one, atomically."""
    name = f"{directory.name}\n".encode()
    files.write_whole(directory.parent / LATEST, lambda file: file.write(name), 0, ANOTHER)


def _told(execute: Execute, told: Journal, settings: Settings, cache: Path) -> Execute:
    """Return ``execute`` with its passes shown, as far as there is anything to read."""

    def run_pass(pass_: Pass) -> Sequence[Partial]:
        left = pending(pass_, settings, cache)
        if not left.blocks:
            told.say(f"{pass_.name}: nothing to read, all partials are there")
            return execute(pass_)
        told.begin(pass_.name, left.read_nbytes, blocks=left.blocks)
        roots = execute(pass_)
        told.end()
        return roots

    return run_pass
