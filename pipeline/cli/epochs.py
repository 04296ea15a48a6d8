"""``featfold eval --epochs``: metrics of every epoch that a run has kept, without its model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from pipeline.cli.terminal import Terminal
from pipeline.errors import ConfigError

MOST_COLUMNS = 8


def show_epochs(
    terminal: Terminal,
    run: Path,
    wanted: Sequence[str],
    *,
    task: str,
    ignore: Sequence[int],
    merge: Sequence[str],
    out: Path | None,
) -> None:
    """Print the numbers of every epoch of a run, and write them where they are wanted."""
    from pipeline import ddp
    from pipeline.cli.metric_options import metrics_of
    from pipeline.report import measured

    # Names without options take those of the training.
    asked = {text: text for text in wanted if ":" not in text}
    asked |= metrics_of(
        [text for text in wanted if ":" in text], {"task": task, "ignore": tuple(ignore)}
    )
    epochs = ddp.after(run, asked or None, ignore=list(ignore), merge_classes=merged_classes(merge))
    rows = [
        {
            "phase": one.moment.phase, "epoch": one.epoch, "step": one.moment.step,
            "attempt": one.attempt, "rows": one.rows, "metrics": measured.contents(one.numbers),
        }
        for one in epochs
    ]  # fmt: skip
    terminal.show(epochs_table(rows))
    if out is not None:
        terminal.say(f"numbers: {measured.write_epochs(out, {'run': str(run)}, rows)}")
    terminal.emit({"run": str(run), "epochs": rows})


def epochs_table(rows: Sequence[Mapping[str, Any]]) -> RichTable:
    """Return a table of the numbers that stand for all classes, a row for each epoch."""
    from pipeline.report.class_table import shown

    keys: list[str] = []
    for row in rows:
        keys += [key for key, one in row["metrics"].items() if _is_whole(key, one, row["metrics"])]
    keys = list(dict.fromkeys(keys))
    table = RichTable(box=None, pad_edge=False)
    for name in ("phase", "epoch", "step", "rows"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for key in keys[:MOST_COLUMNS]:
        table.add_column(key, justify="right")
    for row in rows:
        values = (row["metrics"].get(key, {}).get("value") for key in keys[:MOST_COLUMNS])
        cells = (shown(math.nan if value is None else value) for value in values)
        epoch = "" if row["epoch"] is None else str(row["epoch"])
        table.add_row(row["phase"], epoch, str(row["step"]), str(row["rows"]), *cells)
    if len(keys) > MOST_COLUMNS:
        table.caption = f"{len(keys) - MOST_COLUMNS} more numbers with --json or --out"
    return table


def _is_whole(key: str, number: Any, beside: Mapping[str, Any]) -> bool:
    """Tell whether a number is one of all classes: a mean, or one whose name is the metric's."""
    if not isinstance(number, Mapping) or key.endswith("_classes_averaged"):
        return False
    stem = key.rpartition("_")[0]
    return key.endswith("_mean") or f"{stem}_mean" not in beside


def merged_classes(given: Sequence[str]) -> dict[str, list[int | str]]:
    """Return the classes of each ``NAME=A+B``, by number or name."""
    found: dict[str, list[int | str]] = {}
    for text in given:
        name, equals, members = text.partition("=")
        if not equals or not name.strip() or not members.strip():
            raise ConfigError(f"--merge: {text!r}; expected NAME=CLASS+CLASS, as in car=4+5")
        parts = [part.strip() for part in members.split("+")]
        found[name.strip()] = [int(part) if part.isdecimal() else part for part in parts]
    return found
