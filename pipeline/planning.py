"""Planning a job: its splits and procedures, and what it will read and hold; nothing is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline import api
from pipeline.calibration import Calibration, measure
from pipeline.chunk import ArraySpec, Split
from pipeline.cluster import Resources, parse_nbytes, settle
from pipeline.config import JobConfig
from pipeline.engine import (
    PARTIALS,
    Job,
    Known,
    Settings,
    Trace,
    known,
    nothing_known,
    pending_in_turn,
    rehearse,
)
from pipeline.errors import MissingInputError
from pipeline.evaluation import Evaluation, LabelCounts, Sets
from pipeline.facts import pass_facts
from pipeline.fitted import Fitted, members_of
from pipeline.fold import Partial
from pipeline.heads import Head
from pipeline.inputs import VAL_SPLIT, cache_directory, choose_head, fit_jobs, scales_of
from pipeline.machine import memory_limit_nbytes
from pipeline.partials import Partials
from pipeline.plan import (
    Pass,
    Pending,
    Projection,
    Room,
    Span,
    Work,
    check,
    check_client,
    explain,
    forecast,
    human,
    parts_of,
    summary,
    wrapped,
)
from pipeline.procedure import TRAIN
from pipeline.selection import selected, selection_jobs
from pipeline.store import DeclaredSplit, Store
from pipeline.store.place import is_url
from pipeline.workplace import client_of, pinned_to, projected, room_of

LATEST = "LATEST"


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
        return choose_head(self.config.head, self.train.schema, self.train)

    @cached_property
    def further(self) -> dict[str, Split]:
        """The splits by name that single detectors are fitted on instead."""
        return {name: self._split(name) for name in self.config.further_splits}

    @cached_property
    def scaling(self) -> dict[str, Split]:
        """The rows of id/val that scale ensembles: none that are tested or fitted on."""
        tested = self.config.evaluate.id if self.config.evaluate else ""
        asked = set[str]().union(*map(scales_of, self.config.detectors.values()))
        if not asked - {TRAIN} or VAL_SPLIT in (tested, self.config.fit.split):
            return {}
        there = self._stored(VAL_SPLIT) or self.declared.get(VAL_SPLIT)
        return {} if there is None else {VAL_SPLIT: self._split(VAL_SPLIT)}

    @cached_property
    def fits(self) -> dict[str, Job]:
        """The fits of the detectors and of the head, and the label counts of the fit splits."""
        further = {**self.scaling, **self.further}
        made = fit_jobs(self.config.detectors, self.train, self.head, further)
        for split in (self.train, *self.further.values()):
            made[labels_of(split)] = Job(LabelCounts(), {TRAIN: (split,)})
        return made

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

    @cached_property
    def choosing(self) -> dict[str, Split]:
        """The splits that choose among the members of sweeps, by role; none where nobody does."""
        wanted = self.config.select
        if wanted is None:
            return {}
        return {"id_val": self._split(wanted.id), "ood_val": self._split(wanted.ood)}

    def selections(self, fitted: Fitted) -> dict[str, Job]:
        """Return the jobs that choose among the members of sweeps."""
        wanted = self.config.select
        if wanted is None:
            return {}
        inside, outside = self.choosing["id_val"], self.choosing["ood_val"]
        made = selection_jobs(fitted, inside, outside, wanted.metric)
        if "labels" in inside.schema.arrays and labels_of(inside) not in self.fits:
            made[labels_of(inside)] = Job(LabelCounts(), {TRAIN: (inside,)})
        return made

    def selected(self, fitted: Fitted, outcomes: Mapping[str, Any]) -> Fitted:
        """Return the fitted detectors once one of each sweep was chosen."""
        wanted = self.config.select
        if wanted is None:
            return fitted
        inside, outside = self.choosing["id_val"], self.choosing["ood_val"]
        return selected(fitted, outcomes, inside, outside, wanted.metric)

    def evaluations(self, fitted: Fitted) -> dict[str, Job]:
        """Return the jobs of the evaluation."""
        sets = self.sets
        if sets is None or not sets.ood:
            return {}
        made = api.evaluation_jobs(fitted, sets, self.baselines)
        if "labels" in sets.id_test.schema.arrays:
            made[labels_of(sets.id_test)] = Job(LabelCounts(), {TRAIN: (sets.id_test,)})
        return made

    def evaluation(self, fitted: Fitted, outcomes: Mapping[str, Any]) -> Evaluation:
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
        if not Store.is_at(self.config.store):
            return None
        store = Store.open(self.config.store)
        return store.split(name) if store.has(name) else None

    def _missing(self, name: str) -> Split:
        path = self.config.store
        there = f"it has {', '.join(Store.open(path).splits())}" if Store.is_at(path) else ""
        found = f"{path}: no split {name!r}" if there else f"there is no store {path}"
        waiting = any(source.split == name for source in self.config.sources)
        remedy = "run the job to extract it" if waiting else "name its source under sources:"
        raise MissingInputError(
            f"{found}; {there or 'nothing is stored yet'}; {remedy}, or give its shape under "
            f"declare: to plan before it exists{self._instead_of(name)}"
        )

    def _instead_of(self, name: str) -> str:
        """Return what the detectors could be fitted on instead of a split that is not there."""
        asking = self.config.further_splits.get(name, ())
        usual = self.config.fit.split.removeprefix("id/")
        return f"; or set fit_split: {usual} for {', '.join(asking)}" if asking else ""


def labels_of(split: Split) -> str:
    """Return the name of the job that counts the labels of a split."""
    return f"labels of {split.name}"


@dataclass(frozen=True)
class Planned:
    """What a job will read, hold and take; nothing was read for it."""

    passes: Sequence[Pass]
    projections: Sequence[Projection]
    pending: Sequence[Pending]
    """What is left to read of each pass; what depends on unknown results is counted whole."""
    resources: Resources
    settings: Settings
    room: Room
    """What a worker may hold: larger states are cut into stripes."""
    client: Projection
    client_allowed_nbytes: int

    def explain(self, rates: Calibration | None = None) -> str:
        """Return the table that ``featfold plan`` prints, with hours where rates are known."""
        resources, spans = self.resources, self.spans(rates)
        limits = resources.allowed_nbytes, spans, resources.device_nbytes
        lines = [
            explain(self.passes, self.projections, self.pending, *limits),
            summary(self.passes, self.pending, spans),
            f"client: projected {human(self.client.nbytes)} of {human(self.client_allowed_nbytes)} "
            f"left to it: {parts_of(self.client)}",
        ]
        return wrapped([f"runs on {resources.label} ({resources.why})", *lines])

    def spans(self, rates: Calibration | None) -> list[Span]:
        """Return the time of each pass by the rates of a machine; none without rates."""
        if rates is None:
            return []
        memory = memory_limit_nbytes()
        return [
            forecast(pass_, left, rates, self.resources.workers, memory)
            for pass_, left in zip(self.passes, self.pending, strict=True)
        ]

    def check(self) -> None:
        """Raise :class:`~pipeline.errors.BudgetError` if a worker or the client would hold more."""
        resources = self.resources
        check(self.passes, self.projections, resources.allowed_nbytes, resources.device_nbytes)
        check_client(self.client, self.client_allowed_nbytes)

    def to_dict(self, rates: Calibration | None = None) -> dict[str, Any]:
        """Return the plan as JSON values."""
        spans: Sequence[Span | None] = self.spans(rates) or [None] * len(self.passes)
        passes = [
            pass_facts(pass_, 0.0)
            | {
                "tasks": pass_.tasks,
                "stripe": list(pass_.turn),
                "blocks_to_read": left.blocks,
                "nbytes_to_read": left.read_nbytes,
                "partials_nbytes": left.partials_nbytes,
                "copies_nbytes": left.copies_nbytes,
                "outputs_nbytes": left.outputs_nbytes,
                "groups": left.groups,
                "banks_nbytes": left.banks_nbytes,
                "device": projection.device and projection.device.facts,
                "seconds_expected": span and [span.least_seconds, span.most_seconds],
            }
            | projection.facts
            for pass_, projection, left, span in zip(
                self.passes, self.projections, self.pending, spans, strict=True
            )
        ]
        return {
            "cluster": self.resources.label,
            "workers": self.resources.workers,
            "allowed_nbytes": self.resources.allowed_nbytes,
            "device_nbytes": self.resources.device_nbytes,
            "client": {"allowed_nbytes": self.client_allowed_nbytes} | self.client.facts,
            "passes": passes,
        }


def plan(
    config: JobConfig, *, pin: str | Path | None = None, synthetic: DeclaredSplit | None = None
) -> Planned:
    """Return the plan of a job over its stored splits, or over those it declares; reads nothing.

    The procedures are rehearsed on synthetic rows of the same shape. ``pin`` is the directory of an
    earlier run, or ``LATEST``. ``synthetic`` stands for every split that detectors are fitted
    on; then nothing is selected or evaluated.
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
    opened: dict[str, Split] = {}
    if synthetic is not None:
        config = config.model_copy(update={"select": None, "evaluate": None})
        opened = {
            name: replace(synthetic, schema=replace(synthetic.schema, split=name))
            for name in (config.fit.split, *config.further_splits)
        }
    return plan_of(config, Prepared(config, declared, opened), earlier_run(config, pin))


