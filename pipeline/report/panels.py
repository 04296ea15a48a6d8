"""Panels of segmented images: what was seen, what is true, what was predicted, what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

__all__ = ["Sample", "class_colours", "panels", "pixels"]

Floats = np.ndarray[Any, np.dtype[np.float64]]

COLUMNS = ("Image", "Truth", "Prediction", "Errors")
INK, MUTED, PAPER = "#1f2328", "#656d76", "#ffffff"
ERROR, VOID = (0.84, 0.15, 0.19), (0.82, 0.83, 0.85)
FIRST = (0.44, 0.47, 0.52)
"""Colour of class 0: background, as a rule."""
GOLDEN_TURN = (3 - math.sqrt(5)) * math.pi
LIGHTNESS, CHROMA = (0.66, 0.80, 0.52), 0.135
CELL_INCHES, GAP_INCHES, TITLE_INCHES, HEADING_INCHES = 2.2, 0.06, 0.24, 0.28
LEGEND_ROW_INCHES, LEGEND_COLUMN_INCHES = 0.215, 1.45
LEGEND_LIMIT = 40


class Sample(NamedTuple):
    """One image with its masks."""

    image: Floats
    """(h, w, 3), from 0 to 1."""
    truth: np.ndarray[Any, np.dtype[np.integer]]
    """(h, w) classes; those outside 0 to k - 1, or ignored, are void."""
    predicted: np.ndarray[Any, np.dtype[np.integer]]
    """(h, w) classes."""


def panels(
    samples: Sequence[Sample],
    class_names: Sequence[str],
    *,
    ignore: Sequence[int] = (),
    title: str = "",
) -> Figure:
    """Return a figure with a row for each sample: image, truth, prediction, and errors over it.

    The legend names the classes that are seen in some mask; above each row of errors stands the
    share of pixels that are wrong, of those that count.
    """
    colours = class_colours(len(class_names))
    shown = _classes_in(samples, len(class_names), ignore)
    ratio = max(sample.truth.shape[0] / sample.truth.shape[1] for sample in samples)
    rows, columns = len(samples), len(COLUMNS)
    width = columns * CELL_INCHES + (columns + 1) * GAP_INCHES
    per_row = max(1, int(width // LEGEND_COLUMN_INCHES))
    foot_inches = LEGEND_ROW_INCHES * (math.ceil((len(shown) + 2) / per_row) + 0.6)
    top_inches = TITLE_INCHES * bool(title) + HEADING_INCHES
    height = top_inches + rows * (CELL_INCHES * ratio + GAP_INCHES) + foot_inches
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    axes = figure.subplots(
        rows, columns, squeeze=False,
        gridspec_kw={
            "left": GAP_INCHES / width, "right": 1 - GAP_INCHES / width,
            "top": 1 - top_inches / height, "bottom": (foot_inches + GAP_INCHES) / height,
            "wspace": GAP_INCHES / CELL_INCHES, "hspace": GAP_INCHES / (CELL_INCHES * ratio),
        },
    )  # fmt: skip
    if title:
        figure.text(
            GAP_INCHES / width, 1 - GAP_INCHES / height, title, color=INK, size=11,
            weight="bold", va="top",
        )  # fmt: skip
    for column, name in enumerate(COLUMNS):
        axes[0][column].set_title(name, color=MUTED, size=9, loc="left", pad=4)
    for row, sample in zip(axes, samples, strict=True):
        _draw(row, sample, colours, len(class_names), ignore)
    _legend(figure, class_names, colours, shown, per_row)
    return figure


def class_colours(classes: int) -> Floats:
    """Return (k, 3) colours, told apart by hue, and by lightness where hues come close.

    The colour of a class does not depend on how many there are.
    """
    number = np.arange(classes)
    hue = 0.45 + GOLDEN_TURN * number
    light = np.array(LIGHTNESS)[number % len(LIGHTNESS)]
    colours = _srgb(light, CHROMA * np.cos(hue), CHROMA * np.sin(hue))
    colours[:1] = FIRST
    return colours


def _srgb(light: Floats, a: Floats, b: Floats) -> Floats:
    """Return colours of Oklab (Ottosson, 2020) in sRGB, clipped to what can be shown."""
    lms = np.stack(
        [
            light + 0.3963377774 * a + 0.2158037573 * b,
            light - 0.1055613458 * a - 0.0638541728 * b,
            light - 0.0894841775 * a - 1.2914855480 * b,
        ],
        axis=-1,
    )
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip(lms**3 @ to_linear.T, 0, 1)
    dark = linear <= 0.0031308
    shown: Floats = np.where(dark, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return shown


def _classes_in(samples: Sequence[Sample], classes: int, ignore: Sequence[int]) -> list[int]:
    seen = np.unique(np.concatenate([m.ravel() for s in samples for m in (s.truth, s.predicted)]))
    return [int(c) for c in seen if 0 <= c < classes and c not in ignore]


def _draw(
    row: Sequence[Axes], sample: Sample, colours: Floats, classes: int, ignore: Sequence[int]
) -> None:
    void = (sample.truth < 0) | (sample.truth >= classes) | np.isin(sample.truth, list(ignore))
    wrong = (sample.predicted != sample.truth) & ~void
    gray = 0.35 + 0.6 * sample.image.mean(axis=2, keepdims=True).repeat(3, axis=2)
    errors = np.where(wrong[..., None], 0.25 * gray + 0.75 * np.array(ERROR), gray)
    errors = np.where(void[..., None], np.array(VOID), errors)
    pictures = (
        sample.image,
        _coloured(sample.truth, colours, void),
        _coloured(sample.predicted, colours, np.zeros_like(void)),
        errors,
    )
    for axes, picture in zip(row, pictures, strict=True):
        axes.imshow(np.clip(picture, 0, 1), interpolation="nearest", aspect="equal")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    counted = int((~void).sum())
    share = f"{wrong.sum() / counted:.1%} wrong" if counted else "void"
    row[-1].text(
        0.975, 0.03, share, transform=row[-1].transAxes, ha="right", va="bottom", size=8,
        color=INK, bbox={"boxstyle": "round,pad=0.25", "fc": PAPER, "ec": "none", "alpha": 0.85},
    )  # fmt: skip


def _coloured(mask: Any, colours: Floats, void: Any) -> Floats:
    outside = (mask < 0) | (mask >= len(colours))
    picture = colours[np.where(outside, 0, mask)]
    return np.where((void | outside)[..., None], np.array(VOID), picture)


def _legend(
    figure: Figure, names: Sequence[str], colours: Floats, shown: Sequence[int], per_row: int
) -> None:
    named = shown[:LEGEND_LIMIT]
    entries = [Patch(color=colours[c], label=names[c]) for c in named]
    if len(shown) > len(named):
        entries.append(Patch(color=PAPER, label=f"and {len(shown) - len(named)} more"))
    entries += [Patch(color=ERROR, label="wrong"), Patch(color=VOID, label="void")]
    figure.legend(
        handles=entries, loc="lower left", bbox_to_anchor=(0.0, 0.0), ncols=per_row,
        frameon=False, fontsize=8, labelcolor=INK, handlelength=1.0, handleheight=1.0,
        columnspacing=1.2, borderaxespad=0.3,
    )  # fmt: skip


def pixels(figure: Figure, dpi: int = 110) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a figure as an image (h, w, 3)."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
