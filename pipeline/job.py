"""A whole job from its configuration: extract, plan, fit, score, evaluate, report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline import api, report
from pipeline.chunk import ArraySpec, Block, Split
from pipeline.cluster import Resources, open_cluster, reset_peak, settle
from pipeline.config import JobConfig, load
from pipeline.content import digest
from pipeline.engine import Execute, Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, MissingInputError
from pipeline.evaluation import Evaluation, LabelCounts, Sets
from pipeline.facts import Facts, pass_facts
from pipeline.fill import Progress, fill
from pipeline.fold import Partial
from pipeline.heads import Head
from pipeline.inputs import cache_directory, choose_head
from pipeline.plan import Pass, Projection, Work, check, explain
from pipeline.procedure import TRAIN
from pipeline.store import DeclaredSplit, Store

SCORES, BLOCKS = "scores", "blocks"
TRAIN_LABELS, TEST_LABELS = "labels of the fit split", "labels of the test split"


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


@dataclass
class Prepared:
    """The splits, heads and procedures of a job, whether its data exists yet or not."""

    config: JobConfig
    declared: Mapping[str, Split] = field(default_factory=dict)
    """Splits to plan for where they are not stored yet."""
    opened: dict[str, Split] = field(default_factory=dict)

    @cached_property
    def train(self) -> Split:
        """The split that detectors are fitted on."""
        return self._split(self.config.fit.split)

    @cached_property
    def head(self) -> Head:
        """Where logits come from."""
        return choose_head(self.config.head, self.train.schema)

    @cached_property
    def fits(self) -> dict[str, Job]:
        """The fits of the detectors and of the head, and the label counts of the fit split."""
        made = api.fit_jobs(self.config.detectors, self.train, self.head)
        return made | {TRAIN_LABELS: Job(LabelCounts(), {TRAIN: (self.train,)})}

    @cached_property
    def sets(self) -> Sets | None:
        """The splits of the evaluation; None where the job only fits."""
        wanted = self.config.evaluate
        if wanted is None:
            return None
        groups = {"near": wanted.near, "far": wanted.far, "csid": wanted.csid}
        return Sets(
            self._split(wanted.id),
            {name: [self._split(s) for s in names] for name, names in groups.items() if names},
        )

    def evaluations(self, fitted: api.Fitted) -> dict[str, Job]:
        """Return the jobs of the evaluation."""
        sets = self.sets
        if sets is None or not sets.ood:
            return {}
        made = api.evaluation_jobs(fitted, sets, self.baselines)
        if "labels" in sets.id_test.schema.arrays:
            made[TEST_LABELS] = Job(LabelCounts(), {TRAIN: (sets.id_test,)})
        return made

    def evaluation(self, fitted: api.Fitted, outcomes: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation from the outcomes of its jobs."""
        sets = self.sets
        if sets is None or not sets.ood:
            return Evaluation()
        return api.evaluation_of(fitted, sets, self.baselines, outcomes)

    @property
    def baselines(self) -> Sequence[str]:
        """Stored arrays that are taken for scores."""
        return self.config.evaluate.baselines if self.config.evaluate else ()

    def _split(self, name: str) -> Split:
        """Open a stored split, once, or return its declaration."""
        if name not in self.opened:
            self.opened[name] = self._stored(name) or self.declared.get(name) or self._missing(name)
        return self.opened[name]

    def _stored(self, name: str) -> Split | None:
        if not Path(self.config.store).exists():
            return None
        store = Store.open(self.config.store)
        return store.split(name) if name in store.splits() else None

    def _missing(self, name: str) -> Split:
        path = Path(self.config.store)
        there = f"it has {', '.join(Store.open(path).splits())}" if path.exists() else ""
        found = f"{path}: no split {name!r}" if there else f"there is no store {path}"
        waiting = any(source.split == name for source in self.config.sources)
        remedy = "run the job to extract it" if waiting else "name its source under sources:"
        raise MissingInputError(
            f"{found}; {there or 'nothing is stored yet'}; {remedy}, or give its shape under "
            "declare: to plan before it exists"
        )


@dataclass(frozen=True)
class Planned:
    """What a job will read and hold; nothing was read for it."""

    passes: Sequence[Pass]
    projections: Sequence[Projection]
    resources: Resources

    def explain(self) -> str:
        """Return the table that ``featfold plan`` prints."""
        resources = self.resources
        return "\n".join(
            [
                f"runs on {resources.label} ({resources.why})",
                explain(self.passes, self.projections, resources.allowed_nbytes),
            ]
        )

    def check(self) -> None:
        """Raise :class:`~pipeline.errors.BudgetError` if a worker could not hold a pass."""
        check(self.passes, self.projections, self.resources.allowed_nbytes)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        passes = [
            pass_facts(pass_, 0.0)
            | {
                "projected_nbytes": projection.nbytes,
                "parts": {part.name: part.nbytes for part in projection.parts},
            }
            for pass_, projection in zip(self.passes, self.projections, strict=True)
        ]
        return {
            "cluster": self.resources.label,
            "workers": self.resources.workers,
            "allowed_nbytes": self.resources.allowed_nbytes,
            "passes": passes,
        }


@dataclass(frozen=True)
class Done:
    """A finished job."""

    results: Mapping[str, Any]
    directory: Path
    html: Path


