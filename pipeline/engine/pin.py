"""Pinning: a later fit that keeps the constants of an earlier one, and so reads only new blocks.

A second pass depends on what the first one found, so one appended block would make it read
everything again. A pinned fit gives every pass but the last of a procedure the results that the
earlier fit had; its last pass sees all blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.chunk import Split
from pipeline.errors import MissingInputError
from pipeline.partials import Partials, key_of, node_names, stored_fields

Turns = Sequence[Mapping[str, Sequence[Sequence[str]]]]
"""Per yield: JOB/NAME of each request -> (key, root node) of its partial in each split."""


def root_name(request: Any, split: Split) -> tuple[str, str] | None:
    """Return key and node of the partial of all blocks; None for rows without checksums."""
    stored = stored_fields(request, split)
    leaves = [split.identity(block, stored) for block in split.blocks]
    if None in leaves:
        return None
    return key_of(request, split), node_names([str(leaf) for leaf in leaves])[-1][0]


def _whole(name: str) -> str:
    """Return the name of a request without that of its stripe, as in ``scatters 2/3``."""
    return re.sub(r" \d+/\d+$", "", name)


@dataclass(frozen=True)
class Pin:
    """The requests of an earlier fit, and the cache that still holds their partials."""

    turns: Turns
    partials: Partials

    def roots(self, turn: int, name: str) -> Sequence[Sequence[str]] | None:
        """Return key and node of what answered a request then; None for the last turn of a job."""
        job = name.partition("/")[0]
        if not any(
            key.partition("/")[0] == job for later in self.turns[turn + 1 :] for key in later
        ):
            return None
        if name not in self.turns[turn]:
            if _whole(name) in map(_whole, self.turns[turn]):
                raise MissingInputError(
                    f"{job} is pinned to a fit that cut its statistics into other stripes; give "
                    "it the --memory it had then, or run without pinning"
                )
            return None
        return self.turns[turn][name]

    def states(self, turn: int, name: str) -> list[Any] | None:
        """Return the states that answered a request then; None for the last turn of a job."""
        roots = self.roots(turn, name)
        if roots is None:
            return None
        if lost := [root for root in roots if not self.partials.has(*root)]:
            raise MissingInputError(
                f"the cache no longer holds what {name.partition('/')[0]} is pinned to "
                f"({self.partials.path(*lost[0])}); run without pinning"
            )
        return [self.partials.get(*root).state for root in roots]
