"""Numbers of classes as horizontal bars, the best at the top, with the elements of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from pipeline.errors import DataError
from pipeline.procedure import Estimate
from pipeline.report.charts.chart import (
    HEADING,
    MARGIN,
    SMALL_POINTS,
    TEXT_POINTS,
    Chart,
    blank,
    heading,
    house_style,
    panel,
    text_width,
    theme_in,
    theme_of,
    told,
)
from pipeline.report.charts.matrix import short_names

__all__ = ["ClassNumber", "class_bars", "numbers_of_classes"]

Floats = np.ndarray[Any, np.dtype[np.float64]]

ROW = 15.0
"""Points of a row; half as much where there are many."""
MANY, NARROW_ROW = 30, 11.5
BAR_WIDTH = 230.0
NAME_WIDTH = 170.0
SHOWN = 60
"""Most classes that are drawn; of more, the best fifth and the rest from the worst on."""


class ClassNumber(NamedTuple):
    """The number of a class."""

    name: str
    number: Estimate
    support: int | None = None
    """Elements of the class; None where they are not known."""


def numbers_of_classes(
    results: Mapping[str, Estimate],
    metric: str,
    support: Mapping[str, int] | None = None,
) -> list[ClassNumber]:
    """Return the numbers ``{metric}_{class}`` of results by key; averages are no classes."""
    averages = {f"{metric}_{of}" for of in ("mean", "micro", "weighted", "classes_averaged")}
    return [
        ClassNumber(name, number, (support or {}).get(name))
        for key, number in results.items()
        if key.startswith(f"{metric}_") and key not in averages
        for name in (key.removeprefix(f"{metric}_"),)
    ]


@house_style
def class_bars(
    numbers: Sequence[ClassNumber],
    *,
    metric: str,
    mean: Estimate | None = None,
    title: str = "",
    theme: str = "light",
) -> Chart:
    """Return a bar for each class, from the best to the worst, undefined ones last.

    Whiskers are bounds, or an interval. ``mean`` is drawn across. Above 60 classes the best and,
    more of them, the worst are drawn; the file beside the chart has all.
    """
    if not numbers:
        raise DataError("no class has a number: ask for the metric with average='none'")
    ordered = sorted(numbers, key=lambda one: (_undefined(one), -_value(one), one.name))
    drawn, left_out = _shown(ordered)
    k = len(drawn)
    row = ROW if k <= MANY else NARROW_ROW
    points = min(TEXT_POINTS, 0.72 * row)
    gap = 1.5 * row if left_out else 0.0
    names = short_names([one.name for one in drawn], points, NAME_WIDTH)
    left = MARGIN + max(text_width(name, points) for name in names) + 8
    height = k * row + gap
    top = MARGIN + HEADING + 14
    colours = theme_of(theme)
    facts = {"figure": "class_bars", "metric": metric, "mean": mean, "classes": ordered}
    chart = blank(left + BAR_WIDTH + 112 + MARGIN, top + height + 26 + MARGIN, colours, facts)
    heading(chart, title or metric, _subtitle(ordered, mean))
    axes = panel(chart, left, top, BAR_WIDTH, height)
    places: Floats = row * (np.arange(k, dtype=np.float64) + 0.5)
    places[_best(k, left_out) :] += gap
    _draw(axes, drawn, places, row, mean)
    _write(axes, drawn, names, places, points)
    if left_out:
        axes.text(
            0.0, places[_best(k, left_out)] - row / 2 - gap / 2, f"{left_out} classes between",
            size=points, color=colours.muted, va="center", style="italic",
        )  # fmt: skip
    axes.set_ylim(height, 0)
    return chart


def _undefined(one: ClassNumber) -> bool:
    return math.isnan(one.number.value)


def _value(one: ClassNumber) -> float:
    return 0.0 if _undefined(one) else one.number.value


def _best(k: int, left_out: int) -> int:
    """Return how many of the drawn classes stand above the gap."""
    return k // 5 if left_out else k


def _shown(ordered: list[ClassNumber]) -> tuple[list[ClassNumber], int]:
    left_out = max(0, len(ordered) - SHOWN)
    if not left_out:
        return ordered, 0
    best = _best(SHOWN, left_out)
    return ordered[:best] + ordered[len(ordered) - (SHOWN - best) :], left_out


def _draw(
    axes: Axes, drawn: Sequence[ClassNumber], places: Floats, row: float, mean: Estimate | None
) -> None:
    theme = theme_in(axes)
    values = np.array([_value(one) for one in drawn])
    low = min(0.0, float(values.min()))
    axes.set_xlim(low, max(1.0, float(values.max())))
    axes.barh(places, values, height=0.66 * row, color=theme.right, linewidth=0)
    for one, place in zip(drawn, places, strict=True):
        if _undefined(one):
            axes.barh(
                place, axes.get_xlim()[1] - low, left=low, height=0.66 * row, facecolor="none",
                edgecolor=theme.rule, hatch="////", linewidth=0,
            )  # fmt: skip
        elif one.number.lower < one.number.upper:
            axes.plot([one.number.lower, one.number.upper], [place] * 2, color=theme.ink, lw=1.1)
    if mean is not None and not math.isnan(mean.value):
        axes.axvline(mean.value, color=theme.wrong, linewidth=1.1, linestyle=(0, (3, 2)))
        axes.text(
            mean.value, -4, f"mean {told(mean)}", color=theme.wrong, size=SMALL_POINTS,
            ha="center", va="bottom",
        )  # fmt: skip
    axes.spines["left"].set_visible(low < 0)
    axes.axvline(0, color=theme.rule, linewidth=0.8)


def _write(
    axes: Axes,
    drawn: Sequence[ClassNumber],
    names: Sequence[str],
    places: np.ndarray,
    points: float,
) -> None:
    theme = theme_in(axes)
    axes.set_yticks(places, names, fontsize=points, color=theme.ink, parse_math=False)
    axes.tick_params(axis="y", length=0, pad=4)
    right = axes.get_yaxis_transform()
    known = any(one.support is not None for one in drawn)
    for one, place in zip(drawn, places, strict=True):
        text = "–" if _undefined(one) else f"{one.number.value:.3f}"
        look: dict[str, Any] = {
            "size": points,
            "va": "center_baseline",
            "ha": "right",
            "transform": right,
        }
        axes.text(1.0 + 42 / BAR_WIDTH, place, text, color=theme.ink, **look)
        if one.support is not None:
            axes.text(1.0 + 108 / BAR_WIDTH, place, f"{one.support:,}", color=theme.muted, **look)
    if known:
        axes.text(
            1.0 + 108 / BAR_WIDTH, -4, "elements", size=SMALL_POINTS, color=theme.muted,
            ha="right", va="bottom", transform=right,
        )  # fmt: skip


def _subtitle(ordered: Sequence[ClassNumber], mean: Estimate | None) -> str:
    undefined = sum(map(_undefined, ordered))
    parts = [f"{len(ordered)} classes"]
    if undefined:
        parts.append(f"{undefined} undefined")
    if mean is not None and math.isnan(mean.value):
        parts.append("mean undefined")
    return "  ·  ".join(parts)
