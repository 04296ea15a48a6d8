"""Two results files side by side: every number of either, and every fact that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import document
from pipeline.errors import ConfigError
from pipeline.report.schema import DetectorFacts, Results, Value
from pipeline.report.tables import LABELS, Cell, cell

DEFAULT = "default"
NAMING = ("id", "name", "split")
"""Keys that name an entry of a list in a job: it is compared with its namesake."""


@dataclass(frozen=True)
class Number:
    """One metric of a detector on a set, or of the classification, in both runs."""

    detector: str
    """Its id, or name(…) where the id is another in each run; empty for the classification."""
    over: str
    """The split whose rows it is of."""
    metric: str
    before: Value | None
    """None where the run does not have it."""
    after: Value | None

    @property
    def cells(self) -> tuple[Cell, Cell]:
        """Both numbers as tables print them."""
        lacking = Cell(None, reason="the run does not have it")
        before, after = (cell(one) if one else lacking for one in (self.before, self.after))
        return before, after

    @property
    def difference(self) -> float | None:
        """After minus before, in percentage points; None where either is undefined."""
        before, after = (one.value for one in self.cells)
        return None if before is None or after is None else round(100 * (after - before), 9)

    @property
    def bound(self) -> float:
        """How far the difference may be off, in percentage points: 0 for exact numbers."""
        return 100 * sum(one.bound for one in self.cells)

    @property
    def lost(self) -> bool:
        """Whether the later run has no number where the earlier one has."""
        before, after = (one.value for one in self.cells)
        return before is not None and after is None

    def to_dict(self) -> dict[str, Any]:
        """Return the number as JSON values; shares in [0, 1], the difference in points."""
        named = {"detector": self.detector or None, "set": self.over, "metric": self.metric}
        both = {"before": self.before, "after": self.after}
        return named | both | {"difference_points": self.difference, "bound_points": self.bound}


@dataclass(frozen=True)
class Fact:
    """Something that is not the same in both runs; None where one of them lacks it."""

    about: str
    """config, data or version."""
    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Comparison:
    """An earlier run and a later one."""

    before: Results
    after: Results
    numbers: Sequence[Number]
    """Those that both runs have the detector and the set of."""
    alone: Mapping[str, Sequence[str]]
    """What only one run has: ``detectors of A``, ``sets of B`` and so on."""
    lost: Sequence[Number]
    """Numbers of detectors and sets that only the earlier run has."""
    facts: Sequence[Fact]

    def about(self, what: str) -> list[Fact]:
        """Return the facts about config, data or version that differ."""
        return [fact for fact in self.facts if fact.about == what]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        runs = {"A": self.before, "B": self.after}
        return {
            "runs": {of: {"name": one["name"], "run": one["run"]} for of, one in runs.items()},
            "numbers": [number.to_dict() for number in (*self.numbers, *self.lost)],
            "only": {what: list(names) for what, names in self.alone.items()},
            "differs": [vars(fact) for fact in self.facts],
        }


def compare(before: Results, after: Results) -> Comparison:
    """Compare the results of two runs; detectors are matched by id.

    Where each run has one detector of a name left, these are compared too: options are part of
    most ids.
    """
    pairs = _pairs(before, after)
    earlier, later = _numbers(before), _numbers(after)
    both: list[Number] = []
    lost: list[Number] = []
    seen = set()
    for (detector, over, metric), number in earlier.items():
        twin = pairs.get(detector, detector)
        seen.add((twin, over, metric))
        shown = _shown(before, detector, twin)
        found = Number(shown, over, metric, number, later.get((twin, over, metric)))
        here = detector in pairs and over in _splits(after)
        (both if here else lost).append(found)
    names = {twin: name for name, twin in pairs.items()}
    for (detector, over, metric), number in later.items():
        if (detector, over, metric) not in seen and detector in names and over in _splits(before):
            shown = _shown(before, names[detector], detector)
            both.append(Number(shown, over, metric, None, number))
    alone = {
        "detectors of A": [name for name in _ids(before) if name not in pairs],
        "detectors of B": [name for name in _ids(after) if name not in names],
        "sets of A": [over for over in _splits(before) if over not in _splits(after)],
        "sets of B": [over for over in _splits(after) if over not in _splits(before)],
    }
    options = _options(before, after, pairs)
    return Comparison(before, after, both, alone, lost, [*options, *_facts(before, after)])


def _shown(results: Results, detector: str, twin: str) -> str:
    """Return what a detector is called that may have another id in the other run."""
    kinds = {one["id"]: one["name"] for one in results["detectors"]}
    return detector if twin == detector else f"{kinds[detector]}(…)"


def _options(before: Results, after: Results, pairs: Mapping[str, str]) -> Iterator[Fact]:
    """Yield the options in which detectors differ that both runs have."""
    later = {one["id"]: _chosen(one) for one in after["detectors"]}
    for one in before["detectors"]:
        name, earlier = one["id"], _chosen(one)
        if name in pairs:
            there = later[pairs[name]]
            for key in dict.fromkeys((*earlier, *there)):
                values = (earlier.get(key, DEFAULT), there.get(key, DEFAULT))
                if values[0] != values[1]:
                    yield Fact("config", f"{_shown(before, name, pairs[name])}.{key}", *values)


def _chosen(detector: DetectorFacts) -> dict[str, Any]:
    own = {key: detector.get(key) for key in ("preset", "fit_split") if detector.get(key)}
    return {**own, **detector["options"]}


def _ids(results: Results) -> list[str]:
    return [detector["id"] for detector in results["detectors"]]


def _splits(results: Results) -> list[str]:
    """Return the sets that a run has numbers of, the in-distribution one of the classes last."""
    classes = results["classification"]
    sets = [score["ood"] for score in results["scores"]]
    return list(dict.fromkeys(sets + ([classes["split"]] if classes else [])))


def _pairs(before: Results, after: Results) -> dict[str, str]:
    """Return the detector of the later run for each of the earlier one that has a match."""
    earlier = {one["id"]: one["name"] for one in before["detectors"]}
    later = {one["id"]: one["name"] for one in after["detectors"]}
    pairs = {"": ""} | {name: name for name in earlier if name in later}
    for name, kind in earlier.items():
        here = [other for other in earlier if other not in later and earlier[other] == kind]
        there = [other for other in later if other not in earlier and later[other] == kind]
        if name not in later and len(here) == len(there) == 1:
            pairs[name] = there[0]
    return pairs


def _numbers(results: Results) -> dict[tuple[str, str, str], Value]:
    """Return every number by detector, set and metric, those that have a label in that order."""
    found = {
        (score["detector"], score["ood"], metric): number
        for score in results["scores"]
        for metric, number in score["metrics"].items()
    }
    if classes := results["classification"]:
        found |= {("", classes["split"], name): n for name, n in classes["overall"].items()}
    order = {metric: place for place, metric in enumerate(LABELS)}
    return dict(sorted(found.items(), key=lambda pair: order.get(pair[0][2], len(order))))


def _facts(before: Results, after: Results) -> Iterator[Fact]:
    kinds = {"config": _config, "data": _data, "version": _versions}
    for about, facts_of in kinds.items():
        earlier, later = facts_of(before), facts_of(after)
        for key in dict.fromkeys((*earlier, *later)):
            if earlier.get(key) != later.get(key):
                yield Fact(about, key, earlier.get(key), later.get(key))


def _config(results: Results) -> dict[str, Any]:
    text = results["provenance"]["config"]
    try:
        tree = document.parse(text, "config").tree
        return {key: of for key, of in _leaves(tree, "") if not key.startswith("detectors")}
    except ConfigError:  # of a run that was started from Python: whatever it says
        return {"config": text}


def _leaves(tree: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of a job by their keys, as in ``sources[id/train].batch``."""
    if isinstance(tree, dict) and tree:
        for name, entry in tree.items():
            yield from _leaves(entry, f"{key}.{name}".lstrip("."))
    elif isinstance(tree, list) and any(isinstance(entry, dict) for entry in tree):
        names = [_name(entry, place) for place, entry in enumerate(tree)]
        for place, (name, entry) in enumerate(zip(names, tree, strict=True)):
            yield from _leaves(entry, f"{key}[{name if names.count(name) == 1 else place}]")
    else:
        yield key, tree


def _name(entry: Any, place: int) -> str:
    named = [entry[key] for key in NAMING if entry.get(key)] if isinstance(entry, dict) else []
    return str(named[0]) if named else str(place)


def _data(results: Results) -> dict[str, Any]:
    found: dict[str, Any] = {"store": results["provenance"]["store"]}
    for split in results["data"]:
        of = split["split"]
        found |= {f"{of} {key}": split[key] for key in ("role", "rows", "void")}
        for name, array in split["arrays"].items():
            found[f"{of} {name}"] = f"{array['shape']} {array['dtype']}"
    checksums = results["provenance"]["checksums"]
    return found | {f"{of} checksum": checksum for of, checksum in checksums.items()}


def _versions(results: Results) -> dict[str, Any]:
    known = results["provenance"]
    own = {"featfold": known["featfold"], "python": known["python"], "platform": known["platform"]}
    return own | known["versions"]
