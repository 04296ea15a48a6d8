"""Planning a job: its splits and procedures, and what it will read and hold; nothing is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline import api
from pipeline.chunk import ArraySpec, Split
from pipeline.cluster import Resources, parse_nbytes, settle
from pipeline.config import JobConfig
from pipeline.engine import PARTIALS, Job, Settings, Trace, pending, rehearse, replay
from pipeline.errors import MissingInputError
from pipeline.evaluation import Evaluation, LabelCounts, Sets
from pipeline.facts import pass_facts
from pipeline.heads import Head
from pipeline.inputs import cache_directory, choose_head
from pipeline.partials import Partials
from pipeline.plan import Pass, Pending, Projection, check, explain
from pipeline.procedure import TRAIN
from pipeline.store import DeclaredSplit, Store
from pipeline.workplace import projected

TRAIN_LABELS, TEST_LABELS = "labels of the fit split", "labels of the test split"


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
    pending: Sequence[Pending]
    """What is left to read of each pass; what depends on unknown results is counted whole."""
    resources: Resources
    settings: Settings

    def explain(self) -> str:
        """Return the table that ``featfold plan`` prints."""
        resources = self.resources
        return "\n".join(
            [
                f"runs on {resources.label} ({resources.why})",
                explain(self.passes, self.projections, self.pending, resources.allowed_nbytes),
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
                "blocks_to_read": left.blocks,
                "nbytes_to_read": left.read_nbytes,
                "partials_nbytes": left.partials_nbytes,
                "projected_nbytes": projection.nbytes,
                "parts": {part.name: part.nbytes for part in projection.parts},
            }
            for pass_, projection, left in zip(
                self.passes, self.projections, self.pending, strict=True
            )
        ]
        return {
            "cluster": self.resources.label,
            "workers": self.resources.workers,
            "allowed_nbytes": self.resources.allowed_nbytes,
            "passes": passes,
        }


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
    return plan_of(config, Prepared(config, declared))


def plan_of(config: JobConfig, prepared: Prepared) -> Planned:
    """Rehearse the job on made-up rows, and look up what earlier runs have left of it.

    What a pass asks for may depend on the results of an earlier one: these are known where every
    partial of that one is there, and made up elsewhere.
    """
    cache = cache_directory(config.resources.cache, config.store)
    skips = config.nonfinite == "skip"
    passes, outcomes = rehearse(prepared.fits, skip_nonfinite=skips)
    done, unfinished, known = replay(prepared.fits, Settings(), cache, skip_nonfinite=skips)
    fitting = [*done, *([unfinished] if unfinished else [])]
    fitting += passes[len(fitting) :]
    fitted = api.members_of(config.detectors, prepared.fits, known or outcomes, Trace(passes))
    evaluations = prepared.evaluations(fitted)
    every = [*fitting]
    if evaluations:
        every += rehearse(evaluations, stage="score", skip_nonfinite=skips)[0]
    wanted = config.resources
    largest = max((pass_.read_nbytes for pass_ in every), default=0)
    resources = settle(wanted.cluster, wanted.workers, wanted.memory, largest, wanted.dashboard)
    projections, shrink = projected(every, resources)
    settings = _within(wanted.cache_limit, Settings(shrink), every, cache)
    left = [pending(pass_, settings, cache) for pass_ in every]
    return Planned(every, projections, left, resources, settings)


def _within(
    limit: str | int | None, settings: Settings, passes: Sequence[Pass], cache: Path
) -> Settings:
    """Return settings that drop merged partials where the cache would outgrow its limit."""
    if limit is None:
        return settings
    growth = sum(pending(pass_, settings, cache).partials_nbytes for pass_ in passes)
    there = Partials(cache / PARTIALS).nbytes()
    return replace(settings, thin=there + growth > parse_nbytes(limit))
