"""Which detectors of an evaluation differ from the best, and how alike their rankings are.

Both come from scores that are there already, read block by block: nothing is scored again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.metrics.paired import (
    Paired,
    Placements,
    bootstrap_fpr,
    delong,
    differences,
    holm,
    looked_up,
)
from pipeline.partials import RowTable
from pipeline.statistics import Ranks

__all__ = ["LEVEL", "METHODS", "Scored", "agreement", "compared"]

Floats = np.ndarray[Any, np.dtype[np.float64]]

LEVEL = 0.05
"""Chance that any detector of a column is wrongly told from the best."""
METHODS = {"auroc": "DeLong", "fpr95": "bootstrap"}
REPLICATES = 1000
BOOTSTRAP_NBYTES = 256 * 2**20
"""Most memory for the sorted scores of a bootstrap; rates of larger evaluations are not tested."""


@dataclass(frozen=True)
class Scored:
    """The scores of D detectors over one in-distribution split and sets beside it."""

    detectors: Sequence[str]
    inside: Mapping[str, RowTable]
    """Detector -> scores of the in-distribution rows."""
    outside: Mapping[str, Mapping[str, RowTable]]
    """Set -> detector -> scores."""
    ranks: Mapping[tuple[str, str], Ranks]
    """(detector, set) -> ranks of the in-distribution rows and those of the set."""
    groups: Mapping[str, Sequence[str]]
    """Group -> sets."""

    def columns(self, tables: Mapping[str, RowTable]) -> Iterator[Floats]:
        """Yield the scores of a split block by block, one column per detector."""
        for parts in zip(*(tables[name] for name in self.detectors), strict=True):
            yield np.stack(parts, axis=1)

    @cached_property
    def comparable(self) -> list[str]:
        """Sets whose rows, and the in-distribution ones, all count for every detector.

        Rows that are not finite may be left out, by one detector and not by the next.
        """
        rows = {name: _sound_rows(self.columns(tables)) for name, tables in self.outside.items()}
        inside = _sound_rows(self.columns(self.inside))
        return [
            name for name, outside in rows.items()
            if all(_sides(ranks) == (inside, outside) for ranks in self.ranks_on(name))
        ]  # fmt: skip

    def nbytes(self, sets: Sequence[str]) -> int:
        """Return the memory that a bootstrap over sets takes for the scores."""
        sides = [_sides(self.ranks_on(name)[0]) for name in sets]
        rows = sides[0][0] + sum(outside for _, outside in sides)
        return 12 * rows * len(self.detectors)

    def all_columns(self, tables: Mapping[str, RowTable]) -> Floats:
        """Return the scores of all rows of a split at once."""
        return np.concatenate(list(self.columns(tables)))

    def ranks_on(self, name: str) -> list[Ranks]:
        """Return the ranks of each detector over the in-distribution rows and a set."""
        return [self.ranks[detector, name] for detector in self.detectors]

    def areas(self, sets: Sequence[str]) -> Paired:
        """Return the AUROC of each detector, averaged over sets."""
        outside = [self.columns(self.outside[name]) for name in sets]
        return delong([self.ranks_on(name) for name in sets], self.columns(self.inside), outside)


def compared(scored: Scored, candidates: Sequence[str]) -> list[dict[str, Any]]:
    """Return, per group, set and metric, the best detector and how the others differ from it.

    The best is one of ``candidates``. ``tied`` says that a detector cannot be told from it at
    :data:`LEVEL`, by Holm's correction for the number of detectors. Groups of several sets are
    compared by the mean over their sets. A set is left out where a side has fewer than two rows, or
    some row counts for some detectors only.
    """
    grouped = {name for members in scored.groups.values() for name in members}
    if len(scored.detectors) < 2 or not candidates:
        return []
    sets = [
        name for name in scored.comparable
        if name in grouped and min(_sides(scored.ranks_on(name)[0])) > 1
    ]  # fmt: skip
    if not sets:
        return []
    rates = None
    if scored.nbytes(sets) <= BOOTSTRAP_NBYTES:
        outside = (scored.all_columns(scored.outside[name]) for name in sets)  # one at a time
        rates = bootstrap_fpr(scored.all_columns(scored.inside), outside, replicates=REPLICATES)
    found = []
    for over, group, members in _columns(scored.groups, sets):
        column = {"over": over, "group": group, "sets": members}
        found.append(column | _against_best(scored, candidates, "auroc", scored.areas(members)))
        if rates is not None:
            paired = rates.over([sets.index(name) for name in members])
            found.append(column | _against_best(scored, candidates, "fpr95", paired))
    return found


def _sound_rows(blocks: Iterator[Floats]) -> int:
    """Return the number of rows, or -1 where a score is NaN."""
    rows = 0
    for block in blocks:
        if np.isnan(block).any():
            return -1
        rows += len(block)
    return rows


def _sides(ranks: Ranks) -> tuple[int, int]:
    return int(np.sum(ranks.negatives)), int(np.sum(ranks.positives))


def _columns(
    groups: Mapping[str, Sequence[str]], sets: Sequence[str]
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what is compared: name, group and sets of each group of several, and of each set."""
    for group, members in groups.items():
        if len(members) > 1 and set(members) <= set(sets):
            yield group, group, list(members)
        yield from ((name, group, [name]) for name in members if name in sets)


