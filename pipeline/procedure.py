"""Procedures: detectors and metrics as generators, what they may ask for, and how they combine.

A procedure yields the statistics it needs under names of its choice, is sent their results under
the same names, and may ask again: one yield is one pass over the data. It returns what was asked
of it: a scorer, or metric values. Procedures run on the client only and never touch data.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from pipeline import arrays
from pipeline.arrays import TILE_ROWS, Array
from pipeline.chunk import REHEARSING as REHEARSING
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.statistics import Statistic, fields_of
from pipeline.views import Finite, View, memoised
from pipeline.views.base import valid_tokens

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

TRAIN, VAL, VAL_OOD = "train", "val", "val_ood"

SCORE_ARRAYS = 4
"""Arrays of scores that are held while scores are computed."""
TILE_ARRAYS = 10
"""Arrays as wide as the widest view of a scorer and its classes, for each row of one tile."""
IMAGE_SCORES = ("max", "mean", "top1")
"""What a scorer of tokens may name as its ``image``: how their scores make one of the image."""
TOP_TOKENS = 100
"""``top1`` is the mean of the highest one in so many scores of valid tokens, at least one."""


def check_image(image: str) -> None:
    """Raise :class:`ConfigError` for an ``image`` that is not known."""
    if image not in IMAGE_SCORES:
        raise ConfigError(f"image: {image!r} is unknown; choose {', '.join(IMAGE_SCORES)}")


def unused_image(pool: str) -> dict[str, str]:
    """Return the option ``image`` with why it changes nothing, where tokens are not scored."""
    return {} if pool == "tokens" else {"image": f"pool: {pool}"}


@value
class On:
    """A statistic over another split than the one that is fitted on: ``val`` or ``val_ood``."""

    role: str
    statistic: Any


@value
class Rows:
    """One output row per input row: written block by block, read back through a reader.

    A row whose stored values are not finite is an error, or with ``strict`` off whatever the view
    makes of it; :class:`Scores` make NaN of it.
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

Requests = Mapping[str, Any]
Results = Mapping[str, Any]
Passes = Generator[Requests, Results, T]


class Scorer(Protocol):
    """A fitted detector: a value of constants, views and scalars, which is exactly what is saved.

    Scores are float64 (n,), or (n, t) per token, and HIGHER MEANS MORE OUT-OF-DISTRIBUTION.
    """

    @property
    def views(self) -> tuple[View, ...]:
        """Every view it looks at: these name the stored arrays that it reads."""
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


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(float):
    """A metric's number with rigorous bounds; ``lower == upper`` where it is exact.

    It is a float, and is used like one. An undefined number is NaN with a ``reason``.
    """

    value: float
    lower: float
    upper: float
    exact: bool = True
    reason: str = ""

    def __new__(cls, value: float, *_: Any, **__: Any) -> Self:
        return super().__new__(cls, value)

    def __eq__(self, other: object) -> bool:
        """Compare a number by value, another estimate by all it says, NaN being equal to NaN."""
        if isinstance(other, Estimate):
            return self._content() == other._content()
        return float.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(float(self)) if self == float(self) else 0  # each NaN has a hash of its own

    def __repr__(self) -> str:
        bounds = "" if self.exact else f", lower={self.lower}, upper={self.upper}, exact=False"
        return f"Estimate({self.value}{bounds}{self.reason and f', reason={self.reason!r}'})"

    def __str__(self) -> str:
        return str(float(self))

    def _content(self) -> tuple[object, ...]:
        bounds = (float(one).hex() for one in (self.value, self.lower, self.upper))
        return (*bounds, self.exact, self.reason)


MetricResult = Mapping[str, Estimate]


class Metric(Protocol):
    """A frozen set of options whose passes end in named numbers."""

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        """Yield the statistics of the metric; return its numbers by name."""
        ...


@value
class Scored:
    """The scores of a scorer as a view () float64, one for each image.

    Scores of tokens (t,) become one as the ``image`` of the scorer says, the largest where it says
    nothing; masked tokens are left out, and a row without a valid one is NaN.
    """

    scorer: Any

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.scorer.views)

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
        image = getattr(self.scorer, "image", "max")
        check_image(image)
        of_images = REDUCED[image]
        if "mask" not in chunk.arrays:
            return arrays.by_tiles(lambda rows: of_images(rows, _every(rows)), scores)
        return arrays.by_tiles(of_images, scores, valid_tokens(chunk))


def _every(scores: Array) -> Array:
    xp = arrays.namespace(scores)
    return xp.ones(scores.shape, dtype=xp.bool, device=arrays.device_of(scores))


def _largest(scores: Array, valid: Array) -> Array:
    """Return the largest of the valid scores of each row (n, t); NaN where there is none."""
    xp = arrays.namespace(scores)
    largest = xp.max(xp.where(valid, scores, xp.full_like(scores, -xp.inf)), axis=1)
    return xp.where(xp.any(valid, axis=1), largest, xp.full_like(largest, xp.nan))


def _mean(scores: Array, valid: Array) -> Array:
    """Return the mean of the valid scores of each row (n, t); NaN where there is none."""
    return _mean_of(scores, valid, arrays.namespace(scores).count_nonzero(valid, axis=1))


def _mean_of_highest(scores: Array, valid: Array) -> Array:
    """Return the mean of the highest valid scores of each row (n, t), one in ``TOP_TOKENS``."""
    xp = arrays.namespace(scores)
    ordered = xp.sort(xp.where(valid, scores, xp.full_like(scores, -xp.inf)), axis=1)
    count = xp.count_nonzero(valid, axis=1)
    highest = (count + TOP_TOKENS - 1) // TOP_TOKENS
    place = xp.arange(scores.shape[1], dtype=highest.dtype, device=arrays.device_of(scores))
    return _mean_of(xp.flip(ordered, axis=1), place[None, :] < highest[:, None], highest)


def _mean_of(scores: Array, taken: Array, count: Array) -> Array:
    """Return the mean of the ``count`` (n,) scores of each row that are taken; NaN of none."""
    xp = arrays.namespace(scores)
    total = xp.sum(xp.where(taken, scores, xp.zeros_like(scores)), axis=1)
    rows = xp.astype(count, total.dtype)
    return total / xp.where(rows > 0, rows, xp.full_like(rows, xp.nan))


REDUCED: Mapping[str, Callable[[Array, Array], Array]] = dict(
    zip(IMAGE_SCORES, (_largest, _mean, _mean_of_highest), strict=True)
)


@value
class Scores:
    """The scores of a scorer as they are: () float64, or (t,) per token, NaN for masked ones.

    A row of which a stored value that the scorer reads is not finite is NaN, and so is, where
    features are tokens, one without a valid token: whatever the scorer makes of it.
    """

    scorer: Any

    @property
    def fields(self) -> frozenset[str]:
        return fields_of(*self.scorer.views)

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
        xp = arrays.namespace(scores)
        finite = Finite(tuple(sorted(self.fields)))(chunk)
        if not bool(xp.all(finite)):
            known = finite if scores.ndim == 1 else finite[:, None]
            scores = xp.where(known, scores, xp.full_like(scores, xp.nan))
        # The mask may be there for others: a scorer of logits alone does not look at tokens.
        if "mask" not in chunk.arrays or "mask" not in chunk.schema.touched(self.fields):
            return scores
        valid = valid_tokens(chunk)
        scored = valid if scores.ndim == 2 else xp.any(valid, axis=1)
        return xp.where(scored, scores, xp.full_like(scores, xp.nan))


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
        del answers  # not to be held while the next ones are made
    return {name: outcomes[name] for name in procedures}
