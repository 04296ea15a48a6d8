"""Which attempts of a run the weights of its latest training come from, and how far.

A training that goes on from a checkpoint does over what came after it; one that begins anew has
nothing of those before. What they kept is still there, but of no curve that goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.ddp.files import RUNNING, Beginning, Moment, Origin, Run

__all__ = ["Lineage", "lineage"]


@dataclass(frozen=True)
class Lineage:
    """Attempts that count, each up to some batch."""

    last_batch: Mapping[int, int | None]
    """By attempt; None where all of it counts."""

    def holds(self, attempt: int, batch: int) -> bool:
        """Tell whether the weights that an attempt had after a batch are of the curve."""
        last = self.last_batch.get(attempt, -1)
        return last is None or batch <= last

    def counted(self, moment: Moment, attempts: list[int]) -> list[int]:
        """Return those of some attempts whose partials of a moment count."""
        return [attempt for attempt in attempts if self.holds(attempt, moment.batch)]


def lineage(run: Run) -> Lineage:
    """Return the latest training that has kept anything, what it goes on from, and evaluations.

    An evaluation counts where the weights that it is of do, or come from elsewhere.
    """
    began = {attempt: run.beginning(attempt) for attempt in run.attempts()}
    last = _trained(run, began)
    found = Lineage(last)
    for attempt, (origin, trains) in began.items():
        if trains or attempt in last:
            continue
        known = origin is not None and origin.attempt in began
        if origin is None or not known or found.holds(*origin):
            last[attempt] = None
    return found


def _trained(run: Run, began: Mapping[int, Beginning]) -> dict[int, int | None]:
    trainings = [attempt for attempt, one in began.items() if one.trains]
    latest = next((one for one in reversed(trainings) if _has_kept(run, one)), None)
    last: dict[int, int | None] = {}
    origin = None if latest is None else Origin(latest, -1)
    while origin is not None and origin.attempt in began and origin.attempt not in last:
        last[origin.attempt] = None if not last else origin.batch
        origin = began[origin.attempt].origin
    return last


def _has_kept(run: Run, attempt: int) -> bool:
    return any(not m.sanity and m.phase != RUNNING for m in run.moments(attempt))
