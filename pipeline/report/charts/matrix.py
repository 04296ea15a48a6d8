"""Confusion matrices as charts, and the pairs of classes that are confused most as a table.

What is right is blue, what is wrong is orange, both on one scale. Normalising is a view: the table
keeps counts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.patches import Rectangle

from pipeline.errors import ConfigError, DataError
from pipeline.metrics.confusion import ConfusionTable
from pipeline.report.charts.chart import (
    HEADING,
    MARGIN,
    SMALL_POINTS,
    Chart,
    Theme,
    blank,
    count,
    counted,
    fitted,
    heading,
    house_style,
    panel,
    share,
    text_width,
    theme_of,
)

__all__ = ["Confusion", "confusion_matrix", "confusions_html", "confusions_text", "top_confusions"]

Floats = np.ndarray[Any, np.dtype[np.float64]]

NORMALISED = {
    "label": "% of each true class",
    "prediction": "% of each predicted class",
    "all": "% of all elements",
    "count": "counts",
}
TEXT_CLASSES, SHOWN_CLASSES = 30, 50
"""Most classes whose cells hold text, and that are shown one by one."""
NAME_POINTS = 150.0
"""Widest name of a class."""
FAINT = 0.5
"""Exponent of the colours of shares: few errors among many elements are to be seen."""
TICKS = (0.01, 0.1, 0.25, 0.5, 1.0)


class Confusion(NamedTuple):
    """Two classes of which one is taken for the other."""

    truth: str
    predicted: str
    elements: int
    share: float
    """Of the elements of the true class."""


class _Cells(NamedTuple):
    """What a matrix shows: numbers, NaN where there is nothing to show, and names of its rows."""

    numbers: Floats
    names: list[str]
    each: int
    """Classes of a row."""


@house_style
def confusion_matrix(
    table: ConfusionTable,
    names: Sequence[str] | None = None,
    *,
    by: str = "label",
    title: str = "Confusion matrix",
    theme: str = "light",
) -> Chart:
    """Return a confusion matrix, true classes down and predicted ones across.

    ``by``: shares of each ``label`` (rows sum to 100 %), each ``prediction`` (columns do), of
    ``all``, or the ``count`` of elements in logarithmic colours. Labels, or predictions, that never
    occur are hatched, not zero. More than 50 classes are shown in blocks of neighbours: mean over
    true classes, sum over predicted ones.
    """
    if by not in NORMALISED:
        raise ConfigError(f"by: {by!r} is unknown; choose {', '.join(NORMALISED)}")
    names = class_names(names, len(table.counts))
    colours, cells = theme_of(theme), _cells(table, names, by)
    k = len(cells.names)
    size = _cell_points(k)
    name_points = _label_points(k, size)
    shown = short_names(cells.names, name_points)
    widest = max(text_width(name, name_points) for name in shown)
    turned = k > 2 and (widest > 0.9 * size)
    left = MARGIN + SMALL_POINTS + 10 + widest + 6
    top = MARGIN + HEADING
    below = (widest if turned else name_points) + 12 + SMALL_POINTS + MARGIN
    width = max(left + k * size + 66, 300.0)
    chart = blank(width, top + k * size + below, colours, _facts(table, names, by, cells))
    heading(chart, title, _subtitle(table, by, cells))
    axes = panel(chart, left, top, k * size, k * size)
    norm = _norm(cells.numbers, by)
    _paint(axes, cells, norm, colours)
    _label(axes, shown, name_points, size, turned=turned)
    if cells.each == 1 and k <= TEXT_CLASSES:
        _write(axes, cells.numbers, norm, by, size, colours)
    _scale(chart, left + k * size + 14, top, min(k * size, 180.0), norm, by)
    return chart


def class_names(names: Sequence[str] | None, classes: int) -> list[str]:
    """Return the names of classes, by default their numbers.

    Raises :class:`DataError` where there are fewer or more names.
    """
    if names is None:
        return [str(c) for c in range(classes)]
    if len(names) != classes:
        raise DataError(f"{len(names)} names for {classes} classes; give one for each class")
    return [str(name) for name in names]


def short_names(names: Sequence[str], points: float, width: float = NAME_POINTS) -> list[str]:
    """Return names of at most so many points, with their place before them where two look alike."""
    shown = [fitted(name, points, width) for name in names]
    if len(set(shown)) == len(shown):
        return shown
    return [fitted(f"{place} {name}", points, width) for place, name in enumerate(names)]


def _cells(table: ConfusionTable, names: Sequence[str], by: str) -> _Cells:
    counts = table.counts.astype(np.float64)
    k = len(counts)
    each = -(-k // SHOWN_CLASSES)
    numbers = counts if by == "count" else table.normalised(by)
    if each == 1:
        return _Cells(numbers, list(names), 1)
    starts = np.arange(0, k, each)
    blocks = np.add.reduceat(np.nan_to_num(numbers), starts, axis=1)
    blocks = np.add.reduceat(blocks, starts, axis=0)
    if by in ("label", "prediction"):
        axis = 1 if by == "label" else 0
        seen = np.add.reduceat(table.counts.sum(axis=axis) > 0, starts, dtype=np.int64)
        seen = seen[:, None] if by == "label" else seen[None, :]
        blocks = np.where(seen > 0, blocks / np.maximum(seen, 1), np.nan)
    ends = np.minimum(starts + each, k) - 1
    ranges = [
        f"{names[a]} – {names[b]}" for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return _Cells(blocks, ranges, each)


def _cell_points(k: int) -> float:
    smallest = 19.0 if k <= TEXT_CLASSES else 10.5
    return min(58.0, max(smallest, 420.0 / k))


def _label_points(k: int, size: float) -> float:
    return min(SMALL_POINTS + 0.5, 0.72 * size)


def _norm(numbers: Floats, by: str) -> Normalize:
    largest = float(np.nanmax(numbers)) if np.isfinite(numbers).any() else 0.0
    if by == "count":
        return LogNorm(0.5, max(largest, 2.0), clip=True)
    return PowerNorm(FAINT, 0.0, 1.0 if by != "all" else max(largest, 1e-9), clip=True)


def _paint(axes: Axes, cells: _Cells, norm: Normalize, theme: Theme) -> None:
    k = len(cells.numbers)
    empty = np.isnan(cells.numbers)
    shares = np.where(empty | (cells.numbers == 0), 0.0, norm(np.nan_to_num(cells.numbers)))
    shares = np.where(np.nan_to_num(cells.numbers) == 0, 0.0, shares)
    right = np.eye(k, dtype=bool)[..., None]
    colours = np.where(right, theme.of_right(shares), theme.of_wrong(shares))
    pixels = (255 * colours).round().astype(np.uint8)
    axes.imshow(pixels, interpolation="none", aspect="auto", extent=(0, k, k, 0))
    lines = [[(0, i), (k, i)] for i in range(1, k)] + [[(i, 0), (i, k)] for i in range(1, k)]
    strong = 0.9 if k <= TEXT_CLASSES else 0.4
    axes.add_collection(LineCollection(lines, colors=theme.paper, linewidths=strong))
    for rows, columns in _runs(empty):
        axes.add_patch(
            Rectangle(
                (columns.start, rows.start), columns.stop - columns.start, rows.stop - rows.start,
                facecolor=theme.paper, edgecolor=theme.rule, hatch="////", linewidth=0,
            )
        )  # fmt: skip
    axes.set(xlim=(0, k), ylim=(k, 0))
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(theme.rule)


def _runs(empty: np.ndarray[Any, np.dtype[np.bool_]]) -> list[tuple[slice, slice]]:
    """Return the rows, or columns, that are empty throughout, neighbours together."""
    k = len(empty)
    found = []
    for lines, across in ((empty.all(axis=1), False), (empty.all(axis=0), True)):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], lines.astype(int), [0]])))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            run, whole = slice(int(start), int(stop)), slice(0, k)
            found.append((whole, run) if across else (run, whole))
        if found:
            return found
    return found


def _label(axes: Axes, names: Sequence[str], points: float, size: float, *, turned: bool) -> None:
    places = np.arange(len(names)) + 0.5
    look: dict[str, Any] = {"fontsize": points, "parse_math": False}
    axes.set_yticks(places, names, **look)
    axes.set_xticks(places, names, rotation=90 if turned else 0, **look)
    axes.tick_params(length=0, pad=4)
    axes.set_ylabel("true", labelpad=4)
    axes.set_xlabel("predicted", labelpad=3)


def _write(
    axes: Axes, numbers: Floats, norm: Normalize, by: str, size: float, theme: Theme
) -> None:
    """Write the number of each cell."""
    points = min(10.0, 0.34 * size)
    for (i, j), number in np.ndenumerate(numbers):
        text = (count(number) if number else "") if by == "count" else share(float(number))
        if not text:
            continue
        colour = (theme.of_right if i == j else theme.of_wrong)(float(norm(number)))
        axes.text(
            j + 0.5, i + 0.52, text, size=points, color=_readable(colour, theme), ha="center",
            va="center", weight="bold" if i == j else "normal",
        )  # fmt: skip


def _readable(colour: Sequence[float], theme: Theme) -> str:
    """Return black or white, as stands out more from a colour."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    return "#ffffff" if (luminance + 0.05) ** 2 < 1.05 * 0.05 else "#14181c"


