"""Figures of square matrices: confusion of classes, and agreement between detectors."""

from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection

from pipeline.report.figures import FAR, INK, NEAR, PAPER, RULE, blank, house_style, svg
from pipeline.report.schema import Agreement, Classification

CELL_TEXT_SIDE = 20
CONFUSION_BLOCKS = 40
LABEL_WIDTH = 5.6  # of a character, about
LABEL_HEIGHT = 13
LABEL_LIMIT = 34
MARGIN = 40


@house_style
def confusion(classification: Classification) -> str:
    """Confusion matrix with each true class scaled to one; counts in the cells of small ones."""
    labels = [str(entry["class"]) for entry in classification["per_class"]]
    counts = np.asarray(classification["confusion"], float)
    classes = len(counts)
    if classes > CONFUSION_BLOCKS:
        starts = np.arange(CONFUSION_BLOCKS) * classes // CONFUSION_BLOCKS
        counts = np.add.reduceat(np.add.reduceat(counts, starts, axis=0), starts, axis=1)
        labels = [labels[start] for start in starts]
    k = len(counts)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    small = k <= CELL_TEXT_SIDE
    shown = np.where(shares if small else shares >= 0.005, shares, 0.0)
    figure, axes = _square(k, max(240, min(32 * k, 480)), MARGIN)
    _cells(axes, shown, [f"{n:.0f}" if n else "" for n in counts.ravel()] if small else [])
    step = 1 if small else -(-k // 10)
    ticks = np.arange(0, k, step)
    axes.set(xticks=ticks + 0.5, yticks=ticks + 0.5)
    axes.set_xticklabels([labels[tick] for tick in ticks])
    axes.set_yticklabels([labels[tick] for tick in ticks])
    axes.set_xlabel("predicted class", labelpad=2)
    axes.set_ylabel("true class", labelpad=2)
    return svg(figure, f"Confusion matrix of {classes} classes on {classification['split']}")


@house_style
def agreement(found: Agreement) -> str:
    """Rank correlation between detectors: alike in blue, contrary in orange; two decimals."""
    names = [shortened(name) for name in found["detectors"]]
    matrix = np.array([[np.nan if r is None else r for r in row] for row in found["spearman"]])
    k, margin = len(names), LABEL_WIDTH * max(map(len, names)) + 12
    side = max(240, (32 if k <= CELL_TEXT_SIDE else LABEL_HEIGHT) * k)
    figure, axes = _square(k, side, margin)
    words = [_hundredths(value) for value in matrix.ravel()]
    _cells(axes, np.nan_to_num(matrix), words if k <= CELL_TEXT_SIDE else [])
    places = np.arange(k) + 0.5
    axes.set_xticks(places, names, rotation=90)
    axes.set_yticks(places, names)
    return svg(figure, f"Spearman correlation between the scores of {k} detectors")


def shortened(name: str) -> str:
    """A name that leaves room for the matrix: without its middle, as its ends tell sweeps apart."""
    half = LABEL_LIMIT // 2
    return name if len(name) <= LABEL_LIMIT else f"{name[: half - 1]}…{name[-half:]}"


def _hundredths(value: float) -> str:
    """A correlation in two digits without the point, as tables of loadings print them."""
    return "" if np.isnan(value) else f"{100 * value:.0f}"


def _square(k: int, side: float, margin: float) -> tuple[Any, Any]:
    """Return a figure of k x k cells with room for labels below and on the left."""
    whole = side + margin + 4
    figure = blank(whole, whole)
    axes = figure.add_axes((margin / whole, margin / whole, side / whole, side / whole))
    axes.set(xlim=(0, k), ylim=(k, 0))
    axes.tick_params(length=0)
    axes.spines[:].set_color(RULE)
    return figure, axes


def _cells(axes: Any, matrix: np.ndarray[Any, Any], words: list[str]) -> None:
    """Fill the cells whose values in [-1, 1] are not zero, and write words into all of them."""
    rows, columns = np.nonzero(matrix)
    corners = np.array([(0.03, 0.03), (0.97, 0.03), (0.97, 0.97), (0.03, 0.97)])
    squares = corners + np.stack([columns, rows], axis=1)[:, None]
    fills = [
        (NEAR if value > 0 else FAR, round(0.06 + 0.94 * abs(value), 2))
        for value in matrix[rows, columns]
    ]
    axes.add_collection(
        PolyCollection(list(squares), facecolors=fills, linewidths=0), autolim=False
    )
    k = len(matrix)
    for place, word in enumerate(words):
        row, column = divmod(place, k)
        text = axes.text(column + 0.5, row + 0.5, word)
        text.set(ha="center", va="center_baseline", size=10 if k <= 12 else 8)
        text.set_color(PAPER if abs(matrix[row, column]) > 0.5 else INK)