def plan_of(config: JobConfig, prepared: Prepared, earlier: Fitted | None = None) -> Planned:
    """Rehearse the job on made-up rows, and look up what earlier runs have left of it.

    What a pass asks for may depend on the results of an earlier one: these are known where every
    partial of that one is there or it is pinned, and made up elsewhere.
    """
    cache = cache_directory(config.resources.cache, config.store)
    pin = pinned_to(earlier.turns, cache, config.store) if earlier else None
    skips = config.nonfinite == "skip"

    def passes_of(known: Known, room: Room | None) -> tuple[list[Pass], Fitted]:
        unknown: list[Work] = []

        def looked_up(work: Work) -> Partial | None:
            found = known(work)
            unknown.extend([work] if found is None else [])
            return found

        fitting, outcomes = rehearse(
            prepared.fits, skip_nonfinite=skips, known=looked_up, pin=pin, room=room
        )
        fitted = members_of(config.detectors, prepared.fits, outcomes, Trace(fitting))
        selecting, outcomes = rehearse(
            prepared.selections(fitted), stage="select", skip_nonfinite=skips, known=looked_up,
            room=room,
        )  # fmt: skip
        if not unknown:  # else room is made for all members: any of them may be kept
            fitted = prepared.selected(fitted, outcomes)
        scoring, _ = rehearse(
            prepared.evaluations(fitted), stage="score", skip_nonfinite=skips, room=room
        )
        return fitting + selecting + scoring, fitted

    wanted = config.resources
    sketch, _ = passes_of(nothing_known, None)
    largest = max((pass_.read_nbytes for pass_ in sketch), default=0)
    resources = settle(
        wanted.cluster, wanted.workers, wanted.memory, largest, wanted.dashboard,
        wanted.device_memory,
    )  # fmt: skip
    room = room_of(resources)
    passes, fitted = passes_of(known(Settings(), cache), room)
    projections, shrink = projected(passes, resources)
    settings = _within(wanted.cache_limit, Settings(shrink), passes, cache)
    left = pending_in_turn(passes, settings, cache)
    client = client_of(passes, projections, resources, fitted)
    return Planned(passes, projections, left, resources, settings, room, *client)