def _against_best(
    scored: Scored, candidates: Sequence[str], metric: str, paired: Paired
) -> dict[str, Any]:
    sign = -1.0 if metric.startswith("fpr") else 1.0
    names = list(scored.detectors)
    best = max((names.index(name) for name in candidates), key=lambda r: sign * paired.values[r])
    others = [r for r in range(len(names)) if r != best]
    found = differences(paired, best)
    told = holm([found[r].p for r in others], LEVEL)
    return {
        "metric": metric,
        "method": METHODS[metric],
        "best": names[best],
        "others": [
            {"detector": names[r], "difference": found[r].value, "error": found[r].error,
             "p": found[r].p, "tied": not apart}
            for r, apart in zip(others, told, strict=True)
        ],
    }  # fmt: skip


def agreement(scored: Scored) -> dict[str, Any] | None:
    """Return Spearman's rank correlation between detectors over all rows of an evaluation.

    Ties have their middle rank. Sets of which some row counts for some detectors only are
    left out. None where nothing is left; a pair of which one detector gives every row the same
    score is NaN.
    """
    if not scored.comparable:
        return None
    places = [_places_among_all(scored, name) for name in scored.detectors]
    size = len(places)
    rows, scatter = 0, np.zeros((size, size))
    for tables in (scored.inside, *(scored.outside[name] for name in scored.comparable)):
        for block in scored.columns(tables):
            centred = looked_up(places, block) - 0.5  # the mean of middle ranks over n is 1/2
            rows += len(block)
            scatter += centred.T @ centred
    spread = np.sqrt(np.diag(scatter))
    with np.errstate(invalid="ignore", divide="ignore"):
        matrix = np.clip(scatter / np.outer(spread, spread), -1.0, 1.0)
    return {
        "detectors": list(scored.detectors), "rows": rows, "spearman": matrix.tolist()
    }  # fmt: skip


def _places_among_all(scored: Scored, detector: str) -> Placements:
    """Return the middle ranks over n of the scores of a detector among all rows."""
    values, counts = [], []
    for place, name in enumerate(scored.comparable):
        ranks = scored.ranks[detector, name]
        values.append(arrays.to_host(ranks.values))
        sides = (ranks.positives, ranks.negatives) if place == 0 else (ranks.positives,)
        counts.append(sum(arrays.to_host(side) for side in sides))
    distinct, places = np.unique(np.concatenate(values), return_inverse=True)
    rows = np.zeros(len(distinct), np.int64)
    np.add.at(rows, places, np.concatenate(counts))
    doubled = 2 * np.cumsum(rows) - rows
    return Placements(distinct, doubled / (2 * max(1, int(rows.sum()))))
