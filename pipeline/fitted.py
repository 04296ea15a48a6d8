"""What a fit leaves: detectors that score, threshold and decide, saved without a pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chunk import Schema, Split
from pipeline.content import replaced
from pipeline.detectors import Chosen, overrides, plain
from pipeline.engine import Job, Trace, Turns
from pipeline.errors import CorruptError, DataError, MissingInputError, UnknownNameError
from pipeline.inputs import HEAD
from pipeline.procedure import TRAIN, Detector, Scorer
from pipeline.scoring import decisions_of, scores_of, thresholds_of
from pipeline.statistics import fields_of
from pipeline.store import artifacts
from pipeline.views import View

SOURCE = ("model", "weights_sha256", "tap", "transform")
"""Attributes of a split that say where its features come from."""


@dataclass(frozen=True)
class FittedDetector:
    """A fitted detector: call it with features, or anything else that can be read as a split."""

    id: str
    detector: Detector
    scorer: Scorer
    schema: Schema
    """What it was fitted on."""
    passes: int
    """Passes over the data that its fit took."""
    rows: tuple[int, int]
    """Rows that counted, and rows that were read: the others were void or not finite."""
    source: Mapping[str, str]
    """Model, weights, tap and transform of the features, where the store knows them."""
    pinned: bool = False
    """Whether all passes but the last are those of an earlier fit."""
    preset: str = ""
    """The preset that its options began from, where one was chosen."""
    fit_split: str = ""
    """The split that it was to be fitted on, where that is not the one of the job."""
    sweep: str = ""
    """The sweep that it is a member of."""
    choice: Mapping[str, Any] | None = None
    """How it was chosen of its sweep: the metric, the splits, and the value of each member."""
    equal: str = ""
    """Which options change nothing, where another member of its sweep has the same scores."""

    def __call__(self, data: Any, **options: Any) -> np.ndarray[Any, Any]:
        """Return float64 scores (n,), or (n, t) of token detectors; higher is more OOD."""
        return scores_of({self.id: self}, data, **options)[self.id]

    def threshold_at(self, data: Any, tpr: float = 0.95) -> float:
        """Return the score up to which a share ``tpr`` of in-distribution rows is accepted."""
        return thresholds_of({self.id: self}, data, tpr)[self.id]

    def predict(self, data: Any, threshold: float) -> np.ndarray[Any, Any]:
        """Return +1 for rows that score no more than ``threshold``, else -1: int64 (n,)."""
        return decisions_of({self.id: self}, data, {self.id: threshold})[self.id]

    def accept(self, split: Split) -> None:
        """Raise :class:`DataError` for rows of another layout or model than those of the fit."""
        schema = split.schema
        try:
            touched = schema.touched(fields_of(*self.scorer.views))
        except MissingInputError:
            for view in self.scorer.views:
                view.shape(schema)  # a view may know what writes its array
            raise
        for name in sorted(touched):
            if name not in self.schema.arrays:
                continue  # a mask: the fit may have had tokens without one
            ours, theirs = self.schema.spec(name), schema.spec(name)
            if (ours.shape, ours.layout) != (theirs.shape, theirs.layout):
                raise DataError(
                    f"{self.id} was fitted on {name} with rows {ours.shape} {ours.layout}; "
                    f"{schema.split} has {theirs.shape} {theirs.layout}: score features of the "
                    "same model and layout, or fit again"
                )
        theirs_known = _source(split)
        for key in self.source.keys() & theirs_known.keys():
            if self.source[key] != theirs_known[key]:
                raise DataError(
                    f"{self.id} was fitted on features of {key} {self.source[key]!r}; those of "
                    f"{schema.split} are of {theirs_known[key]!r}: extract them alike, or fit again"
                )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the fit decided, for the report: the ridge that was needed, the rank, ..."""
        kept = ("pinned: its passes before the last are those of an earlier fit",)
        chosen = (f"preset {self.preset}{self._overridden()}",)
        fitted_on = (f"fitted on {self.schema.split}",)
        return (
            *(chosen if self.preset else ()),
            *(fitted_on if self.fit_split else ()),
            *(self._choice() if self.choice else ()),
            *((self.equal,) if self.equal else ()),
            *getattr(self.scorer, "notes", ()),
            *(kept if self.pinned else ()),
        )

    @property
    def overrides(self) -> dict[str, Any]:
        """The options, and the fit split, in which it differs from its preset or the defaults."""
        return overrides(self.detector, self.preset, self.fit_split)

    def _choice(self) -> Iterator[str]:
        assert self.choice is not None
        ranked = sorted(self.choice["values"].items(), key=lambda item: -item[1])
        values = ", ".join(f"{name} {value:.4f}" for name, value in ranked)
        yield (
            f"chosen by {self.choice['metric']} on {self.choice['id']} and {self.choice['ood']}: "
            f"{values}"
        )

    def _overridden(self) -> str:
        listed = ", ".join(f"{name}={given}" for name, given in self.overrides.items())
        return f", but {listed}" if listed else ""


