"""Files of what ``featfold eval`` measured: numbers, the table of classes, the confusion matrix."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from rich.console import RenderableType
from rich.table import Table as RichTable

from pipeline import files
from pipeline.errors import ConfigError
from pipeline.metrics import ConfusionTable
from pipeline.procedure import Estimate
from pipeline.report.class_table import ClassTable, shown

NUMBERS = ("value", "lower", "upper", "exact")
AVERAGED = "_classes_averaged"
MATRIX_CLASSES = 12
"""Classes of which a terminal is shown the whole confusion matrix."""


def contents(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers as JSON holds them: undefined ones are null, with the reason.

    A confusion matrix is a list of its rows, a curve or a diagram a list for each of its parts.
    """
    found = {}
    for key, one in numbers.items():
        if isinstance(one, ConfusionTable):
            found[key] = one.counts.tolist()
            if one.undecided.any():
                found[f"{key}_undecided"] = one.undecided.tolist()
        elif isinstance(one, Estimate) or hasattr(one, "_asdict"):
            found[key] = _plain(one)
    return found


def overall(numbers: Mapping[str, Any], table: ClassTable) -> RichTable:
    """Return the numbers that the table of classes does not have, for a terminal.

    Means are in its last row; they are repeated where they leave classes out, with their number.
    """
    rows = RichTable(box=None, pad_edge=False, show_header=False)
    rows.add_column("metric")
    rows.add_column("value", justify="right")
    rows.add_column("", style="dim")
    in_table = {f"{metric}_{name}" for metric in table.metrics for name in table.classes}
    for key, one in numbers.items():
        if not isinstance(one, Estimate) or key in in_table or key.endswith("_averaged"):
            continue
        stem = key.removesuffix("_mean")
        averaged = float(numbers.get(stem + AVERAGED, len(table.classes)))
        if key != stem and stem in table.metrics and averaged == len(table.classes):
            continue
        of_classes = key != stem and stem + AVERAGED in numbers
        beside = f"mean of {averaged:.0f} of {len(table.classes)} classes" if of_classes else ""
        bounds = "" if one.exact else f"{shown(one.lower)} to {shown(one.upper)}"
        rows.add_row(key, shown(one.value), one.reason or bounds or beside)
    return rows


def objects(numbers: Mapping[str, Any], classes: Sequence[str] | int) -> Iterator[RenderableType]:
    """Yield what a terminal is shown of the numbers that are no single ones.

    A confusion matrix of few classes whole, of more what is confused most often; of a curve or a
    diagram its name, and where to find it.
    """
    for key, one in numbers.items():
        if isinstance(one, ConfusionTable):
            yield matrix_table(key, one, classes)
        elif hasattr(one, "_asdict"):
            yield f"{key}: --json has its numbers, --out draws it"
        elif not isinstance(one, Estimate):
            yield f"{key}: a table of rows; {key}:path=FILE.npy writes it"


def matrix_table(name: str, table: ConfusionTable, classes: Sequence[str] | int) -> RichTable:
    """Return a confusion matrix for a terminal: true classes down, or pairs of classes."""
    names = [str(c) for c in range(classes)] if isinstance(classes, int) else list(classes)
    if len(names) <= MATRIX_CLASSES:
        rows = RichTable(box=None, pad_edge=False)
        rows.add_column(name, no_wrap=True)
        some = bool(table.undecided.any())
        for predicted in (*names, *["ignored"] * some):
            rows.add_column(predicted, justify="right")
        for label, counts, rest in zip(names, table.counts, table.undecided, strict=True):
            rows.add_row(label, *map(str, counts.tolist()), *[str(rest)] * some)
        return rows
    from pipeline.report.charts.matrix import COLUMNS, top_confusions

    rows = RichTable(box=None, pad_edge=False, title=f"{name}: the pairs that are confused most")
    for column in COLUMNS:
        rows.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
    for pair in top_confusions(table, names):
        rows.add_row(pair.truth, pair.predicted, f"{pair.elements:,}", f"{pair.share:.1%}")
    return rows


def check_directory(directory: Path) -> None:
    """Raise :class:`FeatfoldError` where files cannot go into a directory, and leave it as it is.

    To be called before anything is read: a run ends in writing.
    """
    above = directory
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise ConfigError(f"--out: {above} is a file; name a directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"--out: {above} cannot be written to; name another directory")


def write(directory: Path, about: Mapping[str, Any], numbers: Mapping[str, Any]) -> Path:
    """Write ``metrics.json`` and ``metrics.csv`` into a directory; return the JSON's path."""
    path = directory / "metrics.json"
    content = json.dumps({**about, "metrics": contents(numbers)}, indent=1, allow_nan=False)
    _write(path, content + "\n")
    _write(directory / "metrics.csv", _csv(numbers))
    return path


def write_charts(
    directory: Path,
    numbers: Mapping[str, Any],
    metrics: Sequence[str],
    class_names: Sequence[str] | None,
) -> list[Path]:
    """Write a chart, as SVG with its JSON, of each metric that has one; return where they are."""
    from pipeline.report import charts

    paths = []
    for metric in charts.drawable(numbers, metrics):
        path = directory / f"{quote(metric, safe=' ,=')}.svg"
        charts.save(charts.chart_of(numbers, metric, class_names), path)
        paths.append(path)
    return paths


def write_epochs(
    directory: Path, about: Mapping[str, Any], epochs: Sequence[Mapping[str, Any]]
) -> Path:
    """Write ``epochs.json`` and ``epochs.csv``, a line for each number; return the JSON's path."""
    path = directory / "epochs.json"
    _write(path, json.dumps({**about, "epochs": epochs}, indent=1, allow_nan=False) + "\n")
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    named = ("phase", "epoch", "step", "attempt", "rows")
    rows.writerow((*named, "metric", "value"))
    for epoch in epochs:
        for key, one in epoch["metrics"].items():
            if isinstance(one, Mapping) and "value" in one:
                rows.writerow((*(epoch[name] for name in named), key, one["value"]))
    _write(directory / "epochs.csv", text.getvalue())
    return path


def _write(path: Path, text: str) -> None:
    content = text.encode()
    files.write_whole(path, lambda file: file.write(content), len(content), "name another --out")


def _plain(one: Any) -> Any:
    """Return an object of numbers as JSON holds it."""
    if isinstance(one, Estimate):
        return _estimated(one)
    if isinstance(one, np.ndarray):
        return _plain(one.tolist())
    if hasattr(one, "_asdict"):
        return {name: _plain(part) for name, part in one._asdict().items()}
    if isinstance(one, list | tuple):
        return [_plain(part) for part in one]
    return one if not isinstance(one, float) or math.isfinite(one) else _named(one)


def _named(number: float) -> str | None:
    """Return a number that JSON does not have: null for NaN, the name of an infinity."""
    return None if math.isnan(number) else repr(number)


def _estimated(one: Estimate) -> dict[str, Any]:
    kept = {name: _plain(getattr(one, name)) for name in NUMBERS}
    return kept | ({"reason": one.reason} if one.reason else {})


def _csv(numbers: Mapping[str, Any]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("metric", *NUMBERS, "reason"))
    for key, one in numbers.items():
        if isinstance(one, Estimate):
            rows.writerow((key, *(getattr(one, name) for name in NUMBERS), one.reason))
    return text.getvalue()
