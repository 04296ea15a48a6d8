"""The facts of a run, gathered into the one dictionary that every report is made from."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.chunk import Split
from pipeline.cluster import Resources
from pipeline.content import digest
from pipeline.detectors import name_of, options_of, shown
from pipeline.engine import Trace
from pipeline.evaluation import Evaluation
from pipeline.fitted import FittedDetector
from pipeline.plan import Pass, Projection, describe
from pipeline.report import SCHEMA
from pipeline.statistics import fields_of

CONVENTIONS = (
    "scores: higher means more out-of-distribution",
    "AUROC, FPR95 and AUPR-out: out-of-distribution is the positive class; AUPR-in: the other way",
    "FPR95: share of in-distribution rows at or above the first threshold that finds 95 % of the "
    "out-of-distribution rows; no interpolation",
    "csid (covariate-shifted in-distribution) sets are ranked against the ID test set as if they "
    "were out-of-distribution: 50 % AUROC means that a detector does not notice the shift; in "
    "numbers called full (full spectrum) their rows count as in-distribution; no number "
    "on csid is marked as best",
    "AUPR: average precision (steps), not the trapezoid",
    "≈: not told from the best of its column at 5 % (Holm's correction), by the paired test of "
    "DeLong for AUROC, by a paired bootstrap of 1,000 replicates for FPR95; sets of which a "
    "detector leaves out rows, and FPR95 of very many rows, are not compared",
    "rank metrics are exact, ties included; near-OOD and far-OOD are means over their sets",
)
VERSIONED = ("numpy", "dask", "distributed", "zarr", "torch", "array-api-compat")


@dataclass(frozen=True)
class Facts:
    """What is known at the end of a run, apart from its scores."""

    name: str
    run: str
    command: str
    config_text: str
    store: str
    seconds: float
    roles: Mapping[str, tuple[Split, str, Sequence[int] | None]]
    """Split name -> the split, its role, and its rows per class where it has labels."""
    trace: Trace
    resources: Resources
    projections: Sequence[Projection]
    measured_nbytes: int
    baselines: Sequence[str]
    logits: str
    """What the logits are, for the classification section."""

    def results(self, fitted: Mapping[str, FittedDetector], found: Evaluation) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        classification = found.classification
        if classification is not None:
            classification = classification | {"logits": self.logits}
        return {
            "schema": SCHEMA,
            "name": self.name,
            "run": self.run,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "verdict": {
                "status": "done",
                "seconds": self.seconds,
                "bytes_read": self.trace.read_nbytes,
                "passes": len(self.trace.passes),
            },
            "data": [self._split(*entry) for entry in self.roles.values()],
            "detectors": [self._detector(member) for member in fitted.values()]
            + [_baseline(name) for name in self.baselines],
            "scores": found.scores,
            "histograms": found.histograms,
            "curves": found.curves,
            "comparisons": found.comparisons,
            "agreement": found.agreement,
            "classification": classification,
            "passes": [
                pass_facts(pass_, seconds)
                for pass_, seconds in zip(self.trace.passes, self.trace.seconds, strict=True)
            ],
            "memory": self._memory(),
            "conventions": list(CONVENTIONS),
            "provenance": self._provenance(),
        }

    def _split(self, split: Split, role: str, counts: Sequence[int] | None) -> dict[str, Any]:
        schema = split.schema
        return {
            "split": split.name,
            "role": role,
            "rows": schema.rows,
            "void": schema.rows - sum(counts) if counts is not None else 0,
            "nbytes": schema.rows * schema.row_nbytes(schema.arrays),
            "arrays": {
                name: {"shape": list(spec.shape), "dtype": spec.dtype}
                for name, spec in sorted(schema.arrays.items())
            },
            "class_counts": None if counts is None else [int(count) for count in counts],
        }

    def _detector(self, member: FittedDetector) -> dict[str, Any]:
        asked_as = (member.choice or {}).get("member", member.id)
        states = {
            statistic: statistic.state_nbytes(work.split.schema)
            for pass_ in self.trace.passes
            if pass_.stage == "fit"
            for work in pass_.works
            for statistic in work.statistics
            if asked_as in pass_.asked_by.get(statistic, ())
        }
        return {
            "id": member.id,
            "name": name_of(member.detector),
            "options": {name: shown(given) for name, given in options_of(member.detector).items()},
            "preset": member.preset,
            "overrides": {name: shown(given) for name, given in member.overrides.items()},
            "fit_split": member.schema.split,
            "passes": member.passes,
            "needs": sorted(fields_of(*member.scorer.views)),
            "state_nbytes": sum(states.values()),
            "notes": [*member.notes, *_left_out(*member.rows)],
            "baseline": False,
        }

    def _memory(self) -> dict[str, Any]:
        largest = max(self.projections, key=lambda projection: projection.nbytes)
        reserved = next(part.nbytes for part in largest.parts if part.name == "reserved")
        return {
            "cluster": self.resources.label,
            "workers": self.resources.workers,
            "reserved_nbytes": reserved,
            "projected_nbytes": largest.nbytes,
            "allowed_nbytes": self.resources.allowed_nbytes,
            "measured_nbytes": self.measured_nbytes,
            "parts": [{"name": part.name, "nbytes": part.nbytes} for part in largest.parts],
        }

    def _provenance(self) -> dict[str, Any]:
        return {
            "featfold": installed("featfold"),
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "versions": {name: installed(name) for name in VERSIONED},
            "config": self.config_text,
            "command": self.command or " ".join(sys.argv),
            "store": self.store,
            "checksums": {name: _checksum(split) for name, (split, *_) in self.roles.items()},
        }


def _left_out(used: int, read: int) -> list[str]:
    return [f"{read - used} of {read} rows left out: void or not finite"] if used < read else []


def _baseline(name: str) -> dict[str, Any]:
    return {
        "id": name, "name": name, "options": {}, "passes": 0, "needs": [name],
        "state_nbytes": 0, "notes": ["a stored array taken for a score"], "baseline": True,
    }  # fmt: skip


def _checksum(split: Split) -> str:
    """Return one checksum for all blocks and arrays of a split, from the manifest."""
    fields = frozenset(split.schema.arrays)
    return digest([dict(split.checksums(block, fields)) for block in split.blocks])[:16]


def pass_facts(pass_: Pass, seconds: float) -> dict[str, Any]:
    """Return a pass as ``results.json`` and ``featfold plan --json`` hold it."""
    statistics = {
        statistic: statistic.state_nbytes(work.split.schema)
        for work in pass_.works
        for statistic in work.statistics
    }
    return {
        "name": pass_.name,
        "blocks": pass_.blocks,
        "nbytes": pass_.read_nbytes,
        "seconds": seconds,
        "fields": sorted({name for work in pass_.works for name in work.fields}),
        "statistics": [
            {
                "name": describe(statistic),
                "asked_by": list(pass_.asked_by.get(statistic, ())),
                "state_nbytes": nbytes,
            }
            for statistic, nbytes in statistics.items()
        ],
    }


def installed(name: str) -> str:
    """Return the version of an installed distribution, or say that it is not."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
