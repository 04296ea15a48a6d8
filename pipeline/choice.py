"""Which metrics of which classes are wanted, and the keys that their numbers go by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline import metrics, tasks
from pipeline.content import digest, replaced
from pipeline.errors import ConfigError
from pipeline.procedure import Metric
from pipeline.views import Every

One = str | Metric | type
Metrics = One | Iterable[One] | Mapping[str, One]
EVERY_LABEL: Mapping[str, Any] = {"where": Every()}
"""Option of metrics: a label below 0 is void only where it is ignored, else it is refused."""
WEIGHTS = "weights"
"""Array of the weights of rows."""
OTHER_OPTIONS: Mapping[str, str] = {
    "average": "an option of one metric: give a value such as ff.metrics.IoU(average='micro')",
    "ignore_index": "called ignore here",
    "k": "called top_k here",
    "num_classes": "called classes here",
    "num_labels": "called classes here",
    "sample_weight": "given to each update: weighted=True, and update(..., weights=)",
}
"""Options of other libraries, and what is said of them."""
RESERVED = frozenset({"mean", "micro", "weighted", "classes_averaged"})
"""What keys of averages end in."""


@dataclass(frozen=True)
class Choice:
    """Metrics by name, over classes that may have names."""

    metrics: Mapping[str, Metric]
    classes: int
    class_names: tuple[str, ...]
    task: str

    @property
    def declaration(self) -> str:
        """Digest of all of it: what two sets of states must share to be merged."""
        return digest([self.task, self.classes, self.class_names, sorted(self.metrics.items())])

    def check_weights_given(self, batch: str) -> None:
        """Raise :class:`ConfigError` if a batch has no weights, and some metric counts by them."""
        asking = [
            name for name, one in self.metrics.items() if getattr(one, "weights", None) == WEIGHTS
        ]
        if asking:
            raise ConfigError(
                f"{batch}: {', '.join(asking)} count rows by their weights; pass weights= to "
                "update, one number for each row"
            )

    def check_weighted(self) -> None:
        """Raise :class:`ConfigError` naming the metrics that do not count rows by weights."""
        without = [
            name for name, one in self.metrics.items() if getattr(one, "weights", None) != WEIGHTS
        ]
        if without:
            raise ConfigError(
                f"weights: {', '.join(without)} would not count them; leave weights out, or give "
                "only metrics that have them: names with weighted=True, values with "
                "weights='weights'"
            )

    def keyed(self, outcomes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers of all metrics by key, from the outcome of each by name.

        Keys begin with the name of the metric, and end in the name of the class where they are of
        one. A metric that makes one object, such as a confusion matrix, has it under its name.
        Raises :class:`ConfigError` where two numbers would have one key.
        """
        found: dict[str, Any] = {}
        for name, outcome in outcomes.items():
            stem = metrics.stem_of(self.metrics[name])
            whole = outcome if isinstance(outcome, Mapping) else {stem: outcome}
            for own, number in whole.items():
                key = self._key(name, stem, own)
                if key in found:
                    raise ConfigError(
                        f"two numbers would be called {key}; give {name} another name, as in "
                        "Collection({'mine': metric})"
                    )
                found[key] = number
        return found

    def _key(self, name: str, stem: str, own: str) -> str:
        if own != stem and not own.startswith(f"{stem}_"):
            return own if name == stem else f"{name}_{own}"
        before, _, last = own[len(stem) :].rpartition("_")
        if self.class_names and last.isdecimal():
            return f"{name}{before}_{self.class_names[int(last)]}"
        return name + own[len(stem) :]


def declared(choice: Choice) -> dict[str, str]:
    """Return what is declared, option by option, to name what differs between two."""
    found = {"classes": str(choice.class_names or choice.classes), "task": choice.task}
    for name, metric in choice.metrics.items():
        found[name] = type(metric).__name__
        if dataclasses.is_dataclass(metric):
            fields = dataclasses.fields(metric)
            found |= {f"{name}.{f.name}": repr(getattr(metric, f.name)) for f in fields}
    return found


