"""Reliability diagrams: how often a probability is right, bin by bin, and how many have it."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pipeline.metrics.calibration import ReliabilityDiagram
from pipeline.report.charts.chart import (
    HEADING,
    MARGIN,
    SMALL_POINTS,
    Chart,
    Theme,
    blank,
    count,
    counted,
    heading,
    house_style,
    panel,
    theme_in,
    theme_of,
    told,
)

__all__ = ["reliability"]

SIDE, COUNTS_HEIGHT = 250.0, 62.0
TICKS, TICK_NAMES = (0, 0.2, 0.4, 0.6, 0.8, 1), ("0", "0.2", "0.4", "0.6", "0.8", "1")
RULE = "a bin holds its lower edge, the last one both"
WORDS = {
    "top_label": ("confidence", "accuracy"),
    "positive": ("probability of the positive class", "share of positives"),
}


@house_style
def reliability(
    diagram: ReliabilityDiagram, *, title: str = "Reliability", theme: str = "light"
) -> Chart:
    """Return a reliability diagram: a bar for the accuracy of each bin, and its gap.

    A gap reaches from the accuracy to the mean probability of the bin. Bins without elements are
    blank. Below are the elements of each bin.
    """
    colours = theme_of(theme)
    left, top = MARGIN + 38, MARGIN + HEADING
    height = top + SIDE + 14 + COUNTS_HEIGHT + 32 + MARGIN
    facts = {"figure": "reliability_diagram", "rule": RULE, **diagram._asdict()}
    chart = blank(left + SIDE + MARGIN + 10, height, colours, facts)
    rows = int(diagram.rows.sum())
    errors = f"ECE {told(diagram.ece)}  ·  MCE {told(diagram.mce)}"
    heading(chart, title, f"{errors}  ·  {counted(rows)}" if rows else counted(rows))
    above = panel(chart, left, top, SIDE, SIDE)
    below = panel(chart, left, top + SIDE + 14, SIDE, COUNTS_HEIGHT)
    across, up = WORDS[diagram.of]
    _draw_gaps(above, diagram)
    _draw_counts(below, diagram)
    above.set_ylabel(up, labelpad=4)
    above.set_xticklabels([])
    below.set_xlabel(across, labelpad=3)
    below.set_ylabel("elements", labelpad=4)
    chart.align_ylabels([above, below])
    return chart


def _draw_gaps(axes: Axes, diagram: ReliabilityDiagram) -> None:
    theme = theme_in(axes)
    filled = diagram.rows > 0
    left, width = diagram.edges[:-1][filled], np.diff(diagram.edges)[filled]
    accuracy, confidence = diagram.accuracy[filled], diagram.confidence[filled]
    both = np.minimum(accuracy, confidence)
    axes.bar(left, both, width, align="edge", color=theme.right, edgecolor=theme.paper, lw=0.8)
    looks = _looks(theme)
    for too_sure, look in zip((True, False), looks, strict=True):
        one = (confidence > accuracy) == too_sure
        gap = np.abs(confidence - accuracy)[one]
        axes.bar(left[one], gap, width[one], bottom=both[one], align="edge", **look)
    axes.hlines(accuracy, left, left + width, color=theme.ink, linewidth=1.8)
    axes.plot([0, 1], [0, 1], color=theme.muted, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=TICKS, yticks=TICKS, yticklabels=TICK_NAMES)
    for place, name in enumerate((WORDS[diagram.of][1], "too sure", "not sure enough")):
        y = 0.955 - 0.06 * place
        if place:
            axes.barh(y, 0.055, 0.036, left=0.025, **looks[place - 1])
        else:
            axes.hlines(y, 0.025, 0.08, color=theme.ink, linewidth=1.8)
        axes.text(0.1, y, name, size=SMALL_POINTS, color=theme.ink, va="center_baseline")


def _looks(theme: Theme) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how gaps look: of a model that is too sure, and of one that is not sure enough."""
    too_sure, too_unsure = (
        {"facecolor": (hue, 0.2), "edgecolor": hue, "hatch": hatch, "linewidth": 0.8}
        for hue, hatch in ((theme.wrong, "//////"), (theme.right, "\\\\\\\\\\\\"))
    )
    return too_sure, too_unsure


def _draw_counts(axes: Axes, diagram: ReliabilityDiagram) -> None:
    theme = theme_in(axes)
    width = np.diff(diagram.edges)
    axes.bar(
        diagram.edges[:-1], diagram.rows, width, align="edge", color=theme.quiet,
        edgecolor=theme.paper, linewidth=0.8,
    )  # fmt: skip
    most = int(diagram.rows.max(initial=0))
    axes.set(xlim=(0, 1), ylim=(0, 1.12 * most or 1.0), xticks=TICKS, xticklabels=TICK_NAMES)
    axes.set_yticks([0, most] if most else [0], ["0", count(most)] if most else ["0"])