def _within(
    limit: str | int | None, settings: Settings, passes: Sequence[Pass], cache: Path
) -> Settings:
    """Return settings that drop merged partials where the cache would outgrow its limit."""
    if limit is None:
        return settings
    growth = sum(left.disk_nbytes for left in pending_in_turn(passes, settings, cache))
    there = Partials(cache / PARTIALS).nbytes()
    return replace(settings, thin=there + growth > parse_nbytes(limit))


def family_of(config: JobConfig) -> Path:
    """Return the directory of all runs of a job: one of them is on its way at a time."""
    return Path(config.report.directory) / config.name


def earlier_run(config: JobConfig, pin: str | Path | None) -> Fitted | None:
    """Return the detectors of the run that a job is pinned to: a directory, or ``LATEST``."""
    if pin is None:
        return None
    family = family_of(config)
    if str(pin) != LATEST:
        return Fitted.load(Path(pin) / "detectors")
    if not (family / LATEST).is_file():
        raise MissingInputError(f"{family} holds no finished run to pin this one to")
    return Fitted.load(family / (family / LATEST).read_text().strip() / "detectors")


def rates_of(config: JobConfig) -> Calibration | None:
    """Return what this machine reads, sums and multiplies in a second; measured once, and kept.

    None where it cannot be measured: a disk that is full, or may not be written to, and an object
    store, whose time is that of a network.
    """
    if is_url(config.store):
        return None
    home = cache_directory(None)
    rates = Calibration.load(home)
    if rates is None:
        beside = Path(config.store).absolute().parent
        try:
            rates = measure(beside if os.access(beside, os.W_OK) else home)
            rates.save(home)
        except OSError:
            return rates
    return rates
