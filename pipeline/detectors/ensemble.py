"""Ensembles: weighted sums of detectors, or of one detector over several layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError, DataError
from pipeline.procedure import REHEARSING, TRAIN, VAL, On, Passes, Scored, together
from pipeline.statistics import SecondMoment, Spread
from pipeline.views import AllFinite, Both, Stacked, Valid, View

__all__ = ["Ensemble"]

NORMALIZATIONS = ("standard", "none")
SCALES = ("auto", VAL, TRAIN)
BY_VAL = "scaled by the rows of id/val"
BY_FIT = "scaled by the fit rows: members that fit these closely outweigh the others"
ROUNDING = 1e-12
"""Standard deviation over mean of scores that differ by rounding alone."""


@value
class Ensemble:
    """Weighted sum of the scores of several detectors: sum_i w_i (s_i - m_i) / sd_i.

    m_i and sd_i are mean and standard deviation of the scores s_i of in-distribution rows, those
    apart that some member finds infinitely far, so that members of different units weigh alike;
    ``normalize: none`` adds the scores as they are. ``weights`` default to 1 for each. Members that
    score tokens enter with their score of the image. Layers are members with another ``field``
    each. Fit: the passes of the longest member, all in lockstep, and one more for m and sd, which
    depends on the members; state m x m for m members.

    ``scales: auto`` takes the rows of id/val for m and sd, labelled or not, where they are given
    and are neither tested on nor fitted on, and the fit rows otherwise; ``val`` and ``train`` ask
    for one of them. Members that fit their rows closely, such as mahalanobis on few more rows than
    features, score these much alike, so that by the fit rows they outweigh the others. The notes
    say which rows it were.

    Raises :class:`ConfigError` for no member, as many weights as there are no members, or weights
    that are not finite or 0; :class:`DataError` where a member gives all of the rows one score.
    """

    paper: ClassVar[str] = ""
    formula: ClassVar[str] = "sum of w (score - mean) / std"

    detectors: tuple[Any, ...]
    weights: tuple[float, ...] = ()
    normalize: str = "standard"
    scales: str = "auto"

    def __post_init__(self) -> None:
        if not self.detectors:
            raise ConfigError("detectors: an ensemble needs members, such as [mahalanobis, energy]")
        for member in self.detectors:
            if not callable(getattr(member, "passes", None)):
                raise ConfigError(f"detectors: {member!r} is not a detector")
            if getattr(member, "fit_split", ""):
                raise ConfigError(
                    "detectors: members are fitted on the split of the ensemble; give fit_split to "
                    "the ensemble instead"
                )
        if self.normalize not in NORMALIZATIONS:
            raise ConfigError(
                f"normalize: {self.normalize!r} is unknown; choose {' or '.join(NORMALIZATIONS)}"
            )
        if self.scales not in SCALES:
            raise ConfigError(f"scales: {self.scales!r} is unknown; choose {', '.join(SCALES)}")
        _check(self.weights, len(self.detectors))

    @property
    def unused(self) -> dict[str, str]:
        return {"scales": "normalize: none"} if self.normalize == "none" else {}

    def passes(self, schema: Schema) -> Passes[EnsembleScorer]:
        fitted = yield from together(
            {str(i): member.passes(schema) for i, member in enumerate(self.detectors)}
        )
        scored = tuple(Scored(scorer) for scorer in fitted.values())
        weights = np.array(self.weights or [1.0] * len(scored))
        if self.normalize == "none":
            return EnsembleScorer(scored, tuple(weights), (0.0,) * len(scored), _notes(fitted))
        scores = Stacked(scored)
        held_out, finite = self.scales == VAL, AllFinite(scores)
        where = finite if held_out else Both(Valid(), finite)
        asked = SecondMoment(of=scores, where=where)
        results = yield {"scores": On(VAL, asked) if held_out else asked}
        spread: Spread = results["scores"]
        deviations = np.sqrt(np.maximum(np.diag(spread.covariance), 0.0))
        varying = deviations > ROUNDING * np.abs(spread.mean)
        if not varying.all() and not REHEARSING.get():
            place = int(np.argmin(varying))
            raise DataError(
                f"member {place + 1} of the ensemble gives all {'' if held_out else 'fit '}rows"
                f"{' of id/val' if held_out else ''} the same score; leave it out, or choose "
                "normalize: none"
            )
        deviations = np.where(varying, deviations, 1.0)
        notes = (BY_VAL if held_out else BY_FIT, *_notes(fitted))
        return EnsembleScorer(scored, tuple(weights / deviations), tuple(spread.mean), notes)


def _check(weights: tuple[float, ...], members: int) -> None:
    if not weights:
        return
    if len(weights) != members:
        raise ConfigError(f"weights: {len(weights)} for {members} members; give one for each")
    if not all(map(math.isfinite, weights)) or not all(weights):
        raise ConfigError(
            f"weights: {weights}; expected finite numbers other than 0: leave such a member out"
        )


def _notes(fitted: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"member {int(i) + 1}: {note}"
        for i, scorer in fitted.items()
        for note in getattr(scorer, "notes", ())
    )


@value
class EnsembleScorer:
    """Weighted sum of the centred image scores of several scorers."""

    scored: tuple[View, ...]
    weights: tuple[float, ...]
    centres: tuple[float, ...]
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return self.scored

    def score(self, chunk: Chunk) -> Array:
        terms = (
            weight * (view(chunk) - centre)
            for view, weight, centre in zip(self.scored, self.weights, self.centres, strict=True)
        )
        total = next(terms)
        for term in terms:
            total = total + term
        return total
