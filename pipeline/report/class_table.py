"""The table of classes: a row for each class, a column for each metric, and the means below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

MEAN = "mean"
UNDEFINED = "–"
LOWEST = 20
"""Classes that a terminal is shown of many."""


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

    def text(self, most: int = 60) -> Group:
        """Return the table for a terminal; of more than ``most`` classes the lowest ones.

        These are the classes of the smallest values of the first metric, from the smallest on.
        """
        table = RichTable(box=None, pad_edge=False)
        table.add_column("class", no_wrap=True)
        for metric in self.metrics:
            table.add_column(metric, justify="right")
        chosen: Sequence[int] = range(len(self.classes))
        below = []
        if len(chosen) > most:
            first = np.array([values[0] for values in self.values])
            chosen = np.argsort(first, kind="stable")[:LOWEST].tolist()  # NaN comes last
            more = (
                f"... {len(self.classes) - LOWEST:,} more, lowest {self.metrics[0]} first; "
                "--json and --out have all"
            )
            below.append(Text(more, style="dim"))
        for place in chosen:
            table.add_row(self.classes[place], *map(shown, self.values[place]))
        table.add_row(MEAN, *map(shown, self.means), style="bold")
        return Group(table, *below)


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