def _scale(chart: Chart, left: float, top: float, height: float, norm: Normalize, by: str) -> None:
    """Draw what colours mean: right ones beside wrong ones."""
    theme = chart.theme
    axes = panel(chart, left, top, 14, height)
    steps = np.linspace(0, 1, 128)[::-1]
    pixels = np.stack([theme.of_right(steps), theme.of_wrong(steps)], axis=1)
    axes.imshow(
        (255 * pixels).round().astype(np.uint8), interpolation="none", aspect="auto",
        extent=(0, 2, 0, 1),
    )  # fmt: skip
    if by == "count":
        top_decade = math.floor(math.log10(float(norm.vmax or 1)))
        ticks = [10.0**d for d in range(0, top_decade + 1, max(1, -(-top_decade // 5)))]
        labels = [count(tick) for tick in ticks]
    else:
        largest = float(norm.vmax or 1)
        ticks = [0.0, *(t * largest for t in TICKS)]
        labels = [f"{100 * t:.2g}" if t < 1 else "100" for t in ticks]
        labels[-1] += " %"
    axes.yaxis.tick_right()
    axes.set_yticks([float(norm(t)) for t in ticks], labels)
    axes.set_xticks([])
    axes.tick_params(length=2, pad=2)
    axes.spines[:].set_visible(False)


def _subtitle(table: ConfusionTable, by: str, cells: _Cells) -> str:
    rows = int(table.marginals.truth.sum())
    right = int(np.trace(table.counts))
    parts = [NORMALISED[by]]
    if cells.each > 1:
        parts.append(f"{len(table.counts):,} classes in blocks of {cells.each}")
    parts.append(counted(rows) + (f", {100 * right / rows:.1f} % right" if rows else ""))
    return "  ·  ".join(parts)


def _facts(
    table: ConfusionTable, names: Sequence[str], by: str, cells: _Cells
) -> Mapping[str, Any]:
    truth = table.marginals.truth
    rows, absent = int(truth.sum()), np.flatnonzero(truth == 0)
    return {
        "figure": "confusion_matrix",
        "normalised_by": by,
        "rows": "true classes; a class without an element, or a prediction, has no share",
        "classes": list(names),
        "classes_of_a_cell": cells.each,
        "cells": cells.numbers,
        "elements": rows,
        "right": int(np.trace(table.counts)),
        "absent_classes": [names[c] for c in absent.tolist()],
        "top_confusions": top_confusions(table, names),
    }


def top_confusions(
    table: ConfusionTable, names: Sequence[str] | None = None, most: int = 20
) -> list[Confusion]:
    """Return the pairs of classes that are confused most often, by number of elements."""
    names = class_names(names, len(table.counts))
    wrong = table.counts.copy()
    np.fill_diagonal(wrong, 0)
    rows = table.marginals.truth
    flat = wrong.ravel()
    order = np.argsort(-flat, kind="stable")[: min(most, int((flat > 0).sum()))]
    pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
    return [
        Confusion(names[t], names[p], int(wrong[t, p]), float(wrong[t, p] / rows[t]))
        for t, p in pairs
    ]


COLUMNS = ("true", "predicted", "elements", "of the true class")


def confusions_text(confusions: Sequence[Confusion]) -> str:
    """Return the pairs as lines of text, in columns."""
    cells = [COLUMNS, *map(_texts, confusions)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    lines = [
        "  ".join(
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines) + "\n"


def confusions_html(confusions: Sequence[Confusion]) -> str:
    """Return the pairs as an HTML table."""
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in _texts(one)) + "</tr>\n"
        for one in confusions
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"


def _texts(one: Confusion) -> tuple[str, str, str, str]:
    return one.truth, one.predicted, f"{one.elements:,}", f"{100 * one.share:.1f} %"
