"""Metrics after the fact: any metric of every past epoch of a run, without the model or the data.

What every rank kept at every moment are small integers. Metrics, averages, ignored and merged
classes that nobody had asked for in training follow from them exactly.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import metrics as known_metrics
from pipeline.choice import Choice, Metrics, choice
from pipeline.collection import Collection
from pipeline.content import replaced
from pipeline.ddp.derive import kept
from pipeline.ddp.files import RUNNING, Moment, Partial, Run, each_moment
from pipeline.ddp.kept import MATRIX, merged
from pipeline.ddp.lineage import lineage
from pipeline.errors import ConfigError, IncompleteError, MissingInputError

__all__ = ["Epoch", "after"]

Class = int | str


class Epoch(NamedTuple):
    """The numbers of one moment of a run."""

    moment: Moment
    epoch: int | None
    """Epoch of training, from 0."""
    attempt: int
    rows: int
    """Rows that count, over all ranks."""
    numbers: dict[str, Any]
    """Estimates by key; prefixes as in training."""


def after(
    run: str | Path | Run,
    metrics: Metrics | None = None,
    *,
    average: str | Sequence[str] | None = None,
    ignore: Class | Sequence[Class] = (),
    merge_classes: Mapping[str, Sequence[Class]] | None = None,
    phase: str | None = None,
    collection: str | None = None,
    attempt: int | None = None,
    sanity: bool = False,
    group: Sequence[int] | None = None,
) -> list[Epoch]:
    """Return metrics of every moment that a run has kept, in order.

    ``metrics`` as of :class:`ff.metrics.Collection`; by default those of the training itself.
    ``average`` and ``ignore`` are options of metrics given by name; ``merge_classes`` maps new
    names to the classes, by number or name, that become one: ``ignore`` then speaks of classes
    after the merge, and labels that were outside of the classes stay ignored. ``phase``,
    ``collection`` and ``attempt`` choose moments, ``sanity`` takes in checks before training;
    ``group`` chooses among process groups by their ranks in the world.

    By default the moments are those of the latest training and of what it goes on from, up to the
    checkpoint it went on with, with evaluations of these weights; each is of the latest attempt
    that is complete. What a resumption did over is left out; moments that no attempt completed,
    and attempts of which nothing counts, are left out with a warning.

    Raises :class:`ConfigError` for what does not follow from what was kept, and
    :class:`MissingInputError` where the run has no such moment.
    """
    run = run if isinstance(run, Run) else Run(run)
    _refuse_no_run(run.path)
    ignored = [ignore] if isinstance(ignore, int | str) else list(ignore)
    asked = _Asked(metrics, average, ignored, merge_classes or {})
    counts = lineage(run)
    found, others, taken = [], set[int](), set[int]()
    for moment, attempts in each_moment(run):
        wanted = (
            moment.phase != RUNNING
            and (phase is None or moment.phase == phase)
            and (collection is None or moment.collection == collection)
            and (sanity or not moment.sanity)
            and (attempt is None or attempt in attempts)
        )
        if not wanted:
            continue
        chosen = counts.counted(moment, attempts) if attempt is None else [attempt]
        others |= set(attempts)
        taken |= set(chosen)
        if not chosen:
            continue
        try:
            partials = run.gathered(moment, chosen, group=group)
        except IncompleteError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
            continue
        found.append(_epoch(partials, asked))
    if attempt is None and (left := sorted(others - taken)):
        warnings.warn(
            f"left out: attempts {left} of {run.path}, of weights that are not of the latest "
            "training, nor of what it goes on from; name one with attempt=",
            stacklevel=2,
        )
    if not found:
        raise MissingInputError(
            f"{run.path} holds no complete moment of phase {phase or 'any'}, collection "
            f"{collection or 'any'}, attempt {attempt or 'any'}; it has {run.listed()}"
        )
    return found


def _refuse_no_run(path: Path) -> None:
    """Raise :class:`MissingInputError` for what is not there, or holds runs and is none."""
    if not path.is_dir():
        raise MissingInputError(f"{path} is not there; give the folder of a run")
    runs = sorted({attempt.parent.name for attempt in path.glob("*/attempt-*")})
    if runs and not any(path.glob("attempt-*")):
        raise MissingInputError(
            f"{path} is no run, it holds some; give one of its folders, such as {path / runs[-1]}"
        )


class _Asked(NamedTuple):
    """What is wanted of every moment."""

    metrics: Metrics | None
    average: str | Sequence[str] | None
    ignore: Sequence[Class]
    merge_classes: Mapping[str, Sequence[Class]]


def _epoch(partials: Sequence[Partial], asked: _Asked) -> Epoch:
    first = partials[0]
    total = merged(partials)
    assert total is not None
    where = f"{first.run}, attempt {first.attempt}, {first.moment}"
    numbers = _numbers(total, merged(partials, MATRIX), asked, where)
    rows = sum(partial.about["rows"] for partial in partials)
    return Epoch(first.moment, first.about.get("epoch"), first.attempt, rows, numbers)


def _numbers(
    total: Collection, matrix: Collection | None, asked: _Asked, where: str
) -> dict[str, Any]:
    if asked == _Asked(None, None, [], {}):
        return total.numbers()
    there = kept(total, matrix, where)
    classes: int | tuple[str, ...] = total.choice.class_names or total.choice.classes
    groups = [[one] for one in range(total.choice.classes)]
    if asked.merge_classes:
        classes, groups = _merged_names(total.choice, asked.merge_classes)
        there = there.merged(groups)
    chosen = _choice(asked, total.choice, classes, groups)
    outcomes = {name: there.outcome(metric) for name, metric in chosen.metrics.items()}
    return {total.prefix + key: number for key, number in chosen.keyed(outcomes).items()}


def _choice(
    asked: _Asked, own: Choice, classes: int | tuple[str, ...], groups: Sequence[Sequence[int]]
) -> Choice:
    """Return the metrics wanted, with their options, over the classes there are after a merge."""
    options: dict[str, Any] = {}
    if asked.ignore:
        options["ignore"] = tuple(_number(one, classes, "ignore") for one in asked.ignore)
    if asked.average is not None:
        given = asked.average
        options["average"] = given if isinstance(given, str) else tuple(given)
    wanted: Any = asked.metrics
    if wanted is None:
        wanted = {
            name: replaced(_renumbered(metric, groups, own), **_taken(metric, options))
            for name, metric in own.metrics.items()
        }
    else:
        options["threshold"] = _threshold(own)
        wanted = _named(wanted, {"task": own.task, **options})
    return choice(wanted, classes=classes, task=own.task, ignore=(), top_k=1, threshold=0.5)


def _named(wanted: Any, options: Mapping[str, Any]) -> Any:
    """Return metrics with names replaced by values that have the options; values keep theirs."""
    if isinstance(wanted, str):
        return known_metrics.make(wanted, **_taken(known_metrics.named(wanted), options))
    if isinstance(wanted, Mapping):
        return {name: _named(one, options) for name, one in wanted.items()}
    if isinstance(wanted, list | tuple):
        return [_named(one, options) for one in wanted]
    return wanted


def _taken(metric: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a metric, or a class of them, has; averages are of classes."""
    fields = {field.name for field in dataclasses.fields(metric)}
    if "weighted" not in getattr(metric, "known", ()):  # one number of all classes
        fields.discard("average")
    return {name: option for name, option in options.items() if name in fields}


