"""What fitted detectors say of rows: their scores, thresholds on them, and decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.chunk import Schema, Split
from pipeline.content import value
from pipeline.engine import Job, run_jobs
from pipeline.errors import ConfigError
from pipeline.evaluation import Tabled
from pipeline.loaders import Call, Load, at_work
from pipeline.procedure import TRAIN, Passes, Procedure, Scored, Scorer, Scores
from pipeline.quantiles import order_statistics
from pipeline.views import Every, View

Decisions = np.ndarray[Any, np.dtype[np.int64]]


class Member(Protocol):
    """A fitted detector."""

    @property
    def scorer(self) -> Scorer:
        """What gives the scores."""
        ...

    @property
    def schema(self) -> Schema:
        """What it was fitted on."""
        ...

    def accept(self, split: Split) -> None:
        """Raise for rows that it cannot score."""
        ...


@value
class Threshold:
    """The least score of a view () up to which at least a share ``tpr`` of the rows lie."""

    of: View
    tpr: float = 0.95

    def passes(self, schema: Schema) -> Passes[float]:
        share = Fraction(str(self.tpr))  # the decimal that was written, not its binary neighbour

        def last_kept(rows: int) -> list[int]:
            return [math.ceil(share * rows) - 1]

        _, found = yield from order_statistics(schema, self.of, last_kept, where=Every())
        return float(found[0, 0])


def scores_of(
    fitted: Mapping[str, Member], data: Any, *, per_image: bool = False, **options: Any
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the scores of every detector: see :func:`pipeline.api.score`."""
    if not isinstance(per_image, bool):
        raise ConfigError(f"per_image: {per_image!r}; expected True or False")
    view = Scored if per_image else Scores
    tables = over_rows(fitted, data, lambda f: Tabled(view(f.scorer)), **options)
    return {name: tables[name].array() for name in fitted}


def thresholds_of(
    fitted: Mapping[str, Member], data: Any, tpr: float = 0.95, **options: Any
) -> dict[str, float]:
    """Return the threshold of every detector, exactly: that of a share ``tpr`` of the rows kept.

    ``data`` are in-distribution rows, all of which count, best such that were not fitted on. A
    threshold is one of their scores, the least t with at least ``tpr`` of the scores <= t; ties
    with it are kept, and nothing is interpolated. It is the first threshold of
    ``FPRAtTPR(tpr, positive="id")``, whose number is the share of out-of-distribution rows that are
    <= t too. One pass for up to 131,072 distinct scores, else two.

    ``options`` are those of :func:`pipeline.api.score`. Raises :class:`ConfigError` for a ``tpr``
    that is not above 0 and up to 1.
    """
    if isinstance(tpr, bool) or not isinstance(tpr, Real) or not 0 < tpr <= 1:
        raise ConfigError(f"tpr: expected a share above 0 and up to 1, got {tpr!r}")
    return over_rows(fitted, data, lambda f: Threshold(Scored(f.scorer), float(tpr)), **options)


def decisions_of(
    fitted: Mapping[str, Member], data: Any, thresholds: Mapping[str, float], **options: Any
) -> dict[str, Decisions]:
    """Return +1 for rows that score no more than the threshold of a detector, else -1: int64 (n,).

    The signs are those of scikit-learn's outlier detectors. Token detectors decide on images. A
    score that is NaN, which only ``nonfinite="skip"`` lets through, is no inlier. Raises
    :class:`ConfigError` for a detector without a threshold.
    """
    missing = [name for name in fitted if name not in thresholds]
    if missing:
        raise ConfigError(
            f"no threshold for {', '.join(missing)}: call threshold_at with in-distribution rows "
            "first, or pass {name: threshold}"
        )
    for name in fitted:
        given = thresholds[name]
        if isinstance(given, bool) or not isinstance(given, Real) or math.isnan(given):
            raise ConfigError(f"the threshold for {name} is {given!r}, not a number")
    tables = over_rows(fitted, data, lambda f: Tabled(Scored(f.scorer)), **options)
    return {
        name: np.where(table.array() <= thresholds[name], np.int64(1), np.int64(-1))
        for name, table in tables.items()
    }


def over_rows(
    fitted: Mapping[str, Member],
    data: Any,
    procedure_of: Callable[[Any], Procedure[Any]],
    *,
    nonfinite: str = "raise",
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    device_memory: str | int = "auto",
    cache: str | Path | None = None,
    model: Any = None,
    device: Any = None,
    stream: bool | None = None,
) -> dict[str, Any]:
    """Return what a procedure of every detector makes of rows, all of them in the same passes.

    With ``model``, ``data`` is a loader: see :func:`pipeline.api.fit`; its labels do not matter.
    """
    skips = skips_of(nonfinite)

    def prepare(split: Split) -> dict[str, Job]:
        for member in fitted.values():
            member.accept(split)
        return {name: Job(procedure_of(f), {TRAIN: (split,)}) for name, f in fitted.items()}

    call = Call(model, device, stream, cluster, workers, memory, device_memory, cache, "score")
    load = Load(data, "id/test", classes_of(fitted), labelled=False)
    with at_work([load], prepare, call) as (prepared, place):
        return run_jobs(
            prepared, place.execute, stage="score", skip_nonfinite=skips, room=place.room
        )


def skips_of(nonfinite: str) -> bool:
    """Return whether rows that are not finite are skipped; ConfigError for an unknown word."""
    if nonfinite not in ("raise", "skip"):
        raise ConfigError(f"nonfinite: {nonfinite!r} is unknown; choose raise or skip")
    return nonfinite == "skip"


def classes_of(fitted: Mapping[str, Member]) -> int:
    """Return the classes that detectors were fitted on; ConfigError where there is none."""
    if not fitted:
        raise ConfigError("no fitted detector was given")
    return next(iter(fitted.values())).schema.classes
