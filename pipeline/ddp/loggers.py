"""Tables and figures for the loggers that can show them: TensorBoard and Weights & Biases.

Loggers of both Lightning packages are known by the name of their class; others are left alone.
"""

from __future__ import annotations

import math
from typing import Any

from pipeline.report.class_table import ClassTable

__all__ = ["add_figure", "add_table"]


def add_table(logger: Any, tag: str, table: ClassTable, step: int) -> None:
    """Show a table of classes: as text in TensorBoard, as a table in W&B."""
    kind = _kind(logger)
    if kind == "TensorBoardLogger":
        logger.experiment.add_text(tag, table.markdown(), step)
    elif kind == "WandbLogger":
        data = [[name, *map(_cell, values)] for name, values in table.rows]
        logger.log_table(key=tag, columns=["class", *table.metrics], data=data, step=step)


def add_figure(logger: Any, tag: str, figure: Any, step: int) -> None:
    """Show a figure as an image."""
    kind = _kind(logger)
    if kind == "TensorBoardLogger":
        logger.experiment.add_image(tag, _pixels(figure), step, dataformats="HWC")
    elif kind == "WandbLogger":
        logger.log_image(key=tag, images=[_pixels(figure)], step=step)


def _kind(logger: Any) -> str:
    names = [cls.__name__ for cls in type(logger).__mro__]
    return next((name for name in names if name in ("TensorBoardLogger", "WandbLogger")), "")


def _cell(value: float) -> float | None:
    return None if math.isnan(value) else value


def _pixels(figure: Any) -> Any:
    """Return a figure of matplotlib as (h, w, 3) uint8."""
    from pipeline.report.panels import pixels

    return pixels(figure)
