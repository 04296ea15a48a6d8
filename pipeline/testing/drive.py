"""How the laws drive things: statistics by hand, chunk by chunk, and procedures by the engine."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline import arrays, engine
from pipeline.arrays import HOST, Place
from pipeline.chunk import Arena, Chunk, Schema, Split
from pipeline.fold import Partial
from pipeline.plan import Pass
from pipeline.procedure import Passes, Procedure, Rows, Scorer, Scores
from pipeline.statistics import Statistic

PLACES = {
    "numpy": HOST,
    "torch": Place("torch"),
    "array_api_strict": Place("array_api_strict", "device1"),
}
"""Where every law holds; the strict library's second device refuses to be mixed with the host."""
if (gpu := arrays.gpu_place()) is not None and arrays.answers(gpu):
    PLACES[gpu.library if gpu.library == "cupy" else "cuda"] = gpu

Host = np.ndarray[Any, Any]
Splits = Split | Sequence[Split]


def chunks(split: Split, fields: Iterable[str], place: Place = HOST) -> Iterator[list[Chunk]]:
    """Yield the chunks of each block of a split, with fresh scratch space."""
    for block in split.blocks:
        arena = Arena()
        yield [
            Chunk(
                chunk.schema,
                chunk.start,
                chunk.rows,
                {name: place.put(x.copy()) for name, x in chunk.arrays.items()},
                is_ood=chunk.is_ood,
                arena=arena,
            )
            for chunk in split.read(block, frozenset(fields))
        ]


def partial_of(
    statistic: Statistic[Any, Any], schema: Schema, block: Iterable[Chunk], place: Place = HOST
) -> Any:
    """Return the closed state of the chunks of a block, on the host."""
    state = arrays.map_arrays(place.put, statistic.empty(schema))
    for chunk in block:
        state = statistic.absorb(state, chunk)
    return arrays.map_arrays(arrays.to_host, statistic.close(state))


def partials(statistic: Statistic[Any, Any], split: Split, place: Place = HOST) -> list[Any]:
    """Return the closed states of the blocks of a split."""
    blocks = chunks(split, statistic.fields, place)
    return [partial_of(statistic, split.schema, block, place) for block in blocks]


def fold_all(statistic: Statistic[Any, Any], split: Split, place: Place = HOST) -> Any:
    """Return the result of a statistic over the rows of a split."""
    return statistic.finalize(functools.reduce(statistic.merge, partials(statistic, split, place)))


@dataclass(frozen=True)
class Ask:
    """A procedure of one pass that returns what it asked for."""

    request: Any

    def passes(self, schema: Schema) -> Passes[Any]:
        """Ask; return the answer."""
        results = yield {"answer": self.request}
        return results["answer"]


def outcome(
    procedure: Procedure[Any],
    splits: Splits | Mapping[str, Splits],
    execute: engine.Execute = engine.run_serial,
    *,
    skip_nonfinite: bool = False,
) -> Any:
    """Return what a procedure returns over the splits of its roles; one split is ``train``."""
    roles = splits if isinstance(splits, Mapping) else {"train": splits}
    return engine.run({"it": procedure}, roles, execute, skip_nonfinite=skip_nonfinite)["it"]


def at(place: Place) -> engine.Execute:
    """Return an executor that works in the array library of ``place``."""
    return engine.Threads(1, place=place)


def scores_of(
    scorer: Scorer,
    split: Split,
    execute: engine.Execute = engine.run_serial,
    *,
    skip_nonfinite: bool = False,
) -> Host:
    """Return the scores of every row of a split: (n,), or (n, t) per token."""
    table = outcome(Ask(Rows(Scores(scorer))), split, execute, skip_nonfinite=skip_nonfinite)
    return table.array()  # type: ignore[no-any-return]


def requests_of(procedure: Procedure[Any], split: Split) -> list[Any]:
    """Return every statistic that a procedure asked for over a split."""
    asked: list[Any] = []

    def execute(pass_: Pass) -> Sequence[Partial]:
        asked.extend(request for work in pass_.works for request in work.statistics)
        return engine.run_serial(pass_)

    outcome(procedure, split, execute)
    return asked
