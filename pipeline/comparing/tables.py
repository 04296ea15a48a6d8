"""A comparison for the terminal: a table for each metric, then what else differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.comparing.differences import Comparison, Fact, Number
from pipeline.comparing.rules import Rule
from pipeline.report import text
from pipeline.report.schema import Results
from pipeline.report.tables import Column, short_names

LEAST_NAME = 10
"""Columns of a terminal that a name has at least."""
PRINTED_POINTS = 0.005
"""Differences below half of the last digit are equal as printed."""
LONGEST_VALUE = 40
SECTIONS = {"config": "config", "data": "data", "version": "versions"}


def shown(comparison: Comparison, *, whole: bool) -> Iterator[RenderableType]:
    """Yield all that differs; ``whole`` lists equal numbers as well."""
    groups: dict[str, list[Number]] = {}
    for number in comparison.numbers:
        title = _column(number).arrowed if number.detector else f"classification of {number.over}"
        groups.setdefault(title, []).append(number)
    names = short_names(number.over for number in comparison.numbers)
    equal = []
    for title, numbers in groups.items():
        listed = [number for number in numbers if whole or _moved(number)]
        count = f"{sum(not _moved(number) for number in numbers)} of {len(numbers)} equal"
        if listed:
            yield _numbers(f"{title}, percent ({count})", listed, names)
        else:
            equal.append(f"{title} ({len(numbers)})")
    if equal:
        yield f"equal: {', '.join(equal)}"
    for what, alone in comparison.alone.items():
        if alone:
            yield f"only {what.replace(' of ', ' in ')}: {', '.join(alone)}"
    for about, title in SECTIONS.items():
        facts = comparison.about(about)
        yield _facts(title, facts) if facts else f"{title}: the same"
    yield _costs(comparison.before, comparison.after)


def verdict(rules: Mapping[Rule, Sequence[Number]]) -> Iterator[str]:
    """Yield a line for every number that breaks a rule, and one for every rule that none breaks."""
    for rule, broken in rules.items():
        if not broken:
            yield f"{rule.text}: kept"
        for number in broken:
            of = f"{number.detector} on {number.over}" if number.detector else number.over
            before, after = (one.text for one in number.cells)
            if number.lost:
                after = "not there" if number.after is None else after
                yield f"{rule.text}: broken by {of}: {before} in A, {after} in B"
            else:
                yield f"{rule.text}: broken by {of}: {before} -> {after} ({_points(number)})"


def _numbers(title: str, numbers: Sequence[Number], names: Mapping[str, str]) -> Table:
    table = _table(title)
    detectors = bool(numbers[0].detector)
    head = "detector" if detectors else "metric"
    table.add_column(head, overflow="fold", min_width=LEAST_NAME)
    if detectors:
        table.add_column("set", overflow="fold")
    for head in ("A", "B", "B - A"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for number in numbers:
        before, after = (one.text for one in number.cells)
        of = (number.detector, names[number.over]) if detectors else (number.metric,)
        word, style = _judged(number)
        points = _points(number)
        table.add_row(*map(Text, (*of, before, after, points)), Text(word, style=style))
    return table


def _column(number: Number) -> Column:
    return Column("", "", number.metric)


def _moved(number: Number) -> bool:
    change = number.difference
    return (number.before != number.after) if change is None else abs(change) >= PRINTED_POINTS


def _points(number: Number) -> str:
    if number.difference is None:
        return "-"
    bound = f" ±{number.bound:.2f}" if number.bound >= PRINTED_POINTS else ""
    return f"{number.difference:+.2f}{bound}"


def _judged(number: Number) -> tuple[str, str]:
    if number.lost:
        return "gone", "red"
    if number.difference is None:
        return ("new" if _moved(number) else ""), ""
    if not _moved(number):
        return "", ""
    worse = (number.difference > 0) == _column(number).lower_is_better
    return ("worse", "red") if worse else ("better", "green")


def _table(title: str) -> Table:
    return Table(
        title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        pad_edge=False,
    )  # fmt: skip


def _facts(title: str, facts: Sequence[Fact]) -> Table:
    table = _table(title)
    for head in ("", "A", "B"):
        table.add_column(head, overflow="fold")
    for fact in facts:
        table.add_row(Text(fact.key), Text(_value(fact.before)), Text(_value(fact.after)))
    return table


def _value(given: Any) -> str:
    if given is None:
        return "-"
    words = str(given).replace("\n", " ")
    return words if len(words) <= LONGEST_VALUE else f"{words[: LONGEST_VALUE - 1]}…"


def _costs(before: Results, after: Results) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for justify in ("left", "right", "left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for name, earlier, later in zip(
        ("time", "read", "peak memory"), _cost(before), _cost(after), strict=True
    ):
        table.add_row(name, earlier, "->", later)
    return table


def _cost(results: Results) -> tuple[str, str, str]:
    verdict, memory = results["verdict"], results["memory"]
    return (
        text.duration(verdict["seconds"]),
        text.size(verdict["bytes_read"]),
        text.size(memory["measured_nbytes"]),
    )
