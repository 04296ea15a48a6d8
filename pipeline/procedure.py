"""Procedures: detectors and metrics as generators, what they may ask for, and how they combine.

A procedure yields the statistics it needs under names of its choice, is sent their results under
the same names, and may ask again: one yield is one pass over the data. It returns what was asked
of it: a scorer, or metric values. Procedures run on the client only and never touch data.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from pipeline import arrays
from pipeline.arrays import TILE_ROWS, Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.statistics import Statistic
from pipeline.views import View, memoised
from pipeline.views.base import valid_tokens

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

TRAIN, VAL, VAL_OOD = "train", "val", "val_ood"

SCORE_ARRAYS = 4
"""Arrays of scores that are held while scores are computed."""
TILE_ARRAYS = 10
"""Arrays as wide as the widest view of a scorer and its classes, for each row of one tile."""


@value
class On:
    """A statistic over another split than the one that is fitted on: ``val`` or ``val_ood``."""

    role: str
    statistic: Any


@value
class Rows:
    """One output row per input row: written block by block, read back through a reader.

    A row whose stored values are not finite is an error, or with ``strict`` off whatever the view
    makes of it.
    """

    view: View
    strict: bool = True

    @property
    def views(self) -> tuple[View, ...]:
        return (self.view,)

    @property
    def fields(self) -> frozenset[str]:
        return self.view.fields


Request = Statistic[Any, Any] | On | Rows

REHEARSING: ContextVar[bool] = ContextVar("rehearsing", default=False)
"""Whether procedures run over made-up rows: numbers that depend on the data mean nothing then."""
Requests = Mapping[str, Any]
Results = Mapping[str, Any]
Passes = Generator[Requests, Results, T]


class Bank(Protocol):
    """Reference to the rows that a nearest-neighbour scorer compares with."""

    split: str
    view: View
    where: View


class Scorer(Protocol):
    """A fitted detector: a value of constants, views and scalars, which is exactly what is saved.

    Scores are float64 (n,), or (n, t) per token, and HIGHER MEANS MORE OUT-OF-DISTRIBUTION.
    """

    @property
    def views(self) -> tuple[View, ...]:
        """Every view it looks at."""
        ...

    @property
    def fields(self) -> frozenset[str]:
        """Stored arrays it reads."""
        ...

    @property
    def bank(self) -> Bank | None:
        """Rows it compares with, where it needs any."""
        ...

    def score(self, chunk: Chunk) -> Array:
        """Return one score per row of the chunk."""
        ...


class Procedure(Protocol[T_co]):
    """A detector or a metric: a value of its options, with the passes it needs."""

    def passes(self, schema: Schema) -> Passes[T_co]:
        """Yield requests, receive results, return the outcome."""
        ...


class Detector(Protocol):
    """A frozen set of hyper-parameters whose passes end in a scorer."""

    def passes(self, schema: Schema) -> Passes[Scorer]:
        """Yield the statistics of the fit; return the scorer."""
        ...


@value
class Estimate:
    """A metric's number with rigorous bounds; ``lower == upper`` where it is exact.

    An undefined number is NaN with a ``reason``.
    """

    value: float
    lower: float
    upper: float
    exact: bool = True
    reason: str = ""

    def __float__(self) -> float:
        return self.value


MetricResult = Mapping[str, Estimate]


class Metric(Protocol):
    """A frozen set of options whose passes end in named numbers."""

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        """Yield the statistics of the metric; return its numbers by name."""
        ...


@value
class Scored:
    """The scores of a scorer as a view () float64; of tokens, the largest of the valid ones."""

    scorer: Any

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self.scorer.fields)

    def shape(self, schema: Schema) -> tuple[int, ...]:
        for view in self.scorer.views:
            view.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return Scores(self.scorer).nbytes(schema, rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        scores = Scores(self.scorer)(chunk)
        if scores.ndim == 1:
            return scores
        xp = arrays.namespace(scores)
        if "mask" not in chunk.arrays:
            return xp.max(scores, axis=1)
        valid = valid_tokens(chunk)
        largest = xp.max(xp.where(valid, scores, xp.full_like(scores, -xp.inf)), axis=1)
        return xp.where(xp.any(valid, axis=1), largest, xp.full_like(largest, xp.nan))


@value
class Scores:
    """The scores of a scorer as they are: () float64, or (t,) per token, NaN for masked ones."""

    scorer: Any

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(self.scorer.fields)

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        # Scorers work through the rows tile by tile: only the scores themselves grow with them.
        shapes = [view.shape(schema) for view in self.scorer.views]
        scores = rows * max(shape[0] if len(shape) == 2 else 1 for shape in shapes)
        width = max((1, *(shape[-1] for shape in shapes if shape)))
        tile_nbytes = 8 * TILE_ROWS * int(width + schema.classes)
        return SCORE_ARRAYS * 8 * int(scores) + TILE_ARRAYS * tile_nbytes

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        scores = self.scorer.score(chunk)
        if scores.ndim == 1 or "mask" not in chunk.arrays:
            return scores
        xp = arrays.namespace(scores)
        return xp.where(valid_tokens(chunk), scores, xp.full_like(scores, xp.nan))


def together(procedures: Mapping[str, Passes[Any]]) -> Passes[dict[str, Any]]:
    """Advance several procedures in lockstep: as many passes as the longest needs, not the sum."""
    outcomes: dict[str, Any] = {}
    pending: dict[str, Requests] = {}

    def advance(name: str, results: Results | None) -> None:
        pending.pop(name, None)
        try:
            procedure = procedures[name]
            pending[name] = next(procedure) if results is None else procedure.send(results)
        except StopIteration as stop:
            outcomes[name] = stop.value

    for name in procedures:
        advance(name, None)
    while pending:
        asked = {
            (name, key): request for name, keys in pending.items() for key, request in keys.items()
        }
        answers = yield {f"{name}/{key}": request for (name, key), request in asked.items()}
        for name in list(pending):
            advance(name, {key: answers[f"{name}/{key}"] for key in pending[name]})
    return {name: outcomes[name] for name in procedures}