def plan(config: JobConfig) -> Planned:
    """Return the plan of a job over its stored splits, or over those it declares; reads nothing.

    The procedures are rehearsed on synthetic rows of the same shape.
    """
    declared = {
        name: DeclaredSplit.of(
            name,
            {n: ArraySpec(tuple(a.shape), a.dtype, a.layout) for n, a in given.arrays.items()},
            classes=given.classes,
            rows=given.rows,
        )
        for name, given in config.declare.items()
    }
    return _plan(config, Prepared(config, declared))


def run(
    config: JobConfig | str | Path, *, command: str = "", progress: Progress | None = None
) -> Done:
    """Run a job, or that of a YAML file: missing splits are extracted, others used as they are.

    Raises :class:`~pipeline.errors.BudgetError` before anything is read for the fit if a worker
    could not hold what the plan projects.
    """
    told = progress or Silent()
    began = time.perf_counter()
    config = config if isinstance(config, JobConfig) else load(config)
    fill(config, told)
    prepared = Prepared(config)
    planned = _plan(config, prepared)
    planned.check()
    directory = _run_directory(config)
    constants = cache_directory(config.resources.cache, config.store) / "constants"

    def finished(pass_: Pass, work: Work, block: Block) -> None:
        told.advance(block.rows * work.split.schema.row_nbytes(work.fields))

    trace = Trace()
    reset_peak()
    with open_cluster(
        planned.resources, constants, directory / SCORES / BLOCKS, finished
    ) as cluster:
        told.say(f"runs on {cluster.resources.label} ({planned.resources.why})")
        if cluster.dashboard_url:
            told.say(f"dashboard: {cluster.dashboard_url}")
        execute = _told(cluster.execute, told)
        skips = config.nonfinite == "skip"
        outcomes = run_jobs(prepared.fits, execute, skip_nonfinite=skips, trace=trace)
        fitted = api.members_of(config.detectors, prepared.fits, outcomes, trace)
        fitted.save(directory / "detectors")
        jobs = prepared.evaluations(fitted)
        outcomes |= run_jobs(jobs, execute, stage="score", skip_nonfinite=skips, trace=trace)
        measured = cluster.peak_nbytes()
        resources = cluster.resources
    facts = Facts(
        name=config.name,
        run=directory.name,
        command=command,
        config_text=config.resolved(),
        store=config.store,
        seconds=time.perf_counter() - began,
        roles=_roles(prepared, outcomes),
        trace=trace,
        resources=resources,
        projections=planned.projections,
        measured_nbytes=measured,
        baselines=prepared.baselines,
        logits=prepared.head.label,
    )
    found = prepared.evaluation(fitted, outcomes)
    _file_scores(found, directory / SCORES)
    results = facts.results(fitted, found)
    html = report.write_report(results, directory)
    _write_latest(directory)
    return Done(report.read(directory), directory, html)


def _roles(
    prepared: Prepared, outcomes: Mapping[str, Any]
) -> dict[str, tuple[Split, str, Sequence[int] | None]]:
    """Return every split of the job with its role and its rows per class."""
    train = prepared.train
    found = {train.name: (train, "id_train", outcomes[TRAIN_LABELS].tolist())}
    sets = prepared.sets
    if sets is not None:
        counts = outcomes.get(TEST_LABELS)
        test = None if counts is None else counts.tolist()
        found[sets.id_test.name] = (sets.id_test, "id_test", test)
        found |= {s.name: (s, group, None) for group, several in sets.ood.items() for s in several}
    return found


def _file_scores(found: Evaluation, directory: Path) -> None:
    """Join the scores of each detector to ``SPLIT/DETECTOR.npy``; one block is in memory."""
    for split, tables in found.tables.items():
        for detector, table in tables.items():
            table.save(directory / split / f"{quote(detector, safe=' ()=,')}.npy")
    shutil.rmtree(directory / BLOCKS, ignore_errors=True)


def _run_directory(config: JobConfig) -> Path:
    """Make the directory of a new run, ``DIRECTORY/NAME/UTC-HASH``."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"{stamp}-{digest(config.resolved())[:8]}"
    family = Path(config.report.directory) / config.name
    twins = 0
    while True:  # runs that start within one second get a number
        twins += 1
        directory = family / (name if twins == 1 else f"{name}-{twins}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"report.directory: no run can be written there ({error})") from error
        return directory


def _write_latest(directory: Path) -> None:
    """Point ``LATEST`` beside the runs to the newest finished one, atomically."""
    partial = directory.parent / f"LATEST.{os.getpid()}.partial"
    partial.write_text(f"{directory.name}\n")
    partial.replace(directory.parent / "LATEST")


def _plan(config: JobConfig, prepared: Prepared) -> Planned:
    passes, outcomes = rehearse(prepared.fits)
    fitted = api.members_of(config.detectors, prepared.fits, outcomes, Trace(passes))
    jobs = prepared.evaluations(fitted)
    if jobs:
        passes = passes + rehearse(jobs, stage="score")[0]
    wanted = config.resources
    largest = max((pass_.read_nbytes for pass_ in passes), default=0)
    resources = settle(wanted.cluster, wanted.workers, wanted.memory, largest, wanted.dashboard)
    return Planned(passes, api.projected(passes, resources), resources)


def _told(execute: Execute, told: Progress) -> Execute:
    def run_pass(pass_: Pass) -> Sequence[Partial]:
        told.begin(pass_.name, pass_.read_nbytes)
        roots = execute(pass_)
        told.end()
        return roots

    return run_pass
