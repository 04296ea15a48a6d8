"""What a phase shows of its metrics: a table of the classes, and panels of some samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.collection import Collection as OneProcess
from pipeline.ddp.derive import per_class
from pipeline.ddp.loggers import add_figure, add_table
from pipeline.ddp.panels import Panels, figure, taken
from pipeline.ddp.trainer import Found

__all__ = ["Shown"]


class Shown:
    """Tables and panels for the loggers of a trainer, from rank zero."""

    def __init__(self, table: Sequence[str], panels: Panels | None) -> None:
        self._table, self._panels = table, panels
        self._samples: dict[str, list[Any]] = {}

    def begin(self, trainer: Any, found: Found) -> None:
        """Begin a phase, whose first batches may be wanted."""
        self._samples[found.name] = []
        panels = self._panels
        wanted = panels is not None and panels.due(found.phase, int(trainer.current_epoch))
        found.collection.remembers = (
            wanted and trainer.is_global_zero and not trainer.sanity_checking
        )

    def remember(self, found: Found, batch: Any) -> None:
        """Keep samples of a batch that the collection has just been given, while any are wanted."""
        if self._panels is None or not found.collection.remembers:
            return
        samples = self._samples.setdefault(found.name, [])
        room = self._panels.samples - len(samples)
        samples += taken(self._panels, batch, found.collection, room)
        found.collection.remembers = len(samples) < self._panels.samples

    def report(self, trainer: Any, found: Found, total: OneProcess) -> None:
        """Show the table of classes and the panels of a phase that has ended, where wanted."""
        step = int(trainer.global_step)
        if found.phase in self._table and (table := per_class(total)) is not None:
            for logger in trainer.loggers:
                add_table(logger, f"{found.collection.prefix}per_class", table, step)
        samples = self._samples.pop(found.name, [])
        if samples:
            title = f"{found.phase}, epoch {trainer.current_epoch}, step {step}"
            for logger in trainer.loggers:
                picture = figure(samples, total.choice, title)
                add_figure(logger, f"{found.collection.prefix}panels", picture, step)
