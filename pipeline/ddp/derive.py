"""Metrics from what was kept: their own states, or a confusion matrix that they follow from.

A metric asks for statistics of rows that are gone. Where an equal statistic was kept, its result
is there; counts of classes, of some classes ignored, and of several merged into one follow from
the matrix, in integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.chunk import Schema
from pipeline.collection import Collection
from pipeline.content import digest, replaced
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.metrics import name_of
from pipeline.procedure import Metric
from pipeline.report.class_table import ClassTable, class_table
from pipeline.statistics import ClassCounts, ConfusionMatrix, Marginals

__all__ = ["Kept", "kept", "per_class"]

SCORES = "logits"
KEEP = (
    "the callback keeps one (keep_matrix=True) of predicted classes, at the threshold of the "
    "collection and without weights, for at most 1,024 classes"
)
Matrix = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Kept:
    """States of statistics over rows that are gone, and a confusion matrix of these rows."""

    schema: Schema
    states: Mapping[str, Any]
    """By the digest of the statistic."""
    matrix: Matrix | None = None
    counted: ConfusionMatrix | None = None
    """The statistic whose result the matrix is."""
    where: str = "what was kept"
    """What it is, for errors."""

    def outcome(self, metric: Metric) -> Any:
        """Return what a metric gives over those rows.

        Raises :class:`ConfigError` for a metric that needs what was not kept.
        """
        passes = metric.passes(self.schema)
        try:
            asked = next(passes)
        except MissingInputError as error:
            held = ", ".join(sorted(self.schema.arrays))
            raise ConfigError(
                f"{name_of(metric)} does not follow from {self.where}, whose batches held {held}; "
                "it can be asked for in training"
            ) from error
        try:
            passes.send({key: self._answer(metric, request) for key, request in asked.items()})
        except StopIteration as stop:
            return stop.value
        raise ConfigError(f"{name_of(metric)} reads its data more than once; the data are gone")

    def merged(self, groups: Sequence[Sequence[int]]) -> Kept:
        """Return what would have been kept if each group of classes had been one class."""
        if self.matrix is None:
            raise ConfigError(f"merge_classes: {self.where} holds no confusion matrix; {KEEP}")
        k = len(self.matrix)
        member = np.zeros((k, len(groups)), np.int64)
        for number, group in enumerate(groups):
            member[list(group), number] = 1
        by_truth = member.T @ self.matrix
        matrix = np.concatenate((by_truth[:, :k] @ member, by_truth[:, k:]), axis=1)
        arrays = dict(self.schema.arrays)
        if SCORES in arrays:  # one for each class
            arrays[SCORES] = replaced(
                arrays[SCORES], shape=(len(groups), *arrays[SCORES].shape[1:])
            )
        schema = replaced(self.schema, classes=len(groups), arrays=arrays)
        return replace(self, schema=schema, states={}, matrix=matrix)

    def _answer(self, metric: Metric, request: Any) -> Any:
        state = self.states.get(digest(request))
        if state is not None:
            return request.finalize(state)
        if isinstance(request, Marginals | ConfusionMatrix) and self._counts_alike(request):
            matrix = self._without(request.ignore)
            if isinstance(request, ConfusionMatrix):
                return matrix
            predicted = matrix[:, : len(matrix)].sum(axis=0)
            return ClassCounts(matrix.diagonal().copy(), matrix.sum(axis=1), predicted)
        raise ConfigError(
            f"{name_of(metric)} does not follow from {self.where}: it needs "
            f"{type(request).__name__} with options that were not kept, and of which no confusion "
            f"matrix tells; {KEEP}"
        )

    def _counts_alike(self, request: Marginals | ConfusionMatrix) -> bool:
        """Tell whether a statistic counts the same elements as the matrix, ignored ones apart."""
        own = self.counted
        return own is not None and (request.of, request.by, request.where) == (
            own.of,
            own.by,
            own.where,
        )

    def _without(self, ignore: Sequence[int]) -> Matrix:
        assert self.matrix is not None
        matrix = self.matrix.copy()
        matrix[[one for one in ignore if 0 <= one < len(matrix)]] = 0
        return matrix


def kept(metrics: Collection, matrix: Collection | None, where: str) -> Kept:
    """Return what collections of the same rows hold: metrics, and a confusion matrix if any.

    Raises :class:`DataError` for a matrix that is of other batches than the metrics.
    """
    if matrix is None:
        return Kept(metrics.schema, metrics.states, where=where)
    if matrix.updates != metrics.updates:
        raise DataError(
            f"{where}: the confusion matrix is of {matrix.updates} batches, the metrics of "
            f"{metrics.updates}; remove its partial files, or choose other moments"
        )
    (metric,) = dict(matrix.items()).values()
    (statistic,) = next(metric.passes(metrics.schema)).values()
    (state,) = matrix.states.values()
    return Kept(metrics.schema, metrics.states, state, statistic, where)


def per_class(collection: Collection) -> ClassTable | None:
    """Return the table of classes of all metrics that have a number for each.

    Whatever averages they were asked for: what they are made of is there.
    """
    there, names = kept(collection, None, "the collection"), collection.choice.class_names
    classes = names or tuple(map(str, range(collection.choice.classes)))
    metrics = {
        name: replaced(metric, average=("macro", "none"))
        for name, metric in collection.items()
        if "weighted" in getattr(metric, "known", ())  # averages over classes
    }
    if not metrics:
        return None
    numbers: dict[str, Any] = {f"{stem}_{label}": math.nan for stem in metrics for label in classes}
    outcomes = {name: there.outcome(metric) for name, metric in metrics.items()}
    numbers |= replace(collection.choice, metrics=metrics).keyed(outcomes)
    return class_table(numbers, classes)
