"""Moments at which a test kills something: drawn at random, printed, and set again to replay.

``FEATFOLD_KILLS`` says how many kills of each kind must hit (few, unless it is set; the guarantee
was shown with 10), ``FEATFOLD_KILL_SEED`` sets the seed that a failed run printed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

SEED = int(os.environ.get("FEATFOLD_KILL_SEED") or random.SystemRandom().randrange(2**32))
DRAWS_PER_KILL = 20


def kills(usual: int) -> int:
    """Return how many kills of each kind must hit."""
    return int(os.environ.get("FEATFOLD_KILLS", usual))


@dataclass
class Moments:
    """The moments of one kind of kill, as shares of the time that the work takes."""

    kind: str
    kills: int
    hits: list[str] = field(default_factory=list)
    missed: int = 0

    def __iter__(self) -> Iterator[tuple[float, random.Random]]:
        """Yield (share, choices) until ``kills`` of them were told to have hit."""
        for draw in range(self.kills * DRAWS_PER_KILL):
            if len(self.hits) == self.kills:
                break
            rng = random.Random(f"{SEED} {self.kind} {draw}")
            yield rng.random(), rng
        print(f"{self.kind}: seed {SEED}; {len(self.hits)} hit, {self.missed} drawn again")
        assert len(self.hits) == self.kills, "hardly any kill hit something in flight"

    def hit(self, what: str) -> None:
        """Count a kill."""
        self.hits.append(what)
        print(f"{self.kind}: killed {what}")

    def miss(self) -> None:
        """Leave out a kill that came when nothing was in flight."""
        self.missed += 1