def _renumbered(metric: Any, groups: Sequence[Sequence[int]], own: Choice) -> Any:
    """Return a metric of training whose ignored classes are those after a merge."""
    ignored = set(getattr(metric, "ignored", ()))
    inside = {one for one in ignored if 0 <= one < own.classes}
    if not inside:
        return metric
    numbers = sorted(ignored - inside)
    for number, group in enumerate(groups):
        if inside.issuperset(group):
            numbers.append(number)
        elif inside.intersection(group):
            raise ConfigError(
                f"merge_classes: {known_metrics.name_of(metric)} ignores classes "
                f"{sorted(inside.intersection(group))}, which would be part of one that counts; "
                "say with ignore which classes do not count after the merge"
            )
    return replaced(metric, ignore=tuple(numbers))


def _threshold(own: Choice) -> float:
    """Return the threshold that predicted classes were taken at in training."""
    found = (getattr(metric, "threshold", None) for metric in own.metrics.values())
    return next((one for one in found if one is not None), 0.5)


def _merged_names(
    own: Choice, groups: Mapping[str, Sequence[Class]]
) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return names and members of the classes after a merge, in order of their first member."""
    if own.task != "multiclass":
        raise ConfigError(f"merge_classes: classes of a {own.task} task cannot become one")
    before = own.class_names or tuple(str(c) for c in range(own.classes))
    members = {
        name: [_number(one, own.class_names or own.classes, "merge_classes") for one in group]
        for name, group in groups.items()
    }
    taken = [one for group in members.values() for one in group]
    if outside := sorted(one for one in taken if not 0 <= one < own.classes):
        raise ConfigError(f"merge_classes: there is no class {outside[0]}; they are {before}")
    if twice := sorted({before[one] for one in taken if taken.count(one) > 1}):
        raise ConfigError(f"merge_classes: {', '.join(twice)} would be part of two classes")
    if empty := [name for name, group in members.items() if not group]:
        raise ConfigError(f"merge_classes: {', '.join(empty)} would have no class")
    if kept := sorted({before[one] for one in range(own.classes) if one not in taken} & {*members}):
        raise ConfigError(
            f"merge_classes: {kept[0]} is a class of its own; name it among those that become one, "
            "or call them otherwise"
        )
    members |= {before[one]: [one] for one in range(own.classes) if one not in taken}
    ordered = sorted(members.items(), key=lambda item: min(item[1]))
    return tuple(name for name, _ in ordered), [group for _, group in ordered]


def _number(given: Class, classes: int | Sequence[str], option: str) -> int:
    if isinstance(given, str):
        names = () if isinstance(classes, int) else tuple(classes)
        if not names:
            raise ConfigError(
                f"{option}: {given!r}, but the classes have no names; give their numbers, 0 to "
                f"{int(str(classes)) - 1}"
            )
        if given not in names:
            raise ConfigError(
                f"{option}: no class is called {given!r}; they are {names or classes}"
            )
        return names.index(given)
    return given
