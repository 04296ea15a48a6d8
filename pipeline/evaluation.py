"""Evaluation: every detector against every out-of-distribution set, in one pass over all of them.

The in-distribution rows are scored and counted once, whatever the number of sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.chunk import Schema, Split, concatenated
from pipeline.content import value
from pipeline.engine import Job
from pipeline.errors import ConfigError, UnknownNameError
from pipeline.metrics import (
    ConfusionMatrix,
    ConfusionTable,
    Scored,
    accuracy,
    agreement,
    balanced_accuracy,
    class_metric,
    compared,
    full_spectrum,
    histogram,
    one_side,
    ranking_metrics,
    ranks_of,
    roc_curve,
)
from pipeline.partials import RowTable
from pipeline.procedure import TRAIN, Passes, Rows
from pipeline.statistics import Marginals, Ranks
from pipeline.views import Labels, Outside, Predicted, View

CSID = "csid"
HISTOGRAM_BINS = 60
CURVE_POINTS, LEAST_POINTS, POINTS_IN_ALL = 500, 60, 48_000
"""Points of a curve, fewer where there are many: results of 40 detectors on 20 sets stay small."""
CLASS_METRICS = ("precision", "recall", "f1", "iou", "dice")


@value
class Ranked:
    """The ranks of one score over in- and out-of-distribution rows."""

    of: View
    id_test: str
    """Name of the in-distribution split; rows of any other count as out-of-distribution."""
    room: int
    """Most distinct scores; the same for all sets, so that the ID side is counted once."""

    def passes(self, schema: Schema) -> Passes[Ranks]:
        results = yield {"ranks": ranks_of(schema, self.of, Outside(self.id_test), self.room)}
        return results["ranks"]  # type: ignore[no-any-return]


@value
class LabelCounts:
    """Rows of each class (k,), void ones left out."""

    def passes(self, schema: Schema) -> Passes[Any]:
        results = yield {"counts": Marginals(of=Labels(), by=Labels())}
        return results["counts"].truth


@value
class Tabled:
    """The scores of a detector, row by row."""

    of: View

    def passes(self, schema: Schema) -> Passes[RowTable]:
        results = yield {"rows": Rows(self.of)}
        return results["rows"]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Sets:
    """The splits of an evaluation: in-distribution, and out-of-distribution ones by group."""

    id_test: Split
    ood: Mapping[str, Sequence[Split]]
    """Group (near, far, csid) -> splits."""

    @property
    def all(self) -> tuple[Split, ...]:
        """Every split, the in-distribution one first."""
        return (self.id_test, *(split for group in self.ood.values() for split in group))


@dataclass
class Evaluation:
    """The sections of a report that come from scores."""

    scores: list[dict[str, Any]] = field(default_factory=list)
    histograms: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    classification: dict[str, Any] | None = None
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    """Per group, set and metric, which detectors cannot be told from the best."""
    agreement: dict[str, Any] | None = None
    """Rank correlation between detectors."""
    tables: dict[str, Mapping[str, RowTable]] = field(default_factory=dict)
    """Split -> detector -> scores, where they were asked for."""

    def __repr__(self) -> str:
        lines = [
            f"{row['detector']} on {row['ood']}: "
            + ", ".join(f"{name} {number['value']:.4f}" for name, number in row["metrics"].items())
            for row in self.scores
        ]
        return "\n".join(["Evaluation", *lines])

    def value(self, detector: str, ood: str, metric: str) -> float:
        """Return one number of the table."""
        rows = {(row["detector"], row["ood"]): row["metrics"] for row in self.scores}
        if metric not in rows.get((detector, ood), ()):
            known = "; ".join(f"{name} on {split}" for name, split in rows)
            numbers = ", ".join(next(iter(rows.values()), ()))
            raise UnknownNameError(
                f"no {metric!r} of {detector!r} on {ood!r}; there are {numbers or 'no numbers'} "
                f"of {known or 'no set'}"
            )
        return float(rows[detector, ood][metric]["value"])


def jobs(
    views: Mapping[str, View], sets: Sets, logits: View | None, *, tables: bool
) -> dict[str, Job]:
    """Return the jobs of an evaluation of score views by detector id.

    ``logits`` adds the classification of the in-distribution rows; ``tables`` keeps every score.
    Raises :class:`ConfigError` for sets of one name, and for near or far sets that are not
    out-of-distribution.
    """
    _check(sets)
    room = ranks_of(concatenated(sets.all), next(iter(views.values()))).max_rows
    inside = sets.id_test
    made = {
        _pair(name, split): Job(Ranked(view, inside.name, room), {TRAIN: (inside, split)}, name)
        for name, view in views.items()
        for split in sets.all[1:]
    }
    if tables:
        made |= {
            _table(detector, split): Job(Tabled(view), {TRAIN: (split,)}, detector)
            for detector, view in views.items()
            for split in sets.all
        }
    if logits is not None and "labels" in sets.id_test.schema.arrays:
        made["classification"] = Job(
            ConfusionMatrix(of=Predicted(logits)), {TRAIN: (sets.id_test,)}
        )
    return made


def collect(
    outcomes: Mapping[str, Any],
    views: Mapping[str, View],
    sets: Sets,
    baselines: Sequence[str] = (),
) -> Evaluation:
    """Return the evaluation from the outcomes of :func:`jobs`; a baseline is never the best."""
    found = Evaluation()
    points = max(
        LEAST_POINTS, min(CURVE_POINTS, POINTS_IN_ALL // max(1, len(views) * (len(sets.all) - 1)))
    )
    for detector in views:
        sides: dict[str, Ranks] = {}
        shifted = [outcomes[_pair(detector, split)] for split in sets.ood.get(CSID, ())]
        for group, splits in sets.ood.items():
            for split in splits:
                ranks: Ranks = outcomes[_pair(detector, split)]
                sides[sets.id_test.name] = one_side(ranks, "id")
                sides[split.name] = one_side(ranks, "ood")
                found.scores.append(_score(detector, split.name, group, ranks, shifted))
                curve = roc_curve(ranks, points)
                found.curves.append(
                    {"detector": detector, "ood": split.name,
                     "fpr": curve.fpr.tolist(), "tpr": curve.tpr.tolist()}
                )  # fmt: skip
        bins = histogram(sides, HISTOGRAM_BINS)
        counts = {name: column.tolist() for name, column in bins.counts.items()}
        found.histograms.append(
            {"detector": detector, "edges": bins.edges.tolist(), "counts": counts,
             "scale": bins.scale, "beyond": {name: [*ends] for name, ends in bins.beyond.items()}}
        )  # fmt: skip
    if "classification" in outcomes:
        found.classification = _classification(outcomes["classification"], sets.id_test.name)
    found.tables = {
        split.name: {name: outcomes[_table(name, split)] for name in views}
        for split in sets.all
        if _table(next(iter(views)), split) in outcomes
    }
    if found.tables:
        scored = _scored(outcomes, list(views), sets, found.tables)
        found.comparisons = compared(scored, [name for name in views if name not in baselines])
        found.agreement = agreement(scored)
    return found


def _scored(
    outcomes: Mapping[str, Any],
    detectors: Sequence[str],
    sets: Sets,
    tables: Mapping[str, Mapping[str, RowTable]],
) -> Scored:
    outside = sets.all[1:]
    return Scored(
        detectors,
        tables[sets.id_test.name],
        {split.name: tables[split.name] for split in outside},
        {
            (name, split.name): outcomes[_pair(name, split)]
            for name in detectors
            for split in outside
        },
        {  # on covariate-shifted rows 50 % is best, not the highest
            group: [split.name for split in splits]
            for group, splits in sets.ood.items()
            if group != CSID
        },
    )


def _check(sets: Sets) -> None:
    names = [split.name for split in sets.all]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two sets of the evaluation are called {', '.join(twice)}; give every set its own name"
        )
    for group in ("near", "far"):
        for split in sets.ood.get(group, ()):
            if not split.is_ood:
                raise ConfigError(
                    f"{group}: {split.name} is in-distribution by its name; name it "
                    f"ood/{group}/NAME, or pass its arrays"
                )


def _pair(detector: str, split: Split) -> str:
    return f"{detector} on {split.name}"


def _table(detector: str, split: Split) -> str:
    return f"{detector}: scores of {split.name}"


def _score(
    detector: str, ood: str, group: str, ranks: Ranks, shifted: Sequence[Ranks]
) -> dict[str, Any]:
    numbers = dict(ranking_metrics(ranks))
    if shifted and group != CSID:
        numbers |= full_spectrum(ranks, shifted)
    return {
        "detector": detector,
        "ood": ood,
        "group": group,
        "n_id": int(ranks.negatives.sum()),
        "n_ood": int(ranks.positives.sum()),
        "metrics": {name: estimated(number) for name, number in numbers.items()},
    }


def estimated(number: Any) -> dict[str, Any]:
    """Return an estimate as ``results.json`` holds it."""
    kept = {name: getattr(number, name) for name in ("value", "lower", "upper", "exact")}
    return kept | ({"reason": number.reason} if number.reason else {})


def _classification(table: ConfusionTable, split: str) -> dict[str, Any]:
    counts = table.marginals
    each = {name: class_metric(name, counts, average="none") for name in CLASS_METRICS}
    overall = {"accuracy": accuracy(counts), "balanced_accuracy": balanced_accuracy(counts)}
    overall |= {
        f"{name}_macro": class_metric(name, counts)[f"{name}_mean"] for name in CLASS_METRICS
    }
    return {
        "split": split,
        "rows": int(table.counts.sum()),
        "overall": {name: estimated(number) for name, number in overall.items()},
        "per_class": [
            {"class": c, "support": int(counts.truth[c])}
            | {name: float(each[name][f"{name}_{c}"]) for name in CLASS_METRICS}
            for c in range(len(counts.truth))
        ],
        "confusion": table.counts.tolist(),
        "logits": "",
    }
