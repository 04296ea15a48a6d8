"""Files of what ``featfold eval`` measured: numbers, the table of classes, the confusion matrix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.table import Table as RichTable

from pipeline import files
from pipeline.metrics import ConfusionTable
from pipeline.procedure import Estimate
from pipeline.report.class_table import ClassTable, shown

NUMBERS = ("value", "lower", "upper", "exact")
AVERAGED = "_classes_averaged"


def contents(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers as JSON holds them: undefined ones are null, with the reason."""
    return {
        key: _estimated(one) if isinstance(one, Estimate) else one.counts.tolist()
        for key, one in numbers.items()
        if isinstance(one, (Estimate, ConfusionTable))
    }


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
            if isinstance(one, Mapping):
                rows.writerow((*(epoch[name] for name in named), key, one["value"]))
    _write(directory / "epochs.csv", text.getvalue())
    return path


def _write(path: Path, text: str) -> None:
    content = text.encode()
    files.write_whole(path, lambda file: file.write(content), len(content), "name another --out")


def _estimated(one: Estimate) -> dict[str, Any]:
    kept = {name: getattr(one, name) for name in NUMBERS}
    if one.value != one.value:
        kept |= dict.fromkeys(NUMBERS[:3])
    return kept | ({"reason": one.reason} if one.reason else {})


def _csv(numbers: Mapping[str, Any]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("metric", *NUMBERS, "reason"))
    for key, one in numbers.items():
        if isinstance(one, Estimate):
            rows.writerow((key, *(getattr(one, name) for name in NUMBERS), one.reason))
    return text.getvalue()