def differing(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Say how two declarations differ: the first few options that do."""
    keys = [key for key in {**ours, **theirs} if theirs.get(key) != ours.get(key)]
    words = [f"{key} {theirs.get(key, 'none')}, not {ours.get(key, 'none')}" for key in keys[:3]]
    more = f"; {len(keys) - 3} more" if len(keys) > 3 else ""
    return "; ".join(words) + more


def choice(
    given: Metrics,
    *,
    classes: int | Sequence[str] | None,
    task: str,
    ignore: int | Sequence[int],
    top_k: int,
    threshold: float,
    weighted: bool = False,
    others: Mapping[str, Any] | None = None,
) -> Choice:
    """Return the metrics that ``given`` names: a name, a value, several, or a mapping to one.

    Names are made with the options given here where they have them, and values take those that they
    leave at their defaults: ``IoU(average="none")`` ignores what the others ignore. All must be of
    one task. With ``weighted`` every metric must count rows by their weights. ``others`` are
    options that are none here. Without ``classes`` a binary task has 2.
    Raises :class:`ConfigError` for two metrics of one name, :class:`TypeError` for other options.
    """
    for option in others or {}:
        said = OTHER_OPTIONS.get(option, "no option of a collection, nor of measure")
        raise TypeError(f"{option}: it is {said}")
    number, class_names = _classes(classes, task)
    check_task(task, number)
    # A threshold of 0.5 is one of probabilities, and so is what stands beside it.
    kind = "logits" if task == "multiclass" else "probabilities"
    shared: dict[str, Any] = {
        "task": task, "ignore": ignore, "threshold": threshold, "kind": kind, **EVERY_LABEL
    }  # fmt: skip
    if top_k != 1:
        shared["top_k"] = top_k
    if weighted:
        shared["weights"] = WEIGHTS
    chosen = Choice(_by_name(given, shared), number, class_names, task)
    if weighted:
        chosen.check_weighted()
    return chosen


def check_task(task: str, classes: int) -> None:
    """Raise :class:`ConfigError` for a task that is unknown or does not go with ``classes``."""
    tasks.check_task(task)
    if classes < (1 if task == "multilabel" else 2):
        raise ConfigError(f"classes: {classes}; {task} metrics need 2 or more")
    if task == "binary" and classes != 2:
        raise ConfigError(f"classes: {classes}; binary metrics have 2, of which 1 is positive")


def _classes(given: int | Sequence[str] | None, task: str) -> tuple[int, tuple[str, ...]]:
    if given is None:
        if task == "binary":
            return 2, ()
        raise ConfigError(f"classes: a {task} task needs their number, or a list of their names")
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        return int(given), ()
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"classes: {given!r}; expected their number, or a list of their names")
    names = tuple(str(name) for name in given)
    if len(set(names)) < len(names):
        raise ConfigError(f"classes: two are called {', '.join(_twice(names))}")
    if taken := sorted(set(names) & RESERVED):
        raise ConfigError(
            f"classes: {', '.join(taken)} would be the key of an average; name it otherwise"
        )
    return len(names), names


def _by_name(given: Metrics, shared: Mapping[str, Any]) -> dict[str, Metric]:
    if isinstance(given, Mapping):
        pairs = [(str(name), _metric(one, shared)) for name, one in given.items()]
    else:
        single = isinstance(given, (str, type)) or hasattr(given, "passes")
        several: Iterable[Any] = [given] if single else given  # type: ignore[assignment]
        made = [_metric(one, shared) for one in several]
        pairs = [(metrics.stem_of(metric), metric) for metric in made]
    chosen = dict(pairs)
    if not chosen:
        raise ConfigError(f"no metric was named; known: {', '.join(metrics.names())}")
    if twice := _twice([name for name, _ in pairs]):
        raise ConfigError(
            f"two metrics are called {', '.join(twice)}; give a mapping from name to metric, or "
            "several averages to one metric"
        )
    return chosen


def _metric(given: Any, shared: Mapping[str, Any]) -> Metric:
    if isinstance(given, str):
        known = {field.name for field in dataclasses.fields(metrics.named(given))}
        made: Metric = metrics.make(given, **{k: v for k, v in shared.items() if k in known})
        return made
    if isinstance(given, type) or not callable(getattr(given, "passes", None)):
        raise ConfigError(
            f"{given!r} is not a metric; give a name such as 'iou', or a value such as "
            "ff.metrics.IoU(average='none')"
        )
    metric = _with_shared(given, shared)
    task = getattr(metric, "task", shared["task"])
    if task != shared["task"]:
        raise ConfigError(
            f"{metrics.name_of(given)} is {task}, the others are {shared['task']}; "
            f"give it task={shared['task']!r}, or another collection"
        )
    return metric


def _with_shared(metric: Any, shared: Mapping[str, Any]) -> Metric:
    """Return a value with the shared options that it leaves at their defaults.

    One that says its task says what its scores are, too: ``ECE(task="binary")`` is of logits.
    """
    left = {
        field.name: shared[field.name]
        for field in dataclasses.fields(metric)
        if field.name in shared and getattr(metric, field.name) == field.default
    }
    if "kind" in left and "task" not in left:
        del left["kind"]
    return replaced(metric, **left)  # type: ignore[no-any-return]


def _twice(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
