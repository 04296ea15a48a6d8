"""Curves of thresholds: ROC, precision and recall, risk and coverage; bands between bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from pipeline.metrics.bands import Band
from pipeline.metrics.curves import MARKED_TPR, PrecisionRecallCurve, ROCCurve
from pipeline.metrics.selective import RiskCoverageCurve
from pipeline.procedure import Estimate
from pipeline.report.charts.chart import (
    DASHES,
    HEADING,
    MARGIN,
    SMALL_POINTS,
    Chart,
    Theme,
    blank,
    fitted,
    heading,
    house_style,
    panel,
    text_width,
    theme_in,
    theme_of,
    told,
)

__all__ = ["Band", "precision_recall", "risk_coverage", "roc"]

Floats = np.ndarray[Any, np.dtype[np.float64]]

SIDE = 250.0
"""Points of either side of the axes."""
KEY_ROW = 14.0
SETTLED = 0.02
"""Coverage from which on risks are sure to be within the axes: the first few elements vary."""
NAME_WIDTH = 150.0


Areas = Mapping[str, Estimate]
Bands = Mapping[str, Band]


@house_style
def roc(
    curves: Mapping[str, ROCCurve],
    *,
    areas: Areas | None = None,
    bands: Bands | None = None,
    title: str = "ROC curve",
    log_rate: bool = False,
    theme: str = "light",
) -> Chart:
    """Return ROC curves by name, with the first point that finds 95 % of the positives.

    ``areas`` are written beside the names. ``bands`` shade what lies between bounds. ``log_rate``:
    false positive rates on a logarithmic axis, from the smallest that is not zero.
    """
    facts = {
        "figure": "roc",
        "rule": "scores at a threshold or above are found, ties whole; points may be left out",
        "marked_tpr": MARKED_TPR,
        "curves": {
            name: curve._asdict() | {"fpr_at_marked_tpr": _marked(curve)[0]}
            for name, curve in curves.items()
        },
        "areas": areas or {},
        "bands": bands or {},
    }
    chart, axes = _square(title, curves, areas, "AUROC", theme, facts)
    _limits(axes, "false positive rate", "true positive rate")
    rates = [f for curve in curves.values() for f in curve.fpr.tolist() if f > 0]
    least = min([*rates, 0.1])
    chance = np.geomspace(least, 1, 50) if log_rate else np.array([0.0, 1.0])
    axes.plot(chance, chance, color=chart.theme.rule, linewidth=1.0)
    axes.axhline(MARKED_TPR, color=chart.theme.muted, linewidth=0.7, linestyle=(0, (1, 2)))
    if log_rate:
        axes.set(xscale="log", xlim=(least, 1))
    for number, (name, curve) in enumerate(curves.items()):
        _band(axes, number, (bands or {}).get(name))
        look = _look(chart.theme, number)
        axes.plot(curve.fpr, curve.tpr, **look)
        if not math.isnan(_marked(curve)[0]):
            _dot(axes, _marked(curve), look["color"])
    return chart


@house_style
def precision_recall(
    curves: Mapping[str, PrecisionRecallCurve],
    *,
    areas: Areas | None = None,
    bands: Bands | None = None,
    title: str = "Precision and recall",
    theme: str = "light",
) -> Chart:
    """Return precision-recall curves by name, as steps: nothing is interpolated.

    A dotted line is the share of positives, which the precision of a guess has. ``areas`` and
    ``bands`` as for :func:`roc`.
    """
    shares = {name: c.precision[-1].item() for name, c in curves.items() if len(c.precision)}
    facts = {
        "figure": "precision_recall",
        "rule": "steps, nothing is interpolated, ties whole; points may be left out",
        "curves": {
            name: c._asdict() | {"prevalence": shares.get(name)} for name, c in curves.items()
        },
        "areas": areas or {},
        "bands": bands or {},
    }
    chart, axes = _square(title, curves, areas, "AP", theme, facts)
    _limits(axes, "recall", "precision")
    for number, (name, curve) in enumerate(curves.items()):
        look = _look(chart.theme, number)
        _band(axes, number, (bands or {}).get(name))
        if name not in shares:
            continue
        hue = look["color"] if len(curves) > 1 else chart.theme.muted
        axes.axhline(shares[name], color=hue, linewidth=0.8, linestyle=(0, (1, 2)))
        if len(curves) == 1:
            axes.text(
                0.01, shares[name] + 0.008, f"{100 * shares[name]:.3g} % are positive", color=hue,
                size=SMALL_POINTS,
            )  # fmt: skip
        # Precision i holds from recall i - 1 on, and so does the first from 0.
        recall = np.append(0.0, curve.recall)
        axes.plot(
            recall, np.append(curve.precision[:1], curve.precision), drawstyle="steps-pre", **look
        )
        if len(curve.recall) == 1:
            _dot(axes, (float(curve.recall[0]), float(curve.precision[0])), look["color"])
    return chart


@house_style
def risk_coverage(
    curves: Mapping[str, RiskCoverageCurve],
    *,
    areas: Areas | None = None,
    title: str = "Risk and coverage",
    theme: str = "light",
) -> Chart:
    """Return risk-coverage curves by name, and thin ones: the best that their errors allow.

    Those are of models that are surest of all that they have right. ``areas`` are written beside
    the names; smaller ones are better.
    """
    facts = {
        "figure": "risk_coverage",
        "rule": "surest first, ties whole; points may be left out",
        "curves": {name: curve._asdict() for name, curve in curves.items()},
        "areas": areas or {},
    }
    chart, axes = _square(title, curves, areas, "AURC", theme, facts)
    settled = [c.risk[c.coverage >= SETTLED] for c in curves.values() if len(c.risk)]
    highest = max((float(risks.max()) for risks in settled), default=0.0)
    _limits(axes, "coverage", "risk: share that is wrong")
    axes.set_ylim(0, 1.15 * highest if highest else 0.1)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    for number, curve in enumerate(curves.values()):
        look = _look(chart.theme, number)
        if not len(curve.risk):
            continue
        right = 1 - float(curve.risk[-1])
        coverage = np.linspace(max(right, 1e-3), 1, 100)
        axes.plot(coverage, 1 - right / coverage, color=chart.theme.muted, linewidth=0.8)
        axes.plot(curve.coverage, curve.risk, **look)
        _dot(axes, (float(curve.coverage[-1]), float(curve.risk[-1])), look["color"])
    return chart


def _square(
    title: str,
    curves: Mapping[str, Any],
    areas: Areas | None,
    area: str,
    theme: str,
    facts: Mapping[str, Any],
) -> tuple[Chart, Axes]:
    """Return a chart with square axes, and below them the names of the curves."""
    colours = theme_of(theme)
    left, top = MARGIN + 38, MARGIN + HEADING
    rows = len(curves) if len(curves) > 1 else 0
    below = 34 + KEY_ROW * rows + MARGIN + (4 if rows else 0)
    chart = blank(left + SIDE + MARGIN + 10, top + SIDE + below, colours, facts)
    empty = [name for name, curve in curves.items() if not len(curve[0])]
    heading(chart, title, _subtitle(curves, areas, area))
    axes = panel(chart, left, top, SIDE, SIDE)
    if len(empty) == len(curves):
        axes.text(
            0.5, 0.5, "undefined: one class has no element", ha="center", va="center",
            color=colours.muted, style="italic", transform=axes.transAxes, zorder=5,
        )  # fmt: skip
    if rows:
        key = panel(chart, left, top + SIDE + 36, SIDE, KEY_ROW * rows)
        _key(key, curves, areas, colours)
    return chart, axes


def _subtitle(curves: Mapping[str, Any], areas: Areas | None, area: str) -> str:
    if len(curves) == 1:
        (name,) = curves
        parts = [name, f"{area} {told(areas[name])}" if areas and name in areas else ""]
    else:
        parts = [f"{area} beside each name" if areas else ""]
    if area == "AURC":
        parts.append("thin: best order")
    return "  ·  ".join(filter(None, parts))


def _key(axes: Axes, curves: Mapping[str, Any], areas: Areas | None, theme: Theme) -> None:
    axes.set(xlim=(0, SIDE), ylim=(KEY_ROW * len(curves), 0))
    axes.set_axis_off()
    for number, name in enumerate(curves):
        middle = KEY_ROW * (number + 0.5)
        axes.plot([0, 24], [middle, middle], **_look(theme, number), clip_on=False)
        look: dict[str, Any] = {"size": SMALL_POINTS + 0.5, "va": "center", "parse_math": False}
        text = told(areas[name]) if areas and name in areas else ""
        room = SIDE - 32 - (text_width(text, SMALL_POINTS + 0.5) + 10 if text else 0)
        axes.text(32, middle, fitted(name, SMALL_POINTS + 0.5, room), color=theme.ink, **look)
        axes.text(SIDE, middle, text, color=theme.muted, ha="right", **look)


def _limits(axes: Axes, across: str, up: str) -> None:
    axes.set(xlim=(-0.012, 1.0), ylim=(0.0, 1.012))
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "0.25", "0.5", "0.75", "1"])
    axes.set_xlabel(across, labelpad=3)
    axes.set_ylabel(up, labelpad=4)
    axes.grid(color=theme_in(axes).rule, linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)


def _look(theme: Theme, number: int) -> dict[str, Any]:
    return {
        "color": theme.hues[number % len(theme.hues)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.6,
        "solid_capstyle": "butt",
        "solid_joinstyle": "round",
    }


def _band(axes: Axes, number: int, band: Band | None) -> None:
    if band is not None:
        hues = theme_in(axes).hues
        hue = hues[number % len(hues)]
        axes.fill_between(band.across, band.lower, band.upper, color=hue, alpha=0.18, linewidth=0)


def _dot(axes: Axes, at: tuple[float, float], colour: str) -> None:
    paper = theme_in(axes).paper
    axes.plot(
        *at, "o", color=colour, markersize=6.5, markeredgecolor=paper, markeredgewidth=1.3,
        clip_on=False, zorder=4,
    )  # fmt: skip


def _marked(curve: ROCCurve) -> tuple[float, float]:
    """Return the first point that finds the marked share of the positives, NaN where none does."""
    reached = np.flatnonzero(curve.tpr >= MARKED_TPR)
    if not len(reached):
        return math.nan, math.nan
    return float(curve.fpr[reached[0]]), float(curve.tpr[reached[0]])
