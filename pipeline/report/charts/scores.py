"""Histograms of scores with the threshold that finds a share of the positives, and both tails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pipeline import arrays
from pipeline.metrics.curves import MARKED_TPR, Histogram
from pipeline.metrics.ranking import from_the_top, missing_side, operating_point
from pipeline.report.charts.chart import (
    HEADING,
    MARGIN,
    SMALL_POINTS,
    Chart,
    blank,
    counted,
    fitted,
    heading,
    house_style,
    panel,
    power,
    text_width,
    theme_in,
    theme_of,
)
from pipeline.statistics import Ranks

__all__ = ["Threshold", "score_histograms", "threshold_of"]

Floats = np.ndarray[Any, np.dtype[np.float64]]

WIDTH, PANEL_HEIGHT, GAP = 330.0, 84.0, 28.0


class Threshold(NamedTuple):
    """A score from which on elements are taken for positive, and what that does."""

    score: float
    found: float
    """Share of the positive elements at it or above."""
    raised: float
    """Share of the others at it or above."""


@house_style
def score_histograms(
    histogram: Histogram,
    inside: str,
    *,
    thresholds: Mapping[str, Threshold] | None = None,
    title: str = "Scores",
    log_counts: bool = False,
    theme: str = "light",
) -> Chart:
    """Return a panel for each set of positives, over the elements ``inside``, on shared bins.

    Each set has an area of 1 within its panel. ``thresholds`` by set: a line, with the share of
    positives that lie below it and the share of the others above. ``log_counts`` shows tails.
    """
    outside = [name for name in histogram.counts if name != inside]
    colours = theme_of(theme)
    facts = {
        "figure": "score_histograms", "inside": inside, "thresholds": thresholds or {},
        **histogram._asdict(),
    }  # fmt: skip
    left, top = MARGIN, MARGIN + HEADING + 16
    count = max(1, len(outside))
    height = top + count * PANEL_HEIGHT + (count - 1) * GAP + 32 + MARGIN
    chart = blank(left + WIDTH + MARGIN, height, colours, facts)
    rows = {name: int(np.sum(counts)) for name, counts in histogram.counts.items()}
    heading(chart, title, f"{fitted(inside, SMALL_POINTS, 150)}: {counted(rows[inside])}")
    axes = None
    for place, name in enumerate(outside or [""]):
        axes = panel(chart, left, top + place * (PANEL_HEIGHT + GAP), WIDTH, PANEL_HEIGHT)
        _draw(axes, histogram, inside, name, (thresholds or {}).get(name), log_counts)
        if place < count - 1:
            axes.set_xticklabels([])
    if axes is not None:
        axes.set_xlabel("score" + (", log scale" if histogram.scale == "log" else ""), labelpad=3)
    return chart


def threshold_of(ranks: Ranks, tpr: float = MARKED_TPR) -> Threshold:
    """Return the first threshold that finds a share of the positives; NaN where a side is empty."""
    if missing_side(ranks):
        return Threshold(math.nan, math.nan, math.nan)
    hits, misses = from_the_top(ranks)
    last = operating_point(hits, tpr)
    score = float(arrays.to_host(ranks.values)[::-1][last])
    found, raised = (float(side[: last + 1].sum() / side.sum()) for side in (hits, misses))
    return Threshold(score, found, raised)


def _draw(
    axes: Axes,
    histogram: Histogram,
    inside: str,
    name: str,
    threshold: Threshold | None,
    log_counts: bool,
) -> None:
    theme = theme_in(axes)
    edges = np.log10(histogram.edges) if histogram.scale == "log" else histogram.edges
    low, high = float(edges[0]), float(edges[-1])
    cut = None
    if threshold is not None and math.isfinite(threshold.score):
        cut = threshold.score if histogram.scale == "linear" else math.log10(threshold.score)
        cut = min(max(cut, low), high)
    densities = {of: _density(histogram.counts.get(of), edges) for of in (inside, name)}
    most = max(1e-300, *(float(d.max()) for d in densities.values()))
    floor = 0.0
    if log_counts:
        filled = np.concatenate([d[d > 0] for d in densities.values()])
        floor = float(filled.min()) / 2 if len(filled) else most / 10
        axes.set_yscale("log")
    for of, hue, beyond in ((inside, theme.quiet, True), (name, theme.wrong, False)):
        outline = np.maximum(densities[of], floor)
        axes.stairs(outline, edges, baseline=floor, fill=True, facecolor=(hue, 0.28), linewidth=0)
        axes.stairs(outline, edges, baseline=floor, color=hue, linewidth=1.3)
        if cut is not None:
            tail = axes.stairs(
                outline, edges, baseline=floor, fill=True, facecolor=(hue, 0.45), linewidth=0
            )
            left, right = (cut, high) if beyond else (low, cut)
            tail.set_clip_path(
                Rectangle((left, 0), right - left, 2 * most, transform=axes.transData)
            )
    axes.set(xlim=(low, high), ylim=(floor, most * (1.08 if not log_counts else 1.5)), yticks=[])
    axes.minorticks_off()
    axes.spines["left"].set_visible(False)
    if cut is not None:
        axes.axvline(cut, color=theme.ink, linewidth=1.1, linestyle=(0, (4, 2)))
    if histogram.scale == "log":
        _decades(axes, low, high)
    _say(axes, histogram, inside, name, threshold)


def _density(counts: Any, edges: Floats) -> Floats:
    """Return counts (b,) as a density over the axis that is drawn."""
    if counts is None or not np.sum(counts):
        return np.zeros(len(edges) - 1)
    density: Floats = counts / (np.diff(edges) * np.sum(counts))
    return density


def _decades(axes: Axes, low: float, high: float) -> None:
    step = max(1, math.ceil((high - low) / 6))
    marks = np.arange(math.ceil(low / step) * step, high + 1e-9, step)
    axes.set_xticks(marks, [power(int(mark)) for mark in marks])


def _say(
    axes: Axes, histogram: Histogram, inside: str, name: str, threshold: Threshold | None
) -> None:
    """Write above a panel whose scores it shows, and what the threshold does."""
    theme = theme_in(axes)
    if not name:
        return
    size = SMALL_POINTS
    rows = int(np.sum(histogram.counts[name]))
    text = ""
    if threshold is not None and math.isfinite(threshold.score):
        missed, raised = 100 * (1 - threshold.found), 100 * threshold.raised
        text = f"at {threshold.score:.4g}: {missed:.1f} % missed, {raised:.1f} % of {inside} raised"
    where: dict[str, Any] = {
        "transform": axes.transAxes,
        "va": "bottom",
        "size": size,
        "parse_math": False,
    }
    text = fitted(text, size, 0.62 * WIDTH) if text else ""
    room = WIDTH - text_width(text, size) - 12
    title = fitted(f"{name}: {rows:,}", size, room, "bold")
    axes.text(0.0, 1.02, title, color=theme.wrong, weight="bold", **where)
    axes.text(1.0, 1.02, text, color=theme.muted, ha="right", **where)
