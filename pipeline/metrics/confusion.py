"""The confusion matrix itself: asked for by name only, since its size is the classes squared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np

from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.counting import Counting, Inputs
from pipeline.statistics import ClassCounts
from pipeline.statistics import ConfusionMatrix as ConfusionCounts

__all__ = ["ConfusionMatrix", "ConfusionTable"]


class ConfusionTable(NamedTuple):
    """A confusion matrix; normalising it is a view, the counts stay whole numbers."""

    counts: np.ndarray[Any, np.dtype[np.int64]]
    """Elements per label (down) and prediction (across): (k, k) int64."""

    @property
    def marginals(self) -> ClassCounts:
        """Counts per class, from which every other metric of classes follows."""
        return ClassCounts(self.counts.diagonal(), self.counts.sum(1), self.counts.sum(0))

    def normalised(self, by: str = "label") -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return shares (k, k) of each ``label`` (rows sum to 1), ``prediction`` (columns) or
        of ``all``; NaN where a label or prediction never occurs.
        """
        axes = {"label": 1, "prediction": 0, "all": None}
        if by not in axes:
            raise ConfigError(f"by: {by!r} is unknown; choose {', '.join(axes)}")
        total = self.counts.sum(axis=axes[by], keepdims=True)
        return np.where(total > 0, self.counts / np.maximum(total, 1), np.nan)


@final
@value
class ConfusionMatrix(Counting):
    """Counts of predictions per label: a :class:`ConfusionTable`; a state of k x k integers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "multilabel" or self.weights is not None:
            option = "task: multilabel" if self.task == "multilabel" else "weights"
            raise ConfigError(f"{option}: a confusion matrix counts elements of one class each")

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        of, by, where, ignore = inputs[2:6]
        return {"confusion": ConfusionCounts(of, by, where, ignore)}

    def numbers(self, results: Mapping[str, Any]) -> ConfusionTable:
        return ConfusionTable(results["confusion"])
