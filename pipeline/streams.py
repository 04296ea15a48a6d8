"""Plans of streams: what can be folded while its rows are made, and what needs them again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from pipeline.cluster import settle
from pipeline.engine import Job, Streaming, rehearse
from pipeline.engine.streaming import Stream
from pipeline.errors import BudgetError, ConfigError, DataError, FeatfoldError
from pipeline.inputs import HEAD
from pipeline.plan import (
    Part,
    Pass,
    Projection,
    Work,
    check_client,
    describe,
    human,
    parts_of,
)
from pipeline.workplace import Workplace, client_of, projected

FILES = "stream=False: its rows then go through temporary files"
IN_PROCESS = ("auto", "threads")
"""Clusters that are this process: the model is here, and so are its rows."""


class Asked(NamedTuple):
    """Who asks for rows of a stream that was read before, and who does not."""

    again: tuple[str, ...]
    once: tuple[str, ...]
    striped: bool
    """Whether memory is the reason: states that are cut into stripes take a pass for each."""
    split: str


def second_reads(passes: Sequence[Pass], names: Sequence[str]) -> Asked | None:
    """Return who asks for a stream again; None where every stream is read once.

    ``names`` are those who may be left out.
    """
    read: set[Any] = set()
    again: dict[str, None] = {}
    striped, split = False, ""
    for pass_ in passes:
        streams = [work for work in pass_.works if isinstance(work.split, Stream)]
        for work in streams:
            if work.split in read:
                split = split or work.split.name
                striped = striped or pass_.turn[0] > 1
                requests: tuple[Any, ...] = (*work.statistics, *work.rows)
                for request in requests:
                    again |= dict.fromkeys(pass_.asked_by.get(request, ()))
        read.update(work.split for work in streams)
    if not split:
        return None
    return Asked(tuple(again), tuple(n for n in names if n not in again), striped, split)


def refusal_of(asked: Asked, remedy: str = FILES) -> FeatfoldError:
    """Return the error that names who needs a stream again, and who does not."""
    again = ", ".join(asked.again)
    who = f"{asked.split} is a stream, which is read once, and {again} would need"
    if asked.striped:
        return BudgetError(
            f"{who} several passes, as their states do not fit at once; give more memory, or "
            f"{remedy}"
        )
    if not asked.once:
        return ConfigError(f"{who} a second pass over it; give {remedy}")
    return ConfigError(
        f"{who} a second pass over it; one pass is enough for {', '.join(asked.once)}: leave out "
        f"{again}, or give {remedy}"
    )


def streaming(
    prepared: Mapping[str, Job],
    few: Sequence[Mapping[str, Job]] = (),
    *,
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    stage: str = "fit",
) -> Workplace:
    """Plan jobs over streams, and return what runs them: nothing is read for it.

    ``few`` are the same jobs over streams of few rows and of more, where nobody knows how many
    there will be.
    Unless ``workers`` is 1, threads fold beside that of the model, one less than there are workers
    and as many as memory allows: each folds a block, and chunks of the others wait.

    Raises
    ------
    ConfigError
        Where a stream would be read twice, naming who needs that and who does not.
    BudgetError
        Where memory is too small; that of the model is not counted.
    """
    if cluster not in IN_PROCESS:
        raise ConfigError(
            f"cluster: {cluster!r}; a stream is folded in the process of its model: choose auto or "
            f"threads, or give {FILES}"
        )
    names = [name for name in prepared if name != HEAD]
    passes_of_few = _passes_of_few(few, names, stage) if few else None
    tabled = passes_of_few is not None and bool(_tables(passes_of_few))
    planned = few[0] if tabled else prepared  # scores: as many as there are rows
    passes, outcomes = rehearse(planned, stage=stage)
    _refuse_second_reads(passes, names)
    if passes_of_few is not None and not tabled:
        _refuse_what_depends_on_rows(passes_of_few, passes)
    resources = settle("threads", 1, memory)  # one thread folds, and has all memory
    projections, shrink = projected(passes, resources)
    for pass_, projection in zip(passes, projections, strict=True):
        if projection.nbytes > resources.allowed_nbytes:
            raise _too_large(pass_, projection, resources.allowed_nbytes)
    check_client(*client_of(passes, projections, resources, outcomes))
    return Workplace(streaming_of(passes, projections, shrink, workers, memory), None)


def streaming_of(
    passes: Sequence[Pass],
    projections: Sequence[Projection],
    shrink: int,
    workers: int | None,
    memory: str | int,
    **rest: Any,
) -> Streaming:
    """Return what folds streams, on as many threads as all workers together have memory for."""
    wanted = settle("threads", workers, memory)
    if wanted.workers == 1:
        return Streaming(shrink=shrink, **rest)
    held = max((p.nbytes for p in projections), default=0)
    further = max((p.nbytes - p.parts[0].nbytes for p in projections), default=0)  # not reserved
    ahead = max((_block_nbytes(work) for pass_ in passes for work in pass_.works), default=0)
    left = wanted.workers * wanted.allowed_nbytes - held
    more = max(0, min(wanted.workers - 2, left // max(1, further + ahead)))
    return Streaming(1 + more, more * ahead, shrink, **rest)


def with_folders(projections: Sequence[Projection], execute: Streaming) -> list[Projection]:
    """Return the memory of passes with what further threads that fold, and what waits, take."""
    further = max(0, execute.folders - 1)
    found = []
    for projection in projections:
        each = projection.nbytes - projection.parts[0].nbytes
        parts = (Part("further folds", further * each), Part("waiting", execute.ahead_nbytes))
        found.append(replace(projection, parts=(*projection.parts, *(parts if further else ()))))
    return found


def _block_nbytes(work: Work) -> int:
    """Return the bytes of a block of a stream, as it is folded."""
    if not isinstance(work.split, Stream):
        return 0
    specs = [work.split.schema.arrays[name] for name in work.fields]
    rows = max((block.rows for block in work.split.blocks), default=0)
    return rows * sum(math.prod(spec.shape) * spec.memory_dtype.itemsize for spec in specs)


def _too_large(pass_: Pass, projection: Projection, allowed_nbytes: int) -> BudgetError:
    lines = [
        f"refused before reading: {pass_.name} over a stream needs {human(projection.nbytes)} "
        f"beside its model, {human(allowed_nbytes)} are allowed",
        f"  {parts_of(projection)}",
    ]
    if projection.worst is not None:
        asked_by = ", ".join(projection.asked_by)
        lines.append(f"  worst statistic: {describe(projection.worst)}, asked for by {asked_by}")
    lines.append(f"  what fixes it: more memory=, or {FILES}, and large states in stripes")
    return BudgetError("\n".join(lines))


def _refuse_second_reads(passes: Sequence[Pass], names: Sequence[str]) -> None:
    if asked := second_reads(passes, names):
        raise refusal_of(asked)


def _passes_of_few(
    several: Sequence[Mapping[str, Job]], names: Sequence[str], stage: str
) -> list[Pass]:
    """Return the passes over the fewest rows that are enough; refuse a fit that keeps rows."""
    *fewer, most = several
    for few in fewer:
        with suppress(ConfigError, DataError):  # such as more components than so few rows have
            passes, _ = rehearse(few, stage=stage)
            break
    else:
        passes, _ = rehearse(most, stage=stage)
    _refuse_second_reads(passes, names)
    if stage == "fit" and (tables := _tables(passes)):
        raise _depends(tables)
    return passes


def _tables(passes: Sequence[Pass]) -> set[str]:
    """Return who asks for something of every row."""
    return {name for p in passes for w in p.works for r in w.rows for name in p.asked_by[r]}


def _refuse_what_depends_on_rows(few: Sequence[Pass], many: Sequence[Pass]) -> None:
    """Raise :class:`ConfigError` where few rows are asked for something else than many."""
    if list(map(_requests, few)) != list(map(_requests, many)):
        raise _depends({name for p in many for names in p.asked_by.values() for name in names})


def _depends(names: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"what {', '.join(sorted(names))} ask of the data depends on how many rows there are, and "
        "the loader does not say: pass a DataLoader of a dataset with a length and torch's own "
        f"collate_fn, or give {FILES}"
    )


def _requests(pass_: Pass) -> list[Any]:
    return [(work.split.name, work.statistics, work.rows) for work in pass_.works]
