"""The confusion matrix beside the metrics of a collection: of the same rows, or of none at all.

It counts every element that has a class, ignored classes included, without weights. Where it
cannot be of the rows of the metrics it is dropped until the next reset, when both begin anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Self

from pipeline import metrics as known_metrics
from pipeline.choice import Choice
from pipeline.collection import Collection
from pipeline.errors import DataError

__all__ = ["MATRIX_CLASSES", "KeptMatrix"]

MATRIX_CLASSES = 1024
"""Most classes of which a confusion matrix is kept: 8 MiB of integers."""


class KeptMatrix:
    """A confusion matrix that goes wherever the metrics go."""

    def __init__(self, choice: Choice, threshold: float, ignored: set[int]) -> None:
        self._choice = choice
        self._metric = known_metrics.ConfusionMatrix(
            task=choice.task,
            threshold=threshold,
            ignore=tuple(one for one in sorted(ignored) if not 0 <= one < choice.classes),
        )
        self.counts: Collection | None = None
        """What was counted; None where that is not of the rows of the metrics."""
        self.reset()

    def update(self, preds: Any, target: Any) -> None:
        """Count a batch that the metrics have taken in, or drop the matrix and say so."""
        if self.counts is None:
            return
        try:
            self.counts.update(preds, target)
        except DataError as error:  # scores of ignored classes, which metrics do not look at
            self.drop()
            warnings.warn(f"no confusion matrix is kept any more: {error}", stacklevel=4)

    def add(self, counts: Collection | None) -> None:
        """Add what was counted elsewhere, beside rows that the metrics take in from there."""
        if self.counts is None or counts is None:
            self.drop()
        else:
            self.counts.merge(counts)

    def drop(self) -> None:
        """Keep none until the next reset."""
        self.counts = None

    def reset(self) -> None:
        """Begin anew."""
        self.counts = Collection(
            [self._metric], classes=self._choice.classes, task=self._choice.task
        )

    def load(self, state_dict: Mapping[str, Any] | None) -> None:
        """Take the place of what was counted by what was saved, if anything was."""
        self.reset()
        if self.counts is not None and state_dict:
            self.counts.load_state_dict(state_dict)
        else:
            self.drop()

    def clone(self) -> Self:
        """Return an independent copy."""
        made = type(self).__new__(type(self))
        made._choice, made._metric = self._choice, self._metric
        made.counts = None if self.counts is None else self.counts.clone()
        return made
