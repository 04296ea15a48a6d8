"""The table of classes: a row for each class, a column for each metric, and the means below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table as RichTable

MEAN = "mean"
UNDEFINED = "–"


@dataclass(frozen=True)
class ClassTable:
    """Values (classes, metrics) of per-class metrics; NaN where a class has none."""

    metrics: tuple[str, ...]
    classes: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    means: tuple[float, ...]
    """Mean of each metric over the classes where it is defined; NaN where it was not asked for."""

    @property
    def rows(self) -> list[tuple[str, tuple[float, ...]]]:
        """Name and values of every row, that of the means last."""
        return [*zip(self.classes, self.values, strict=True), (MEAN, self.means)]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [
            "| class | " + " | ".join(self.metrics) + " |",
            "|---|" + "---:|" * len(self.metrics),
        ]
        for name, values in self.rows:
            plain = name.replace("|", "\\|")
            lines.append(f"| {plain} | " + " | ".join(map(shown, values)) + " |")
        return "\n".join(lines) + "\n"

    def text(self, most: int = 60) -> RichTable:
        """Return the table for a terminal, without the middle of many rows."""
        table = RichTable(box=None, pad_edge=False)
        table.add_column("class", no_wrap=True)
        for metric in self.metrics:
            table.add_column(metric, justify="right")
        rows = self.rows
        hidden = len(rows) - most
        for number, (name, values) in enumerate(rows):
            if hidden > 0 and most // 2 <= number < most // 2 + hidden:
                if number == most // 2:
                    table.add_row(f"... {hidden} more", *["..."] * len(self.metrics), style="dim")
                continue
            last = number == len(rows) - 1
            table.add_row(name, *map(shown, values), style="bold" if last else "")
        return table


def class_table(
    numbers: Mapping[str, Any], classes: Sequence[str] | int, prefix: str = ""
) -> ClassTable:
    """Return the table of all metrics in ``numbers`` that have a value for each class.

    ``numbers`` as a collection computes them: ``iou_road``, ``iou_mean``; ``classes`` are the
    names, or the number of classes that have none.
    """
    names = tuple(map(str, range(classes) if isinstance(classes, int) else classes))
    first = f"_{names[0]}"
    stems = [
        key[: -len(first)] for key in numbers if key.startswith(prefix) and key.endswith(first)
    ]
    stems = [stem for stem in stems if all(f"{stem}_{name}" in numbers for name in names)]
    return ClassTable(
        tuple(stem.removeprefix(prefix) for stem in stems),
        names,
        tuple(tuple(float(numbers[f"{stem}_{name}"]) for stem in stems) for name in names),
        tuple(float(numbers.get(f"{stem}_{MEAN}", math.nan)) for stem in stems),
    )


def shown(value: float) -> str:
    """Return a number as tables show it: four digits, or decimals; a dash where undefined.

    Not in percent: thresholds and likelihoods stand beside shares.
    """
    if math.isnan(value):
        return UNDEFINED
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.6g}"
