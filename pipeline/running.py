"""Running states: what a set of statistics has absorbed so far, batch by batch, in memory.

A batch is folded into partials of its own before any of them counts, so a batch that is refused
changes nothing. Partials merge like the digits of a binary number, two of the same size at a
time: states that grow with their rows are merged a logarithmic number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.chunk import Chunk, Schema
from pipeline.content import digest
from pipeline.errors import DataError
from pipeline.statistics import Statistic

AnyStatistic = Statistic[Any, Any]


class Running:
    """The states of statistics over the batches seen so far."""

    def __init__(self, statistics: Sequence[AnyStatistic], schema: Schema) -> None:
        self.statistics = {digest(statistic): statistic for statistic in statistics}
        self.schema = schema
        self._parts: dict[str, list[tuple[int, Any]]] = {key: [] for key in self.statistics}

    @property
    def additive(self) -> bool:
        """Whether all states are whole numbers of fixed shapes that merge by addition."""
        return all(is_additive(statistic) for statistic in self.statistics.values())

    def absorb(self, chunk_of: Callable[[AnyStatistic], Chunk]) -> None:
        """Take in a batch: the chunk that ``chunk_of`` gives for each statistic."""
        partials = {
            key: _partial(statistic, chunk_of(statistic), self.schema)
            for key, statistic in self.statistics.items()
        }
        for key, partial in partials.items():
            self._push(key, 1, partial)

    def add(self, states: Mapping[str, Any]) -> None:
        """Take in states of equal statistics, by digest."""
        for key in self.statistics:
            self._push(key, 1, states[key])

    def state(self, key: str) -> Any:
        """Return all that one statistic has absorbed, as host arrays that are the caller's own."""
        statistic = self.statistics[key]
        whole = statistic.close(statistic.empty(self.schema))
        for _, part in reversed(self._parts[key]):
            whole = statistic.merge(whole, part)
        return arrays.map_arrays(lambda x: np.array(x), whole)

    def results(self) -> dict[str, Any]:
        """Return the finalized results by digest; what was absorbed stays as it is."""
        return {key: s.finalize(self.state(key)) for key, s in self.statistics.items()}

    def _push(self, key: str, size: int, state: Any) -> None:
        parts, merge = self._parts[key], self.statistics[key].merge
        while parts and (parts[-1][0] <= size or is_additive(self.statistics[key])):
            earlier, other = parts.pop()
            state, size = merge(other, state), size + earlier
        parts.append((size, state))


def is_additive(statistic: AnyStatistic) -> bool:
    """Tell whether partial states are int64 arrays of fixed shapes whose sums are their merge."""
    return bool(getattr(statistic, "additive", False))


def leaves(state: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays of a state in a fixed order."""
    if isinstance(state, (tuple, list)):
        for part in state:
            yield from leaves(part)
    else:
        yield np.asarray(state)


def rebuilt(like: Any, flat: Iterator[np.ndarray[Any, Any]]) -> Any:
    """Return a state of the form of ``like`` whose arrays are the next ones of ``flat``."""
    try:
        return arrays.map_arrays(lambda _: next(flat), like)
    except (StopIteration, RuntimeError):
        raise DataError("the saved states hold fewer arrays than these metrics have") from None


def _partial(statistic: AnyStatistic, chunk: Chunk, schema: Schema) -> Any:
    x = chunk.any_array
    state = arrays.map_arrays(lambda s: arrays.like(s, x), statistic.empty(schema))
    return arrays.map_arrays(arrays.to_host, statistic.close(statistic.absorb(state, chunk)))
