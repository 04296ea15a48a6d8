"""What all metrics of probabilities share: their options, and how the scores are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY
from typing import Any, final

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.lacking import lacking_scores
from pipeline.procedure import Passes
from pipeline.statistics.exact_sums import ExactSums
from pipeline.tasks import check_task, ignored
from pipeline.views import Every, Labelled, View
from pipeline.views.judged import CountedElements, Judged, Judgements
from pipeline.views.quantities import KINDS

__all__ = ["NO_ELEMENTS", "Judging", "Sided", "check_classes", "check_side"]

NO_ELEMENTS = "no element with a label counts"


@value
class Judging(ABC):
    """A metric of probabilities: an abstract base that is only ever derived from.

    ``task``: ``multiclass`` (scores (k, ...) of each element), ``binary`` (scores of class 1) or
    ``multilabel`` (a score for each of k labels). ``kind``: whether the scores are ``logits`` or
    ``probabilities``; it is never told from their values. ``ignore``: labels that do not count,
    one or several. ``field``: the array of scores. ``where``: filter of rows; by default rows with
    a label below 0 are left out where there is one label a row, and refused in masks.
    """

    _: KW_ONLY
    task: str = "multiclass"
    kind: str = "logits"
    ignore: int | tuple[int, ...] = ()
    field: str = "logits"
    where: View | None = None

    def __post_init__(self) -> None:
        check_task(self.task)
        if self.kind not in KINDS:
            raise ConfigError(f"kind: {self.kind!r} is unknown; choose {', '.join(KINDS)}")
        object.__setattr__(self, "ignore", ignored(self.ignore))

    @abstractmethod
    def passes(self, schema: Schema) -> Passes[Any]:
        """Yield the statistics of the metric; return its numbers by name."""

    @property
    def ignored(self) -> tuple[int, ...]:
        """Labels that do not count, in ascending order."""
        return self.ignore if isinstance(self.ignore, tuple) else (self.ignore,)

    @final
    def judgements(self, schema: Schema) -> Judgements:
        """Return the view of what the scores of a split say.

        Raises :class:`ConfigError` where the split does not fit the task.
        """
        if self.field not in schema.arrays:
            raise lacking_scores(self, schema, self.field, self.task)
        return Judgements(self.task, self.kind, self.field, self.among(schema))

    @final
    def among(self, schema: Schema) -> CountedElements:
        """Return the filter of elements."""
        if self.task == "binary" and schema.classes != 2:
            raise ConfigError(
                f"task: binary, but {schema.split} declares {schema.classes} classes; declare 2"
            )
        return CountedElements(self.task, self.ignored, self.rows(schema))

    @final
    def rows(self, schema: Schema) -> View:
        """Return the filter of rows."""
        several = "labels" in schema.arrays and schema.arrays["labels"].shape
        return self.where or (Every() if several else Labelled())

    @final
    def stored(self, schema: Schema) -> np.dtype[Any]:
        """Return the type of floats that probabilities are given in; float64 where computed."""
        given = schema.spec(self.field).memory_dtype
        return given if self.kind == "probabilities" and given.kind == "f" else np.dtype(np.float64)

    @final
    def summed(self, schema: Schema, quantity: str) -> ExactSums:
        """Return the statistic that sums one of the quantities of all elements that count."""
        judgements = self.judgements(schema)
        of = Judged(judgements, quantity)
        return ExactSums(of, self.rows(schema), judgements.among)


@value
class Sided(Judging):
    """A metric of the probability of one class of each element: an abstract base.

    ``of``: ``top_label``, the predicted class, right where it is the label; or ``positive``, class
    1 of two, or each label of a multilabel task. The two differ also for two classes, and so do
    the names of their numbers.
    """

    of: str = "top_label"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_side(self.of, self.task, ("top_label", "positive"))

    @property
    def suffix(self) -> str:
        """What names of numbers end in."""
        return "_positive" if self.of == "positive" else ""

    @final
    def sides(self, schema: Schema) -> tuple[Judged, Judged]:
        """Return the views of probabilities and of whether they are of the label."""
        check_classes(self.of, self.task, schema)
        judgements = self.judgements(schema)
        names = ("positive", "is_positive") if self.suffix else ("confidence", "hit")
        probability, right = (Judged(judgements, name) for name in names)
        return probability, right


def check_side(of: str, task: str, sides: tuple[str, ...]) -> None:
    """Raise :class:`ConfigError` for probabilities ``of`` something that a task does not have."""
    if of not in sides:
        raise ConfigError(f"of: {of!r} is unknown; choose {' or '.join(sides)}")
    if task == "multilabel" and of != "positive":
        raise ConfigError(
            f"of: {of!r} needs one class for each element, labels of a multilabel task have none; "
            "choose of='positive'"
        )


def check_classes(of: str, task: str, schema: Schema) -> None:
    """Raise :class:`ConfigError` where more than two classes have no positive one."""
    if of == "positive" and task == "multiclass" and schema.classes != 2:
        raise ConfigError(
            f"of: 'positive' is class 1 of two, {schema.split} declares {schema.classes} classes"
        )
