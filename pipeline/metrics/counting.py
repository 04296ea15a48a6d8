"""What all metrics of predicted classes share: their options, and the arrays they read.

A task is declared and never guessed from values: ``multiclass`` (k classes), ``binary`` (two, of
which class 1 is positive) or ``multilabel`` (k labels, each 0 or 1, first axis of a row). Rows may
be of any shape: every element of a mask counts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError, DataError
from pipeline.metrics.lacking import lacking_scores
from pipeline.procedure import Passes
from pipeline.statistics import LabelMarginals, Marginals, WeightedMarginals
from pipeline.tasks import check_task, ignored
from pipeline.views import AmongTop, ArgMax, AtLeast, Every, Labelled, Stored, Truth, View

__all__ = ["Counting", "Inputs"]

PREDICTIONS, SCORES = "predictions", "logits"
"""Arrays of predicted classes, and of scores that they are taken from where there are none."""


class Inputs(NamedTuple):
    """Views of what is counted, and what does not count."""

    task: str
    classes: int
    of: View
    by: View
    where: View
    ignore: tuple[int, ...]
    weights: View | None

    @property
    def margins(self) -> Any:
        """The statistic of the counts of each class, or of each label."""
        of, by, where, ignore, weights = self[2:]
        if self.task == "multilabel":
            return LabelMarginals(of, by, where, ignore, weights)
        if weights is not None:
            return WeightedMarginals(of, by, where, ignore, weights)
        return Marginals(of, by, where, ignore)


@value
class Counting(ABC):
    """A metric of predicted classes: an abstract base that is only ever derived from.

    ``ignore``: labels that do not count, one or several, within the classes or not; such a class
    has no value and enters no average, and to predict it is a miss. For labels a row may have
    several of, the entries of such a value do not count. ``of``: the view of predicted classes; by
    default the stored array ``predictions``, else the first largest of ``logits``, or whether they
    are at least ``threshold``. ``top_k``: a label among so many largest scores counts as predicted;
    equal scores are in the order of their classes. ``weights``: name of an array of one weight for
    each row. ``where``: filter of rows; by default rows with a label below 0 are left out of splits
    with one label a row and logits, and refused where predictions, or masks, are brought.
    """

    task: str = "multiclass"
    ignore: int | tuple[int, ...] = ()
    threshold: float = 0.5
    top_k: int = 1
    weights: str | None = None
    of: View | None = None
    where: View | None = None

    def __post_init__(self) -> None:
        check_task(self.task)
        if not math.isfinite(self.threshold):
            raise ConfigError(f"threshold: {self.threshold}; expected a number such as 0.5")
        if self.top_k < 1:
            raise ConfigError(f"top_k: {self.top_k}; expected 1 or more")
        if self.top_k > 1 and self.task != "multiclass":
            raise ConfigError(f"top_k: {self.top_k}; expected 1 for a {self.task} task")
        if self.top_k > 1 and self.of is not None:
            raise ConfigError("top_k: it chooses among stored logits; leave out of")
        object.__setattr__(self, "ignore", ignored(self.ignore))

    @property
    def ignored(self) -> tuple[int, ...]:
        """Labels that do not count, in ascending order."""
        return self.ignore if isinstance(self.ignore, tuple) else (self.ignore,)

    @abstractmethod
    def asked(self, inputs: Inputs) -> Mapping[str, Any]:
        """Return the statistics that the metric needs, under names of its choice."""

    @abstractmethod
    def numbers(self, results: Mapping[str, Any]) -> Any:
        """Return the numbers of the metric from the results of those statistics."""

    @final
    def passes(self, schema: Schema) -> Passes[Any]:
        """Ask for the counts; return the numbers."""
        results = yield self.asked(self._inputs(schema))
        return self.numbers(results)

    @final
    def _inputs(self, schema: Schema) -> Inputs:
        """Return what is counted of a split."""
        labels = schema.spec("labels")
        if self.task == "binary" and schema.classes != 2:
            raise ConfigError(
                f"task: binary, but {schema.split} declares {schema.classes} classes; declare 2"
            )
        of = self._predicted(schema)
        if tuple(of.shape(schema)) != labels.shape:
            raise DataError(
                f"{schema.split}: rows of predictions have shape {tuple(of.shape(schema))}, those "
                f"of labels {labels.shape}; expected one prediction for each label of a "
                f"{self.task} task"
            )
        brought = of == Stored(PREDICTIONS) or labels.shape
        where = self.where or (Every() if brought else Labelled())
        ignore = self.ignored
        if where == Labelled():  # labels below 0 are left out anyway
            ignore = tuple(c for c in ignore if c >= 0)
        weights = None if self.weights is None else Stored(self.weights)
        return Inputs(self.task, schema.classes, of, Truth(), where, ignore, weights)

    @final
    def _predicted(self, schema: Schema) -> View:
        if self.of is not None:
            return self.of
        if self.top_k > schema.classes:
            raise ConfigError(f"top_k: {self.top_k}; {schema.split} has {schema.classes} classes")
        if PREDICTIONS in schema.arrays and self.top_k == 1:
            return Stored(PREDICTIONS)
        if SCORES not in schema.arrays:
            wanted = SCORES if self.top_k > 1 else f"{PREDICTIONS} or {SCORES}"
            raise lacking_scores(self, schema, wanted, self.task)
        if self.task != "multiclass":
            return AtLeast(self.threshold, SCORES)
        return ArgMax(SCORES) if self.top_k == 1 else AmongTop(self.top_k, SCORES)
