"""What all metrics of scores share: their options, and which scores of which elements they rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY
from typing import Any, final

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.metrics.intervals import BOOTSTRAP, Confidence
from pipeline.metrics.lacking import lacking_scores
from pipeline.metrics.names import name_of
from pipeline.metrics.one_vs_rest import check_averages, one_vs_rest
from pipeline.metrics.ranked import Source, tallied
from pipeline.metrics.ranking import check_positive
from pipeline.metrics.tallies import Tally, Totals
from pipeline.procedure import MetricResult, Passes
from pipeline.statistics import BoundedRanks
from pipeline.statistics.bounded_ranks import BUDGET_NBYTES
from pipeline.tasks import check_task, ignored
from pipeline.views import Every, IsOOD, Labelled, Logits, LogSoftmax, Positive, Stored, View
from pipeline.views.judged import CountedElements

__all__ = ["BINARY", "OOD", "Numbers", "OfScores"]

OOD, BINARY, MULTICLASS, MULTILABEL = "ood", "binary", "multiclass", "multilabel"
EVERY = (OOD, BINARY, MULTICLASS, MULTILABEL)
LARGEST_BINS = 2**24
SCORES, LOGITS = "scores", "logits"
"""Arrays of scores that are looked for, in this order."""


@value
class OfScores(ABC):
    """What is ranked, of two classes or of one against others: an abstract base.

    ``task``: ``ood`` (high scores speak for out-of-distribution rows), ``binary`` (for label 1, of
    labels 0 and 1), ``multiclass`` or ``multilabel`` (for each of k classes against all others, of
    scores (k, ...)). ``positive``: the class that counts as found, where it is not moot: ``ood``,
    or ``id`` (the same scores, read from the bottom); of other tasks it is label 1, or the class.
    ``ignore``: labels that do not count, one or several. ``of``: view of the scores, by default the
    stored array ``scores``, else ``logits``; rows of any shape, a score for each element.
    ``softmax``: rank probabilities of classes by their logarithms, not the logits as they are.
    ``is_ood``: which rows are out-of-distribution; by default those of such splits. ``where``:
    filter of rows.

    Scores are kept in order, exactly, while they fit into ``budget`` bytes: 4 for each float32
    score, 8 for each of float64, and never more than 16 for each distinct one of a class. Where
    they do not, all is given with bounds, and ``bins`` asks for a further pass that counts them in
    so many bins, cut to the scores. ``fixed`` counts them between edges that are declared
    beforehand: such states have a fixed size and add up over processes.
    """

    _: KW_ONLY
    task: str = OOD
    positive: str = "ood"
    ignore: int | tuple[int, ...] = ()
    of: View | None = None
    softmax: bool = False
    is_ood: View | None = None
    where: View | None = None
    budget: int = BUDGET_NBYTES
    bins: int | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        check_task(self.task, EVERY)
        if self.task not in self.tasks:
            one = "; measure a class at a time, preds[:, c] and target == c, with task='binary'"
            raise ConfigError(
                f"{name_of(self)} has no {self.task} task, only {' and '.join(self.tasks)}"
                f"{one if BINARY in self.tasks else ''}"
            )
        check_positive(self.positive)
        if self.task != OOD and self.positive != "ood":
            raise ConfigError(f"positive: label 1 is positive in a {self.task} task; leave it out")
        if self.bins is not None and not 1 <= self.bins <= LARGEST_BINS:
            raise ConfigError(f"bins: {self.bins}; expected 1 to {LARGEST_BINS:,}, such as 65536")
        chosen = [name for name in ("exact", "bins", "fixed") if getattr(self, name, None)]
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)}: these exclude each other; choose one")
        if self.task != OOD and self.is_ood is not None:
            raise ConfigError(f"is_ood: a {self.task} task is told its classes by labels")
        if self.softmax and (self.task != MULTICLASS or self.of is not None):
            raise ConfigError("softmax: it is of the stored logits of a multiclass task")
        object.__setattr__(self, "ignore", ignored(self.ignore))
        BoundedRanks(Stored(SCORES), budget_nbytes=self.budget)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks that the metric has."""
        return EVERY

    @abstractmethod
    def passes(self, schema: Schema) -> Passes[Any]:
        """Yield the statistics of the metric; return what it makes of them."""

    @final
    @property
    def low(self) -> bool:
        """Whether low scores speak for the positive class."""
        return self.positive == "id"

    @final
    @property
    def side(self) -> str:
        """What names of numbers end in: the positive class, where it has a name."""
        return f"_{self.positive}" if self.task == OOD else ""

    @final
    @property
    def ignored(self) -> tuple[int, ...]:
        """Labels that do not count, in ascending order."""
        return ignored(self.ignore)

    @final
    def totals(self, negatives: int, positives: int) -> Totals:
        """Return the rows of both classes, and which of them is missing."""
        names = ("in-distribution row", "out-of-distribution row")
        if self.task == BINARY:
            names = ("element with label 0", "element with label 1")
        rows = zip(names, (negatives, positives), strict=True)
        return Totals(negatives, positives, " and ".join(f"no {n}" for n, some in rows if not some))

    @final
    def source(self, schema: Schema) -> Source:
        """Return what is ranked of a split."""
        options = (self.budget, getattr(self, "exact", False), self.bins, self.fixed)
        if self.task == OOD:
            of = self.of or self._stored(schema)
            return Source(of, self.is_ood or IsOOD(), self.where or Every(), *options)
        if self.task == BINARY and schema.classes != 2:
            raise ConfigError(
                f"task: binary, but {schema.split} declares {schema.classes} classes; declare 2"
            )
        several = schema.spec("labels").shape
        rows = self.where or (Every() if several else Labelled())
        counted = CountedElements(self.task, self.ignored, rows)
        return Source(self.of or self._stored(schema), Positive(), counted, *options)

    @final
    def _stored(self, schema: Schema) -> View:
        if not {SCORES, LOGITS} & schema.arrays.keys():
            raise lacking_scores(self, schema, f"{SCORES} or {LOGITS}", self.task)
        if self.task in (MULTICLASS, MULTILABEL):
            return LogSoftmax(Logits(LOGITS)) if self.softmax else Stored(LOGITS)
        return Stored(SCORES if SCORES in schema.arrays else LOGITS)