class Fitted(Mapping[str, FittedDetector]):
    """Fitted detectors by id."""

    def __init__(
        self,
        members: Mapping[str, FittedDetector],
        logits: View | None,
        passes: int,
        read_nbytes: int,
        turns: Turns = (),
    ) -> None:
        self.members = dict(members)
        self.logits = logits
        """The logits of the head, where there is one: what classifies the rows."""
        self.passes = passes
        """Passes over the data that the fit of all took."""
        self.read_nbytes = read_nbytes
        """Logical bytes that it read: none where every partial was there already."""
        self.turns = list(turns)
        """Which partials answered its requests: what a later fit may be pinned to."""
        self.thresholds: dict[str, float] = {}
        """What :meth:`threshold_at` found last, or was loaded: used to predict."""

    def __getitem__(self, name: str) -> FittedDetector:
        if name not in self.members:
            raise UnknownNameError(f"no fitted detector {name!r}; fitted: {', '.join(self)}")
        return self.members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"Fitted({', '.join(self)})"

    def only(self, members: Mapping[str, FittedDetector]) -> Fitted:
        """Return the same fit with other members."""
        kept = Fitted(members, self.logits, self.passes, self.read_nbytes, self.turns)
        kept.thresholds = {n: t for n, t in self.thresholds.items() if n in members}
        return kept

    def threshold_at(self, data: Any, tpr: float = 0.95, **options: Any) -> dict[str, float]:
        """Return all thresholds, and keep them: see :func:`pipeline.scoring.thresholds_of`."""
        self.thresholds = thresholds_of(self, data, tpr, **options)
        return dict(self.thresholds)

    def predict(
        self, data: Any, thresholds: Mapping[str, float] | None = None, **options: Any
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Return +1 or -1 for every row, by the thresholds that are kept unless others are given.

        See :func:`pipeline.scoring.decisions_of`.
        """
        given = self.thresholds if thresholds is None else thresholds
        return decisions_of(self, data, given, **options)

    def save(self, directory: str | Path, *, overwrite: bool = False) -> None:
        """Save every scorer as JSON and safetensors, one directory for all; no pickle."""
        tree = {
            "logits": self.logits,
            "members": {
                name: tuple(getattr(fit, entry.name) for entry in dataclasses.fields(fit)[1:])
                for name, fit in self.items()
            },
        }
        facts = {
            "detectors": list(self),
            "cost": [self.passes, self.read_nbytes],
            "turns": self.turns,
            "thresholds": self.thresholds,
        }
        artifacts.save(tree, directory, facts, overwrite=overwrite)

    @classmethod
    def load(cls, directory: str | Path) -> Fitted:
        """Load what :meth:`save` wrote."""
        tree, provenance = artifacts.load(directory)
        saved = tree.get("members", {}) if isinstance(tree, Mapping) else {}
        names = provenance.get("detectors", ())
        if not names or sorted(names) != sorted(saved):
            raise CorruptError(f"{directory} does not hold the detectors that it names; fit again")
        members = {name: FittedDetector(name, *saved[name]) for name in names}
        passes, read_nbytes = provenance["cost"]
        turns = provenance.get("turns", ())
        loaded = cls(members, tree["logits"], passes, read_nbytes, turns)
        loaded.thresholds = dict(provenance.get("thresholds", {}))
        return loaded


def load(directory: str | Path) -> Fitted:
    """Return the fitted detectors that :meth:`Fitted.save` wrote, or a run in ``detectors``."""
    return Fitted.load(directory)


def _source(split: Split) -> dict[str, str]:
    attributes = getattr(split, "attributes", {})
    return {key: str(attributes[key]) for key in SOURCE if key in attributes}


def _equal_ones(
    members: Mapping[str, FittedDetector],
) -> Iterator[tuple[str, FittedDetector, str]]:
    """Yield every member with a note where one of its sweep before it scores alike."""
    seen: dict[tuple[str, Any], FittedDetector] = {}
    for name, fit in members.items():
        notes = {"notes": ()} if hasattr(fit.scorer, "notes") else {}
        first = fit
        if fit.sweep:
            first = seen.setdefault((fit.sweep, replaced(fit.scorer, **notes)), fit)
        differing = [
            field.name
            for field in dataclasses.fields(fit.detector)  # type: ignore[arg-type]
            if getattr(fit.detector, field.name) != getattr(first.detector, field.name)
        ]
        what = f"{' and '.join(differing)} changes nothing here: the scores are those of {first.id}"
        yield name, fit, what if differing else ""


def members_of(
    chosen: Mapping[str, Detector],
    prepared: Mapping[str, Job],
    outcomes: Mapping[str, Any],
    trace: Trace,
) -> Fitted:
    """Return the fitted detectors from the outcomes of their jobs."""
    members = {
        name: FittedDetector(
            name,
            plain(made),
            outcomes[name],
            prepared[name].schema,
            trace.passes_of(name),
            trace.rows_of(name, prepared[name].splits[TRAIN][0].name),
            _source(prepared[name].splits[TRAIN][0]),
            name in trace.pinned,
            *((made.preset, made.fit_split, made.sweep) if isinstance(made, Chosen) else ()),
        )
        for name, made in chosen.items()
    }
    passes, nbytes = len(trace.passes), trace.read_nbytes
    members = {name: replace(fit, equal=same) for name, fit, same in _equal_ones(members)}
    return Fitted(members, outcomes.get(HEAD), passes, nbytes, trace.turns)
