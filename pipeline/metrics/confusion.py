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

Counts = np.ndarray[Any, np.dtype[np.int64]]


class ConfusionTable(NamedTuple):
    """A confusion matrix; normalising it is a view, the counts stay whole numbers."""

    counts: Counts
    """Elements per label (down) and prediction (across): (k, k) int64."""
    ignored: Counts | None = None
    """Elements per label (k,) that were predicted as a value that does not count; None of none."""

    @property
    def undecided(self) -> Counts:
        """Elements per label (k,) that were predicted as no class: misses, but of no column."""
        return np.zeros(len(self.counts), np.int64) if self.ignored is None else self.ignored

    @property
    def marginals(self) -> ClassCounts:
        """Counts per class, from which every other metric of classes follows."""
        truth = self.counts.sum(1) + self.undecided
        return ClassCounts(self.counts.diagonal(), truth, self.counts.sum(0))

    def normalised(self, by: str = "label") -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return shares (k, k) of each ``label`` (rows sum to 1, with :attr:`undecided`), of each
        ``prediction`` (columns do) or of ``all``; NaN where a label or prediction never occurs.
        """
        if by not in ("label", "prediction", "all"):
            raise ConfigError(f"by: {by!r} is unknown; choose label, prediction, all")
        _, truth, predicted = self.marginals
        total = {"label": truth[:, None], "prediction": predicted[None], "all": truth.sum()}[by]
        return np.where(total > 0, self.counts / np.maximum(total, 1), np.nan)


@final
@value
class ConfusionMatrix(Counting):
    """Counts of predictions per label: a :class:`ConfusionTable`; a state of k x k integers.

    A value of ``ignore`` outside the classes that is predicted for an element that counts is a
    miss, as of every other metric: it has a column of its own.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "multilabel":
            raise ConfigError(
                "confusion_matrix: labels of a multilabel task do not exclude each other, and none "
                "is mistaken for another; ask for precision and recall with average='none'"
            )
        if self.weights is not None:
            raise ConfigError("confusion_matrix: it counts elements; leave weights out")

    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        of, by, where, ignore = inputs[2:6]
        return {"confusion": ConfusionCounts(of, by, where, ignore)}

    def numbers(self, results: Mapping[str, Any]) -> ConfusionTable:
        counts = results["confusion"]
        k = len(counts)
        return ConfusionTable(counts[:, :k], counts[:, k] if counts.shape[1] > k else None)