@value
class Numbers(OfScores):
    """A metric of scores whose numbers add up bin by bin: an abstract base.

    ``exact``: the scores are read again range by range until every number is exact, whatever fits.
    ``average`` over classes: macro, weighted, micro or none, one or several; see
    :func:`~pipeline.metrics.one_vs_rest.one_vs_rest`. ``interval`` adds the ends of the confidence
    interval of each number, ``{name}_ci_lower`` and ``_ci_upper``: ``bootstrap``, or of AUROC
    ``delong``, see :mod:`pipeline.metrics.intervals`, at ``level``, from so many ``replicates`` of
    a ``seed``.
    """

    _: KW_ONLY
    exact: bool = False
    average: str | tuple[str, ...] = "macro"
    interval: str = ""
    level: float = 0.95
    replicates: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_averages(self.averages)
        self.confidence.check(self.intervals)
        if self.interval and self.task not in (OOD, BINARY):
            raise ConfigError(f"interval: a {self.task} task has none; ask for it class by class")

    @property
    def averages(self) -> tuple[str, ...]:
        """Averages over classes."""
        return self.average if isinstance(self.average, tuple) else (self.average,)

    @property
    def intervals(self) -> tuple[str, ...]:
        """Methods of confidence intervals that the metric has."""
        return (BOOTSTRAP,)

    @property
    def confidence(self) -> Confidence:
        """Which confidence interval is wanted."""
        return Confidence(self.interval, self.level, self.replicates, self.seed)

    @abstractmethod
    def tally(self, totals: Totals) -> Tally:
        """Return what adds up the numbers, of so many rows in all."""

    @final
    def passes(self, schema: Schema) -> Passes[MetricResult]:
        """Ask for ranks until the numbers are as exact as was asked for; return them."""
        source = self.source(schema)
        if self.task in (OOD, BINARY):
            confidence = self.confidence if self.interval else None
            return (yield from tallied(source, self, schema, confidence))
        several = self.task == MULTILABEL
        left_out = () if several else self.ignored
        return (yield from one_vs_rest(self, source, self.averages, several, schema, left_out))
